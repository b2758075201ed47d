package ledger

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-epp/sluice/scheduling"
)

// counter holds what is in flight on one endpoint instance. A flight keeps a pointer to the counter that it charged; a
// counter that is no longer in the table lives until its last flight ends, and nobody else sees it.
type counter struct {
	generation uint64
	address    string
	requests   atomic.Int64
	tokens     atomic.Int64
	decoding   atomic.Int64
	_          [16]byte // a cache line each: counters of different endpoints are written by different streams
}

func newCounter(e *scheduling.Endpoint) *counter {
	return &counter{generation: e.Generation, address: e.Address}
}

func (k *counter) load() scheduling.InFlightLoad {
	return scheduling.InFlightLoad{Requests: k.requests.Load(), Tokens: k.tokens.Load(), Decoding: k.decoding.Load()}
}

// endReasons is the number of values of scheduling.EndReason.
const endReasons = int(scheduling.EndUnseen) + 1

// table holds the counters of the current endpoints. It outlives the plugin that made it: the plugin of the next
// configuration takes it over, while flights of the old one still release through it. Reading takes no lock.
type table struct {
	counters atomic.Pointer[[]*counter] // by ordinal, nil where there is none; replaced, never changed in place

	mu      sync.Mutex // serialises replacing; nothing is called while it is held
	version uint64     // of the newest snapshot heard of
	seen    uint64     // the highest generation in any snapshot heard of

	withoutMatch  atomic.Uint64
	withoutTokens atomic.Uint64
	releases      [endReasons]atomic.Uint64
}

func newTable() *table {
	t := &table{}
	t.counters.Store(&[]*counter{})
	return t
}

// find returns the counter of an instance, or nil when the table has none.
func (t *table) find(ordinal int, generation uint64) *counter {
	return findIn(*t.counters.Load(), ordinal, generation)
}

func findIn(counters []*counter, ordinal int, generation uint64) *counter {
	if uint(ordinal) >= uint(len(counters)) {
		return nil
	}
	if k := counters[ordinal]; k != nil && k.generation == generation {
		return k
	}
	return nil
}

// take returns the counter to charge for an instance. An instance that no snapshot has told of yet gets one in the
// table; one that has gone (the pick was made on an older snapshot) gets one of its own, which nobody else sees.
func (t *table) take(e *scheduling.Endpoint) *counter {
	if k := t.find(e.Ordinal, e.Generation); k != nil {
		return k
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.find(e.Ordinal, e.Generation); k != nil {
		return k
	}
	fresh := newCounter(e)
	counters := *t.counters.Load()
	if e.Generation <= t.seen {
		return fresh
	}
	if e.Ordinal < len(counters) && counters[e.Ordinal] != nil && counters[e.Ordinal].generation > e.Generation {
		return fresh
	}
	next := make([]*counter, max(len(counters), e.Ordinal+1))
	copy(next, counters)
	next[e.Ordinal] = fresh
	t.counters.Store(&next)
	return fresh
}

// follow makes the table hold exactly the snapshot's endpoints, ready or not: an instance that stays keeps its counter.
// A counter newer than any snapshot heard of stays as well: the snapshot that brings it is on its way.
func (t *table) follow(s *scheduling.Snapshot) {
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
	old := *t.counters.Load()
	next := make([]*counter, max(len(s.Endpoints), len(old)))
	for i := range next {
		switch {
		case i < len(old) && old[i] != nil && old[i].generation > t.seen:
			next[i] = old[i]
		case i < len(s.Endpoints) && s.Endpoints[i] != nil:
			if next[i] = t.find(i, s.Endpoints[i].Generation); next[i] == nil {
				next[i] = newCounter(s.Endpoints[i])
			}
		}
	}
	for len(next) > 0 && next[len(next)-1] == nil {
		next = next[:len(next)-1]
	}
	next = slices.Clip(next)
	t.counters.Store(&next)
}
