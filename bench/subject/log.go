package subject

import (
	"bytes"
	"encoding/json"
	"sync"
)

// tailBytes is how much of a server's output is kept.
const tailBytes = 16 << 10

// addresses are where a server says it serves.
type addresses struct{ GRPC, Admin string }

// log keeps the end of what a server writes, and finds its addresses in it.
type log struct {
	serving chan addresses

	mu    sync.Mutex
	kept  []byte
	line  []byte // begun and not yet ended, while the addresses are sought
	found bool
}

func newLog() *log { return &log{serving: make(chan addresses, 1)} }

// Write never fails.
func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, b...)
	if over := len(l.kept) - tailBytes; over > 0 {
		l.kept = append(l.kept[:0], l.kept[over:]...)
	}
	for rest := b; !l.found && len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		l.line = append(l.line, line...)
		if ended || len(l.line) > tailBytes {
			l.read()
			l.line = l.line[:0]
		}
		rest = after
	}
	return len(b), nil
}

// read looks for the addresses in a whole line.
func (l *log) read() {
	var record struct {
		Msg string
		addresses
	}
	if json.Unmarshal(l.line, &record) != nil || record.Msg != "serving" || record.GRPC == "" || record.Admin == "" {
		return
	}
	l.found = true
	l.serving <- record.addresses
}

func (l *log) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}
