package precise

import "sync"

// maxAdapters is the number of adapters that are told from models.
const maxAdapters = 1 << 16

// adapters tells adapters from models: a request names either in the same field, and an engine's events name adapters
// only. Where an engine has listed its models, what it did not list is an adapter; before that, what events have named as
// one.
type adapters struct {
	mu    sync.RWMutex
	named map[uint64]struct{} // by keys.adapter
	bases map[string]struct{}
}

// see notes an adapter that an event names; it reports false where there is no room to, and the event's blocks must not
// be used then: they would be taken for the base model's.
func (a *adapters) see(key uint64) bool {
	a.mu.RLock()
	_, ok := a.named[key]
	a.mu.RUnlock()
	if ok {
		return true
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
	return ok
}

// maxBases bounds the names of models.
const maxBases = 4096

// list notes the names of models that are no adapters, as an engine lists them.
func (a *adapters) list(bases []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bases == nil {
		a.bases = make(map[string]struct{})
	}
	for _, name := range bases {
		if len(a.bases) < maxBases {
			a.bases[name] = struct{}{}
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
