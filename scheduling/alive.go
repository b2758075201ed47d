package scheduling

import (
	"slices"
	"sync"
)

// Alive are the plugins of one type that were built and not closed yet, for a metrics collector, which outlives every
// configuration. The zero value is ready to use.
type Alive[P comparable] struct {
	mu      sync.Mutex
	plugins []namedPlugin[P] // in order of creation
}

type namedPlugin[P any] struct {
	name   string
	plugin P
}

// Add notes a plugin that was built.
func (a *Alive[P]) Add(name string, plugin P) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.plugins = append(a.plugins, namedPlugin[P]{name, plugin})
}

// Remove forgets a plugin that was closed.
func (a *Alive[P]) Remove(plugin P) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.plugins = slices.DeleteFunc(a.plugins, func(n namedPlugin[P]) bool { return n.plugin == plugin })
}

// Current are the plugins that count, in order of creation: during a reload two of one name exist, and the later does.
func (a *Alive[P]) Current() []P {
	a.mu.Lock()
	defer a.mu.Unlock()
	var current []P
	for i, n := range a.plugins {
		later := a.plugins[i+1:]
		if !slices.ContainsFunc(later, func(m namedPlugin[P]) bool { return m.name == n.name }) {
			current = append(current, n.plugin)
		}
	}
	return current
}
