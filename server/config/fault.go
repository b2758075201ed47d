package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	// File is the file's name as given to Parse.
	File string
	// Line and Column, from 1, say where; 0 where nobody wrote what is at fault.
	Line, Column int
	// Path is the key's path, for example plugins[0].parameters.affinityThreshold; it may be empty.
	Path string
	// Message says what is wrong.
	Message string
}

// Error is "file:line:column: path: message".
func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	b.WriteString(": ")
	if f.Path != "" {
		b.WriteString(f.Path)
		b.WriteString(": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

// Faults is all that is wrong with a file, in the order of its lines.
type Faults []Fault

// Error has one fault a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// maxFaults bounds how many faults are reported; a file can be wrong in every line.
const maxFaults = 100

// err is f as an error, sorted and without repetitions; nil where nothing is wrong.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	f = f.sorted()
	if more := len(f) - maxFaults; more > 0 {
		next := f[maxFaults]
		next.Path, next.Message = "", fmt.Sprintf("%d more faults from here on", more)
		f = append(f[:maxFaults:maxFaults], next)
	}
	return f
}

func (f Faults) sorted() Faults {
	slices.SortStableFunc(f, func(a, b Fault) int {
		// What has no position comes last: it often follows from what has one.
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(f)
}

// origin is a place in a file.
type origin struct {
	file         string
	line, column int
	path         string
}

func (o origin) fault(format string, args ...any) Fault {
	return Fault{File: o.file, Line: o.line, Column: o.column, Path: o.path, Message: fmt.Sprintf(format, args...)}
}

// String is "file:line:column: path", the form that package scheduling puts before its errors.
func (o origin) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", o.file, o.line, o.column, o.path)
}
