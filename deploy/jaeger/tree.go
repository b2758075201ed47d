package jaeger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Tree writes spans as a tree, a line each: who made it, its name, when it began after the first one, and how long it took.
// A span whose parent is not among them is a root.
func Tree(spans []Span) []string {
	known := make(map[string]bool, len(spans))
	for _, s := range spans {
		known[s.ID] = true
	}
	below := make(map[string][]Span)
	var first time.Time
	for _, s := range spans {
		parent := s.Parent
		if !known[parent] || parent == s.ID {
			parent = ""
		}
		below[parent] = append(below[parent], s)
		if first.IsZero() || s.Start.Before(first) {
			first = s.Start
		}
	}
	t := tree{below: below, first: first}
	t.walk("", "")
	return t.align()
}

// tree is what Tree writes; every line's first part is a span's place and name.
type tree struct {
	below map[string][]Span
	first time.Time
	names []string
	times []string
}

// walk writes what hangs below a parent, behind a margin.
func (t *tree) walk(parent, margin string) {
	spans := t.below[parent]
	delete(t.below, parent) // spans that are each other's parents end here
	slices.SortStableFunc(spans, func(a, b Span) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(b.Duration, a.Duration))
	})
	for i, s := range spans {
		branch, next := "├─ ", "│  "
		if i == len(spans)-1 {
			branch, next = "└─ ", "   "
		}
		if parent == "" {
			branch, next = "", ""
		}
		t.names = append(t.names, margin+branch+s.Service+": "+s.Name)
		t.times = append(t.times, fmt.Sprintf("at %8.2f ms %9.2f ms", millis(s.Start.Sub(t.first)), millis(s.Duration)))
		t.walk(s.ID, margin+next)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// align puts the times below one another.
func (t *tree) align() []string {
	width := 0
	for _, name := range t.names {
		width = max(width, len([]rune(name)))
	}
	lines := make([]string, len(t.names))
	for i, name := range t.names {
		lines[i] = name + strings.Repeat(" ", width-len([]rune(name))+2) + t.times[i]
	}
	return lines
}
