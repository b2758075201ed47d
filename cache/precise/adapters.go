package precise

import (
	"maps"
	"sync"
)

// maxAdapters is the number of adapters that are told from models by events.
const maxAdapters = 1 << 16

// adapters tells adapters from models: a request names either in the same field, and an engine's events name adapters
// only. Where any engine has listed its models, what none lists is an adapter; before that, what events have named as one.
type adapters struct {
	mu    sync.RWMutex
	named map[uint64]struct{} // by keys.adapter
	bases map[string]int      // engines that list it; 0: the last one that did is gone, and no other has listed any
}

// see notes an adapter that an event names; it reports false where there is no room to while it is needed, and the event's
// blocks must not be used then: they would be taken for the base model's.
func (a *adapters) see(key uint64) bool {
	a.mu.RLock()
	_, ok := a.named[key]
	listed, full := len(a.bases) > 0, len(a.named) >= maxAdapters
	a.mu.RUnlock()
	if ok || full {
		return ok || listed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.named == nil {
		a.named = make(map[uint64]struct{})
	}
	if len(a.named) < maxAdapters {
		a.named[key] = struct{}{}
		ok = true
	}
	return ok || len(a.bases) > 0
}

// list notes the names of models that are no adapters, as an engine lists them.
func (a *adapters) list(bases []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bases == nil {
		a.bases = make(map[string]int)
	}
	for _, name := range bases {
		a.bases[name]++
	}
	a.tidy()
}

// unlist takes back what an engine listed that is gone. The last list of all stays until there is another one: without
// any, adapters would be taken for models while all engines are replaced.
func (a *adapters) unlist(bases []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range bases {
		a.bases[name]--
	}
	a.tidy()
}

// tidy drops the names that nobody lists, unless nobody lists any.
func (a *adapters) tidy() {
	for _, engines := range a.bases {
		if engines > 0 {
			maps.DeleteFunc(a.bases, func(_ string, engines int) bool { return engines <= 0 })
			return
		}
	}
}

// isAdapter reports whether a request for a name, with a key, is one for an adapter.
func (a *adapters) isAdapter(name string, key uint64) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if len(a.bases) > 0 {
		_, base := a.bases[name]
		return !base
	}
	_, named := a.named[key]
	return named
}
