package telemetry

import (
	"strings"
	"sync"
)

// OtherLabel is the value that a label takes once its bound is reached.
const OtherLabel = "other"

// DefaultLabelValues bounds how many values a label that clients can influence takes.
const DefaultLabelValues = 1000

// MaxLabelBytes bounds the length of such a value; longer ones are cut.
const MaxLabelBytes = 256

// Label bounds the values of one metric label, in number and length, so that no client can grow the metrics page at will.
// Values that the configuration names always keep their own.
type Label struct {
	mu    sync.RWMutex
	known map[string]string
	room  int // values that may still be added
}

// NewLabel returns a label with room for limit values beside the configured ones.
func NewLabel(limit int, configured ...string) *Label {
	l := &Label{known: make(map[string]string), room: limit}
	for _, v := range configured {
		l.known[v] = v
	}
	return l
}

// Known is v itself where it has a label already, and OtherLabel where not: for what has not proved to exist.
func (l *Label) Known(v string) string {
	if v == "" {
		return "unknown"
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if known, ok := l.known[v]; ok {
		return known
	}
	return OtherLabel
}

// Value is v itself while there is room, and OtherLabel afterwards. An empty value is "unknown". What is not UTF-8 becomes
// U+FFFD: Prometheus panics at such a label.
func (l *Label) Value(v string) string {
	if v == "" {
		return "unknown"
	}
	l.mu.RLock()
	known, ok := l.known[v]
	full := l.room == 0
	l.mu.RUnlock()
	switch {
	case ok:
		return known
	case full:
		return OtherLabel
	}
	return l.add(strings.ToValidUTF8(v[:min(len(v), MaxLabelBytes)], "\uFFFD"))
}

func (l *Label) add(v string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.known[v]; ok {
		return known
	}
	if l.room == 0 {
		return OtherLabel
	}
	l.room--
	v = string(append([]byte(nil), v...)) // what is kept for good must not hold a request's memory
	l.known[v] = v
	return v
}

// Len is the number of values in use.
func (l *Label) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.known)
}
