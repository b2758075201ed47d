package openai

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Bounds of a names set: what is past them is an ordinary new string each time.
const (
	maxNames      = 1024
	maxNameLength = 256
)

// names keeps one string for each of the first maxNames names seen, so that reading a known name allocates nothing. It
// is safe for concurrent use: readers take no lock.
type names struct {
	known atomic.Pointer[map[string]string]
	mu    sync.Mutex
}

func newNames(known ...string) *names {
	n := &names{}
	m := make(map[string]string, len(known))
	for _, name := range known {
		m[name] = name
	}
	n.known.Store(&m)
	return n
}

// of is b as a string that does not alias b.
func (n *names) of(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	known := *n.known.Load()
	if name, ok := known[string(b)]; ok {
		return name
	}
	name := string(b)
	if len(name) <= maxNameLength && len(known) < maxNames {
		n.add(name)
	}
	return name
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := *n.known.Load()
	if len(known) >= maxNames {
		return
	}
	grown := maps.Clone(known)
	grown[name] = name
	n.known.Store(&grown)
}

func (n *names) len() int { return len(*n.known.Load()) }
