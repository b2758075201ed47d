package approx

import (
	"math/bits"
	"sync"
)

const wordBits = 64

// shard is a part of the inverted index: which endpoints (by slot) hold a hash. Most hashes are held by one endpoint and
// cost a map slot of 12 bytes without pointers; the others refer to a bit set.
type shard struct {
	mu sync.RWMutex
	// holders maps a hash to its one holder's slot, or, with manyBit set, to a set in sets.
	holders map[uint64]uint32
	// sets are bit sets of stride words each, and free lists the unused ones.
	sets   []uint64
	stride int
	free   []uint32
	// peak is the largest len(holders) since the maps were made; a map does not give memory back by itself.
	peak int

	_ [40]byte // keeps neighbours' locks off this one's cache line
}

const manyBit = 1 << 31

// shrinkFloor is the number of hashes below which a shard is not worth remaking.
const shrinkFloor = 64

func (s *shard) set(i uint32) []uint64 {
	at := int(i) * s.stride
	return s.sets[at : at+s.stride]
}

// add makes slot a holder of key.
func (s *shard) add(key uint64, slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.holders[key]
	switch {
	case !ok:
		if s.holders == nil {
			s.holders = make(map[uint64]uint32)
		}
		s.holders[key] = uint32(slot)
		s.peak = max(s.peak, len(s.holders))
	case v&manyBit != 0:
		s.widen(slot)
		s.set(v &^ manyBit)[slot/wordBits] |= 1 << (slot % wordBits)
	case int(v) != slot:
		s.widen(max(slot, int(v)))
		i := s.newSet()
		set := s.set(i)
		set[v/wordBits] |= 1 << (v % wordBits)
		set[slot/wordBits] |= 1 << (slot % wordBits)
		s.holders[key] = i | manyBit
	}
}

// remove makes slot no holder of key.
func (s *shard) remove(key uint64, slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.holders[key]
	if !ok {
		return
	}
	if v&manyBit == 0 {
		if int(v) == slot {
			delete(s.holders, key)
		}
		return
	}
	i := v &^ manyBit
	set := s.set(i)
	if slot/wordBits < len(set) {
		set[slot/wordBits] &^= 1 << (slot % wordBits)
	}
	if last, one := only(set); one {
		clear(set)
		s.free = append(s.free, i)
		s.holders[key] = uint32(last)
	}
}

// only returns a set's one member; one is false where it has more.
func only(set []uint64) (member int, one bool) {
	for w, word := range set {
		if word == 0 {
			continue
		}
		if one || word&(word-1) != 0 {
			return 0, false
		}
		member, one = w*wordBits+bits.TrailingZeros64(word), true
	}
	return member, one
}

// widen makes room for slot in every set.
func (s *shard) widen(slot int) {
	stride := slot/wordBits + 1
	if stride <= s.stride {
		return
	}
	if s.stride > 0 {
		wider := make([]uint64, len(s.sets)/s.stride*stride)
		for i := range len(s.sets) / s.stride {
			copy(wider[i*stride:], s.sets[i*s.stride:(i+1)*s.stride])
		}
		s.sets = wider
	}
	s.stride = stride
}

func (s *shard) newSet() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	i := uint32(len(s.sets) / s.stride)
	for range s.stride {
		s.sets = append(s.sets, 0)
	}
	return i
}

// covers reports whether every slot in alive, of which there are count, holds key.
func (s *shard) covers(key uint64, alive []uint64, count int) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.holders[key]
	if !ok {
		return false
	}
	if v&manyBit == 0 {
		return count == 1 && int(v/wordBits) < len(alive) && alive[v/wordBits]&(1<<(v%wordBits)) != 0
	}
	set := s.set(v &^ manyBit)
	for w, word := range alive {
		if w >= len(set) {
			if word != 0 {
				return false
			}
			continue
		}
		if word&^set[w] != 0 {
			return false
		}
	}
	return true
}

// narrow moves the slots that do not hold key from alive to dropped, overwriting dropped, and returns how many stay.
func (s *shard) narrow(key uint64, alive, dropped []uint64) (count int) {
	copy(dropped, alive)
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.holders[key]
	switch {
	case !ok:
		clear(alive)
	case v&manyBit == 0:
		clear(alive)
		if w := int(v / wordBits); w < len(alive) {
			alive[w] = dropped[w] & (1 << (v % wordBits))
		}
	default:
		set := s.set(v &^ manyBit)
		n := min(len(set), len(alive))
		for w := range n {
			alive[w] &= set[w]
		}
		clear(alive[n:])
	}
	for w := range alive {
		dropped[w] &^= alive[w]
		count += bits.OnesCount64(alive[w])
	}
	return count
}

// shrink remakes the shard where it has become much emptier than it was.
func (s *shard) shrink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peak < shrinkFloor || len(s.holders) > s.peak/4 {
		return
	}
	holders, sets := s.holders, s.sets
	s.holders = make(map[uint64]uint32, len(holders))
	s.sets, s.free, s.peak = nil, nil, len(holders)
	for key, v := range holders {
		if v&manyBit != 0 {
			at := int(v&^manyBit) * s.stride
			i := s.newSet()
			copy(s.set(i), sets[at:at+s.stride])
			v = i | manyBit
		}
		s.holders[key] = v
	}
}

// size is the number of hashes and of set words in use.
func (s *shard) size() (hashes, words int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.holders), len(s.sets)
}
