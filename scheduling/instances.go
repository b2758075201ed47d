package scheduling

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
)

// Instance is what a plugin keeps of one endpoint instance.
type Instance[T any] struct {
	// Endpoint is the instance as it was when it was first heard of: its address, ordinal and generation.
	Endpoint *Endpoint
	// Value is the plugin's; it starts as the zero value.
	Value T
}

// Instances keep a value for every endpoint instance of the current snapshot. Reading takes no lock. Whoever holds an
// instance that went may go on using it; nobody else sees it. The zero value is ready to use; it must not be copied.
type Instances[T any] struct {
	list atomic.Pointer[[]*Instance[T]] // by ordinal, nil where there is none; replaced, never changed in place

	mu      sync.Mutex // serialises replacing; nothing is called while it is held
	version uint64     // of the newest snapshot heard of
	seen    uint64     // the highest generation in any snapshot heard of
}

// All are the current instances by ordinal, nil where there is none. The slice must not be changed.
func (t *Instances[T]) All() []*Instance[T] {
	if list := t.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Shown walks the current instances by ordinal, one of each address, for metrics: two have the same one while the snapshot that
// brings the newer is on its way, and the older is left out then.
func (t *Instances[T]) Shown() iter.Seq2[int, *Instance[T]] {
	return func(yield func(int, *Instance[T]) bool) {
		all := t.All()
		newest := make(map[string]uint64, len(all))
		for _, in := range all {
			if in != nil {
				newest[in.Endpoint.Address] = max(newest[in.Endpoint.Address], in.Endpoint.Generation)
			}
		}
		for i, in := range all {
			if in != nil && newest[in.Endpoint.Address] == in.Endpoint.Generation && !yield(i, in) {
				return
			}
		}
	}
}

// Find returns an instance, or nil where there is none (any more).
func (t *Instances[T]) Find(ordinal int, generation uint64) *Instance[T] {
	return FindInstance(t.All(), ordinal, generation)
}

// FindInstance is Find in what All returned, for a loop over many.
func FindInstance[T any](all []*Instance[T], ordinal int, generation uint64) *Instance[T] {
	if uint(ordinal) >= uint(len(all)) {
		return nil
	}
	if in := all[ordinal]; in != nil && in.Endpoint.Generation == generation {
		return in
	}
	return nil
}

// Take returns an endpoint's instance. One that no snapshot has told of yet is added; one that has gone (the pick was made
// on an older snapshot) gets a value of its own, which nobody else sees.
func (t *Instances[T]) Take(e *Endpoint) *Instance[T] {
	if in := t.Find(e.Ordinal, e.Generation); in != nil {
		return in
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.Find(e.Ordinal, e.Generation); in != nil {
		return in
	}
	fresh := &Instance[T]{Endpoint: e}
	all := t.All()
	if e.Generation <= t.seen {
		return fresh
	}
	if e.Ordinal < len(all) && all[e.Ordinal] != nil && all[e.Ordinal].Endpoint.Generation > e.Generation {
		return fresh
	}
	next := make([]*Instance[T], max(len(all), e.Ordinal+1))
	copy(next, all)
	next[e.Ordinal] = fresh
	t.list.Store(&next)
	return fresh
}

// Follow makes the table hold exactly the snapshot's endpoints, ready or not: an instance that stays keeps its value.
// One newer than any snapshot heard of stays as well: the snapshot that brings it is on its way.
func (t *Instances[T]) Follow(s *Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.Version < t.version {
		return
	}
	t.version = s.Version
	for _, e := range s.Endpoints {
		if e != nil {
			t.seen = max(t.seen, e.Generation)
		}
	}
	old := t.All()
	next := make([]*Instance[T], max(len(s.Endpoints), len(old)))
	for i := range next {
		switch {
		case i < len(old) && old[i] != nil && old[i].Endpoint.Generation > t.seen:
			next[i] = old[i]
		case i < len(s.Endpoints) && s.Endpoints[i] != nil:
			if next[i] = t.Find(i, s.Endpoints[i].Generation); next[i] == nil {
				next[i] = &Instance[T]{Endpoint: s.Endpoints[i]}
			}
		}
	}
	for len(next) > 0 && next[len(next)-1] == nil {
		next = next[:len(next)-1]
	}
	next = slices.Clip(next)
	t.list.Store(&next)
}
