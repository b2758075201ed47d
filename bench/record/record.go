// Package record keeps the results of a run in a file: what machine it was, a line a row for scripts, and the table for
// people.
package record

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine describes where and with what a run was made.
type Machine struct {
	// CPU is the processor's name, Cores how many of them the run may use.
	CPU   string
	Cores int
	// Kernel is the operating system's name and release.
	Kernel string
	// Go and Envoy are versions; Envoy is empty where none ran.
	Go, Envoy string
	// Load is the load average of the last minute when the run began; empty where it is not known.
	Load string
	// Date is when the run began.
	Date time.Time
}

// Here describes this machine; envoy is the path of the Envoy that runs, or empty.
func Here(ctx context.Context, envoy string) Machine {
	m := Machine{
		CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Go: runtime.Version(), Date: time.Now().UTC(),
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, after, ok := strings.Cut(string(info), "model name"); ok {
			line, _, _ := strings.Cut(after, "\n")
			m.CPU = strings.Trim(line, "\t :")
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel += " " + strings.TrimSpace(string(release))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(load), " ")
	}
	if envoy != "" {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, envoy, "--version").Output(); err == nil {
			m.Envoy = envoyVersion(string(out))
		}
	}
	return m
}

// envoyVersion is the number in what `envoy --version` prints: envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL.
func envoyVersion(out string) string {
	for part := range strings.SplitSeq(out, "/") {
		if len(part) > 0 && part[0] >= '0' && part[0] <= '9' && strings.Count(part, ".") == 2 {
			return part
		}
	}
	return ""
}

// Row is a line for scripts, its numbers and names by key.
type Row map[string]string

// implied are the values of keys that a record may leave out.
var implied = Row{"concurrency": "16"}

// value is that of a key; one that is neither in the row nor implied has none.
func (r Row) value(key string) string {
	if v, ok := r[key]; ok {
		return v
	}
	return implied[key]
}

// Is reports whether the row has these values. A row without concurrency is one of 16; any other key that it lacks has none.
func (r Row) Is(values map[string]string) bool {
	for k, v := range values {
		if r.value(k) != v {
			return false
		}
	}
	return true
}

// Number is the value of a key.
func (r Row) Number(key string) (float64, error) {
	v, err := strconv.ParseFloat(r[key], 64)
	if err != nil {
		return 0, fmt.Errorf("%s: no number: %q", key, r[key])
	}
	return v, nil
}

// prefix begins the line of a row.
const prefix = "bench "

// Write writes the file: the machine, how the run was made (the command line), the rows' lines, and the table that
// table writes.
func Write(w io.Writer, m Machine, command string, lines []string, table func(io.Writer) error) error {
	b := bufio.NewWriter(w)
	for _, field := range []struct{ key, value string }{
		{"date", m.Date.Format(time.RFC3339)}, {"cpu", m.CPU}, {"cores", strconv.Itoa(m.Cores)}, {"kernel", m.Kernel},
		{"go", m.Go}, {"envoy", m.Envoy}, {"load average", m.Load}, {"command", command},
	} {
		if field.value != "" {
			fmt.Fprintf(b, "# %s: %s\n", field.key, field.value) // faults show at Flush
		}
	}
	fmt.Fprintln(b)
	for _, l := range lines {
		fmt.Fprintln(b, l)
	}
	return errors.Join(table(b), b.Flush())
}

// maxLine bounds a line in bytes.
const maxLine = 1 << 20

// Read reads the rows of a file, or of what a run printed; other lines are passed over. A row with a word that is no
// key=value, or with a key twice, is an error.
func Read(r io.Reader) ([]Row, error) {
	var rows []Row
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		text, ok := strings.CutPrefix(lines.Text(), prefix)
		if !ok {
			continue
		}
		row := Row{}
		for word := range strings.FieldsSeq(text) {
			key, value, ok := strings.Cut(word, "=")
			if !ok || key == "" || value == "" {
				return nil, fmt.Errorf("line %d: %q: must be key=value", n, word)
			}
			if _, twice := row[key]; twice {
				return nil, fmt.Errorf("line %d: %s: given twice", n, key)
			}
			row[key] = value
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("after %d rows: %w", len(rows), err)
	}
	return rows, nil
}

// Find returns the one row that has these values.
func Find(rows []Row, values map[string]string) (Row, error) {
	var found []Row
	for _, r := range rows {
		if r.Is(values) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		var words []string
		for _, k := range slices.Sorted(maps.Keys(values)) {
			words = append(words, k+"="+values[k])
		}
		return nil, fmt.Errorf("%d rows with %s, want one", len(found), strings.Join(words, " "))
	}
	return found[0], nil
}
