package simulate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/go-json-experiment/json"

	"github.com/sluice-epp/sluice/sim/fleet"
)

// Line is a finished run, as one line of JSON in a results file.
type Line struct {
	// Key names the run by what decides how it comes out.
	Key string `json:"key"`
	// Build is the program that ran it.
	Build string `json:"build"`
	// Scenario and Candidate are what they were called, and Seed the source of random numbers.
	Scenario  string `json:"scenario"`
	Candidate string `json:"candidate"`
	Seed      int    `json:"seed"`
	// Took is how long it took, and Decision how long a decision took on average; both in seconds.
	Took     float64 `json:"took_s"`
	Decision float64 `json:"decision_s"`
	// Summary and Curves are how it came out.
	Summary fleet.Summary `json:"summary"`
	Curves  fleet.Curves  `json:"curves"`
}

// maxLine is how long a line of a results file may be, in bytes.
const maxLine = 1 << 20

// maxLines is how many lines a results file may have.
const maxLines = 1_000_000

// Results are the runs that are done, those of a file and those that are added to it. Its methods may be called from several
// goroutines.
type Results struct {
	mu    sync.Mutex
	file  *os.File // nil: they are kept in memory only
	lines map[string]*Line
}

// OpenResults reads a results file, or makes one. An empty path keeps results in memory. What a killed process left of its
// last line is cut off.
func OpenResults(path string) (*Results, error) {
	r := &Results{lines: map[string]*Line{}}
	if path == "" {
		return r, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644) //nolint:gosec // results are for others to read
	if err != nil {
		return nil, err
	}
	whole, err := r.read(path, f)
	if err == nil {
		err = f.Truncate(whole)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.file = f
	return r, nil
}

// read reads the lines that are whole, and returns how many bytes they are.
func (r *Results) read(path string, from io.Reader) (whole int64, err error) {
	in := bufio.NewReaderSize(from, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return whole, nil // and what stands after the last line end is torn
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, fmt.Errorf("%s:%d: is longer than %d bytes: no file of results", path, n, maxLine)
		case err != nil:
			return 0, fmt.Errorf("%s: %w", path, err)
		case n > maxLines:
			return 0, fmt.Errorf("%s: more than %d lines", path, maxLines)
		}
		whole += int64(len(line))
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(line, &l); err != nil {
			return 0, fmt.Errorf("%s:%d: no result of a run: %w", path, n, err)
		}
		if l.Key == "" {
			return 0, fmt.Errorf("%s:%d: no result of a run: it has no key", path, n)
		}
		r.lines[l.Key] = &l
	}
}

// Len is how many runs are done.
func (r *Results) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lines)
}

// Get is a run that is done, or nil.
func (r *Results) Get(key string) *Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines[key]
}

// Add keeps a run, in one write.
func (r *Results) Add(l *Line) error {
	b, err := json.Marshal(l, json.Deterministic(true))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[l.Key] = l
	if r.file == nil {
		return nil
	}
	_, err = r.file.Write(append(b, '\n'))
	return err
}

// Close closes the file.
func (r *Results) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
