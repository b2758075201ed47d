package approx

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

const shardCount = 128

// index knows which endpoint instance was sent which prefix. Each instance has an LRU of its own under its own lock; a
// sharded inverted index (hash → instances) answers look-ups, so that one costs no step per endpoint that does not match.
//
// Lock order: adoption, instance, shard. A look-up takes read locks of shards only.
type index struct {
	layout  blockhash.Layout
	members atomic.Pointer[members]
	shards  [shardCount]shard
	entries atomic.Int64 // runs in all LRUs
	evicted atomic.Int64 // runs that capacity pushed out

	adoption sync.Mutex // guards what follows
	capacity int        // of instances to come, in blocks
	nextSlot int
	freeSlot []int
	leaving  []*instance // no longer members, not buried yet
}

// members are the instances that the index keeps something for. It is immutable.
type members struct {
	// next is the lowest snapshot version that has not been adopted.
	next      uint64
	byOrdinal []*instance
	// slots is the slot of each ordinal, -1 for holes; ordinals is the ordinal of each slot.
	slots    []int32
	ordinals []int32
}

func newIndex(layout blockhash.Layout, capacity int) *index {
	x := &index{layout: layout, capacity: capacity}
	x.members.Store(&members{})
	return x
}

func (x *index) shardOf(key uint64) *shard { return &x.shards[key%shardCount] }

// adopt makes the index know the endpoints of a snapshot, unless it knows them or later ones already. Instances that
// went stop being looked up; sweep frees what they hold.
func (x *index) adopt(s *scheduling.Snapshot) {
	if x.members.Load().next > s.Version {
		return
	}
	x.adoption.Lock()
	defer x.adoption.Unlock()
	old := x.members.Load()
	if old.next > s.Version {
		return
	}
	next := &members{next: s.Version + 1, byOrdinal: make([]*instance, len(s.Endpoints))}
	for i, in := range old.byOrdinal {
		if in == nil {
			continue
		}
		if s.Holds(i, in.generation) {
			next.byOrdinal[i] = in
		} else {
			x.leaving = append(x.leaving, in)
		}
	}
	for i, e := range s.Endpoints {
		if e != nil && next.byOrdinal[i] == nil {
			next.byOrdinal[i] = x.newInstance(i, e.Generation, x.takeSlot())
		}
	}
	next.number(x.nextSlot)
	x.members.Store(next)
}

func (x *index) takeSlot() int {
	if n := len(x.freeSlot); n > 0 {
		slot := x.freeSlot[n-1]
		x.freeSlot = x.freeSlot[:n-1]
		return slot
	}
	x.nextSlot++
	return x.nextSlot - 1
}

func (m *members) number(slots int) {
	m.slots, m.ordinals = make([]int32, len(m.byOrdinal)), make([]int32, slots)
	for i, in := range m.byOrdinal {
		m.slots[i] = -1
		if in != nil {
			m.slots[i] = int32(in.slot)
			m.ordinals[in.slot] = int32(i)
		}
	}
}

// sweep frees what the instances that went hold. A slot is given away again only after that, so that nobody inherits.
func (x *index) sweep() {
	x.adoption.Lock()
	leaving := x.leaving
	x.leaving = nil
	x.adoption.Unlock()
	if len(leaving) == 0 {
		return
	}
	for _, in := range leaving {
		x.bury(in)
	}
	for i := range x.shards {
		x.shards[i].shrink()
	}
	x.adoption.Lock()
	defer x.adoption.Unlock()
	for _, in := range leaving {
		x.freeSlot = append(x.freeSlot, in.slot)
	}
}

// instanceOf is the instance behind an endpoint, or nil where the index does not have it (any more).
func (x *index) instanceOf(e *scheduling.Endpoint) *instance {
	return x.member(e.Ordinal, e.Generation)
}

func (x *index) member(ordinal int, generation uint64) *instance {
	m := x.members.Load()
	if uint(ordinal) < uint(len(m.byOrdinal)) {
		if in := m.byOrdinal[ordinal]; in != nil && in.generation == generation {
			return in
		}
	}
	return nil
}

// matchInfo is the column that a look-up fills.
type matchInfo = scheduling.Column[scheduling.PrefixCacheMatchInfo]

// lookup finds how many runs from the head each candidate holds and says so in the column. It uses p's hashes and scratch.
//
// What an instance holds has no gaps, so the sets of instances that hold run 0, run 1, … only shrink. That allows to
// skip: from a run that all instances still looked at hold, the search gallops to the next one that not all hold. A
// prompt costs a few probes per distinct match length rather than one per run.
func (x *index) lookup(c *scheduling.Cycle, p *prompt, column *matchInfo) {
	m := x.members.Load()
	alive, dropped := p.scratch((len(m.ordinals) + wordBits - 1) / wordBits)
	count := m.candidates(c, alive, column, p.info(0))
	runs := 0 // all in alive hold that many
	for count > 0 && runs < len(p.hashes) {
		key := p.hashes[runs]
		left := x.shardOf(key).narrow(key, alive, dropped)
		if left < count {
			m.tell(dropped, column, p.info(runs))
		}
		if count = left; count == 0 {
			return
		}
		runs = x.skip(p.hashes, runs+1, alive, count)
	}
	m.tell(alive, column, p.info(runs))
}

// candidates adds the slots of a cycle's candidates to alive and returns their number. Those that the index does not
// have hold nothing that it knows of.
func (m *members) candidates(c *scheduling.Cycle, alive []uint64, column *matchInfo, nothing scheduling.PrefixCacheMatchInfo) int {
	count := 0
	current := m.next == c.Snapshot.Version+1
	for o := c.Candidates.Next(0); o >= 0; o = c.Candidates.Next(o + 1) {
		if !current && !m.has(c.Snapshot, o) {
			column.Set(o, nothing)
			continue
		}
		slot := uint32(m.slots[o])
		alive[slot/wordBits] |= 1 << (slot % wordBits)
		count++
	}
	return count
}

// has reports whether an ordinal means the same instance in a snapshot of another time.
func (m *members) has(s *scheduling.Snapshot, ordinal int) bool {
	if ordinal >= len(m.byOrdinal) {
		return false
	}
	in := m.byOrdinal[ordinal]
	return in != nil && s.Holds(ordinal, in.generation)
}

// skip returns the largest number of runs, at least runs, that all slots in alive hold; all hold the first runs.
func (x *index) skip(hashes []uint64, runs int, alive []uint64, count int) int {
	missing := len(hashes) + 1 // the smallest number known not to be held
	for step := 1; runs < len(hashes); step *= 2 {
		try := min(runs+step, len(hashes))
		if !x.covers(hashes[try-1], alive, count) {
			missing = try
			break
		}
		runs = try
	}
	for runs+1 < missing {
		try := int(uint(runs+missing) / 2)
		if x.covers(hashes[try-1], alive, count) {
			runs = try
		} else {
			missing = try
		}
	}
	return runs
}

func (x *index) covers(key uint64, alive []uint64, count int) bool {
	return x.shardOf(key).covers(key, alive, count)
}

// tell gives a set of slots their value in the column.
func (m *members) tell(slots []uint64, column *matchInfo, info scheduling.PrefixCacheMatchInfo) {
	for w, word := range slots {
		for ; word != 0; word &= word - 1 {
			column.Set(int(m.ordinals[w*wordBits+bits.TrailingZeros64(word)]), info)
		}
	}
}

// size is the number of entries in the LRUs, of distinct hashes, of set words and of instances.
func (x *index) size() (entries, hashes, words, instances int) {
	for i := range x.shards {
		h, w := x.shards[i].size()
		hashes, words = hashes+h, words+w
	}
	for _, in := range x.members.Load().byOrdinal {
		if in != nil {
			instances++
		}
	}
	return int(x.entries.Load()), hashes, words, instances
}
