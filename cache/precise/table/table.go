// Package table is a map from 64-bit hashes to places, with a count: smaller than Go's map and with one memory access for
// a look-up.
package table

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// Table maps hashes, or names that are as good as hashes, to places. It is an open-addressed array of 16 bytes an entry,
// filled between 53 % and 80 % while it grows: 20 to 30 bytes an entry. It allocates only to grow. The zero value is
// empty.
type Table struct {
	entries []entry
	used    int
	// more is what counts hold beyond what fits an entry.
	more map[uint64]uint32
}

// entry is unused where its count, the lowest 8 bits of value, is 0.
type entry struct{ name, value uint64 }

const (
	countBits  = 8
	maxCount   = 1<<countBits - 1
	minEntries = 16
	entryBytes = 16
	moreBytes  = 24
	// spread makes neighbouring names far ones; any odd number with its bits mixed does.
	spread = 0x9e3779b97f4a7c15
	// maxIdle is the number of entries below which a table does not shrink.
	maxIdle = 1 << 14
	// maxKept is the number of entries that Clear keeps room for.
	maxKept = 1 << 17
)

// MaxPlace is one more than the largest place.
const MaxPlace = 1 << (64 - countBits)

// secret keeps an engine, whose names these may be, from choosing ones that all belong to one slot: there a look-up would
// cost as much as there are names.
var secret = rand.Uint64()

// home is the slot that a name belongs to.
func (t *Table) home(name uint64) int {
	high, low := bits.Mul64(name^secret, spread)
	slot, _ := bits.Mul64(high^low, uint64(len(t.entries)))
	return int(slot)
}

// Find is the slot of a name, good until the table is changed.
func (t *Table) Find(name uint64) (slot int, ok bool) {
	if len(t.entries) == 0 {
		return 0, false
	}
	for i := t.home(name); ; {
		e := &t.entries[i]
		if e.value&maxCount == 0 {
			return i, false
		}
		if e.name == name {
			return i, true
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
}

// Place is the place of the name in a slot.
func (t *Table) Place(slot int) uint64 { return t.entries[slot].value >> countBits }

// Move changes the place of the name in a slot.
func (t *Table) Move(slot int, place uint64) {
	e := &t.entries[slot]
	e.value = place<<countBits | e.value&maxCount
}

// Get is the place of a name.
func (t *Table) Get(name uint64) (place uint64, ok bool) {
	i, ok := t.Find(name)
	if !ok {
		return 0, false
	}
	return t.Place(i), true
}

// Add puts a name in that is not there, with a count of one.
func (t *Table) Add(name, place uint64) {
	if t.used >= len(t.entries)*4/5 {
		t.resize(max(minEntries, len(t.entries)*3/2))
	}
	i, _ := t.Find(name)
	t.entries[i] = entry{name, place<<countBits | 1}
	t.used++
}

// Again counts one more of the name in a slot.
func (t *Table) Again(slot int) {
	e := &t.entries[slot]
	if e.value&maxCount < maxCount {
		e.value++
		return
	}
	if t.more == nil {
		t.more = make(map[uint64]uint32)
	}
	if n := t.more[e.name]; n < math.MaxUint32 {
		t.more[e.name] = n + 1
	}
}

// Settle makes the count of the name in a slot one.
func (t *Table) Settle(slot int) {
	e := &t.entries[slot]
	e.value = e.value&^maxCount | 1
	delete(t.more, e.name)
}

// Less counts one less of the name in a slot, and takes it out where none is left.
func (t *Table) Less(slot int) (gone bool) {
	e := &t.entries[slot]
	if n := t.more[e.name]; n > 0 { // reading a nil map is fine, and it is nearly always nil
		if n == 1 {
			delete(t.more, e.name)
		} else {
			t.more[e.name] = n - 1
		}
		return false
	}
	if e.value--; e.value&maxCount > 0 {
		return false
	}
	t.close(slot)
	return true
}

// Drop takes the name in a slot out, whatever its count.
func (t *Table) Drop(slot int) {
	delete(t.more, t.entries[slot].name)
	t.close(slot)
}

// close moves the entries behind an emptied slot up, so that none is cut off from its home.
func (t *Table) close(hole int) {
	t.used--
	n := len(t.entries)
	for i := hole; ; {
		if i++; i == n {
			i = 0
		}
		e := t.entries[i]
		if e.value&maxCount == 0 {
			break
		}
		// The entry may move unless its home lies behind the hole and not behind the entry itself, going round.
		if t.distance(t.home(e.name), i) >= t.distance(hole, i) {
			t.entries[hole] = e
			hole = i
		}
	}
	t.entries[hole] = entry{}
	if n > maxIdle && t.used < n/8 {
		t.resize(n / 2)
	}
}

// distance is how far slot b lies behind slot a, going round.
func (t *Table) distance(a, b int) int {
	if b < a {
		b += len(t.entries)
	}
	return b - a
}

func (t *Table) resize(n int) {
	old := t.entries
	t.entries = make([]entry, n)
	for _, e := range old {
		if e.value&maxCount != 0 {
			i, _ := t.Find(e.name)
			t.entries[i] = e
		}
	}
}

// Clear takes everything out and keeps the memory, up to a bound.
func (t *Table) Clear() {
	if len(t.entries) > maxKept {
		t.entries = nil
	}
	clear(t.entries)
	t.used, t.more = 0, nil
}

// All calls f with every name and its place, in no order, until f returns false. The table must not be changed meanwhile.
func (t *Table) All(f func(name, place uint64) bool) {
	for _, e := range t.entries {
		if e.value&maxCount != 0 && !f(e.name, e.value>>countBits) {
			return
		}
	}
}

// After is the first name at or behind a slot, going round, and its slot; of an empty table there is none.
func (t *Table) After(slot int) (found int, name uint64, ok bool) {
	n := len(t.entries)
	for i := range n {
		at := (slot + i) % n
		if e := t.entries[at]; e.value&maxCount != 0 {
			return at, e.name, true
		}
	}
	return 0, 0, false
}

// Len is the number of names.
func (t *Table) Len() int { return t.used }

// Bytes is the table's memory.
func (t *Table) Bytes() int { return cap(t.entries)*entryBytes + len(t.more)*moreBytes }
