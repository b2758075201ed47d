package approx

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// instance is what the index believes one endpoint instance's cache to hold: an LRU of run hashes.
//
// A prompt's runs are put in tail first, so a run is always more recent than those behind it: what is forgotten first is
// a tail, and whatever the LRU holds, it holds from the head on without gaps.
type instance struct {
	ordinal    int
	generation uint64
	slot       int // its bit in the inverted index

	mu  sync.Mutex // taken before a shard's lock
	lru *simplelru.LRU[uint64, mark]
	// blocks is the sum of the widths of all runs in lru; eviction keeps it at or below capacity.
	blocks   int
	capacity int
	tuned    bool // capacity is what the engine said
	gone     bool // the endpoint has left: nothing may be added any more
}

// mark is what the LRU keeps per run.
type mark struct {
	// flight is the one that put the run in, 0 once another one used it too.
	flight uint32
	// width is the run's number of blocks.
	width uint32
}

func (x *index) newInstance(ordinal int, generation uint64, slot int) *instance {
	in := &instance{ordinal: ordinal, generation: generation, slot: slot, capacity: x.capacity}
	// Capacity counts blocks, not runs, so record evicts by itself and the LRU's own bound stays out of the way. The
	// constructor fails on a size below 1 only.
	in.lru, _ = simplelru.NewLRU(math.MaxInt, func(key uint64, m mark) {
		x.shardOf(key).remove(key, slot)
		in.blocks -= int(m.width)
		x.entries.Add(-1)
	})
	return in
}

// record makes the runs of a prompt the most recent ones of an instance, and returns the number of the first run that
// was new to it; all behind it were too.
func (x *index) record(in *instance, hashes []uint64, flight uint32) (firstNew int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.gone {
		return len(hashes)
	}
	n := x.runsWithin(in.capacity, len(hashes))
	firstNew = n
	for i := n - 1; i >= 0; i-- {
		key := hashes[i]
		if m, ok := in.lru.Get(key); ok {
			if m.flight != 0 && m.flight != flight {
				in.lru.Add(key, mark{width: m.width})
			}
			continue
		}
		firstNew = i
		width := x.layout.Width(i)
		in.lru.Add(key, mark{flight: flight, width: uint32(width)})
		in.blocks += width
		x.entries.Add(1)
		x.shardOf(key).add(key, in.slot)
	}
	x.evict(in)
	return firstNew
}

// runsWithin is the number of the first n runs that together fit a capacity in blocks.
func (x *index) runsWithin(capacity, n int) int {
	for n > 0 && x.layout.Blocks(n) > capacity {
		n--
	}
	return n
}

// evict forgets the oldest runs until the rest fits. The instance's lock must be held.
func (x *index) evict(in *instance) {
	n := int64(0)
	for in.blocks > in.capacity {
		in.lru.RemoveOldest()
		n++
	}
	if n > 0 {
		x.evicted.Add(n)
	}
}

// forget takes back what a flight put in: its new runs that nobody else has used since. Whoever used a run used those in
// front of it too, so no gap arises.
func (x *index) forget(in *instance, hashes []uint64, firstNew int, flight uint32) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.gone {
		return
	}
	for i := len(hashes) - 1; i >= firstNew; i-- {
		if m, ok := in.lru.Peek(hashes[i]); ok && m.flight == flight && flight != 0 {
			in.lru.Remove(hashes[i])
		}
	}
}

// resize changes an instance's capacity.
func (x *index) resize(in *instance, capacity int, tuned bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.capacity, in.tuned = capacity, tuned
	if !in.gone {
		x.evict(in)
	}
}

// empty forgets everything that an instance holds; what is recorded from now on counts.
func (x *index) empty(in *instance) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.gone {
		in.lru.Purge()
	}
}

// bury frees everything that an instance holds.
func (x *index) bury(in *instance) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.gone = true
	in.lru.Purge()
	in.lru = nil
}
