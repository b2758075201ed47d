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

	"github.com/sluice-epp/sluice/server/filelock"
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

// OpenResults reads a results file, or makes one, and keeps it from other processes until Close. An empty path keeps results in
// memory. What a killed process left of its last line is cut off, where the lines before it are results; nothing else of a file is
// changed.
func OpenResults(path string) (*Results, error) {
	r := &Results{lines: map[string]*Line{}}
	if path == "" {
		return r, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644) //nolint:gosec // results are for others to read
	if err != nil {
		return nil, err
	}
	if err := r.open(path, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.file = f
	return r, nil
}

func (r *Results) open(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: is no regular file", path)
	}
	if err := filelock.Lock(f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	whole, torn, err := r.read(path, f)
	if err == nil && torn {
		err = f.Truncate(whole)
	}
	return err
}

// read reads the lines that are whole, and returns how many bytes they are, and whether there is a torn one behind them.
func (r *Results) read(path string, from io.Reader) (whole int64, torn bool, err error) {
	in := bufio.NewReaderSize(from, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			if len(line) > 0 && len(r.lines) == 0 {
				return 0, false, fmt.Errorf("%s:%d: no line of results ends here: no file of results", path, n)
			}
			return whole, len(line) > 0, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, false, fmt.Errorf("%s:%d: is longer than %d bytes: no file of results", path, n, maxLine)
		case err != nil:
			return 0, false, fmt.Errorf("%s: %w", path, err)
		case n > maxLines:
			return 0, false, fmt.Errorf("%s: more than %d lines", path, maxLines)
		}
		whole += int64(len(line))
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		l, err := parseLine(line)
		if err != nil {
			return 0, false, fmt.Errorf("%s:%d: no result of a run: %w", path, n, err)
		}
		r.lines[l.Key] = l
	}
}

// parseLine reads a line of a results file. What does not say how its run came out is none: it would count as zeros.
func parseLine(text []byte) (*Line, error) {
	var l Line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, err
	}
	if l.Key == "" {
		return nil, errors.New("it has no key")
	}
	var has struct {
		Summary struct{ Requests *int } `json:"summary"`
	}
	if err := json.Unmarshal(text, &has); err != nil {
		return nil, err
	}
	if has.Summary.Requests == nil {
		return nil, errors.New("it has no summary")
	}
	return &l, nil
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
