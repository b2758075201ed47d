package scheduling

import (
	"iter"
	"math/bits"
)

const wordBits = 64

// Set is a set of endpoint ordinals, one bit each. Copies of a Set share its words: use CopyFrom for a value of its own.
// The zero Set is empty and cannot grow; NewSet makes one with room.
type Set struct{ words []uint64 }

// NewSet returns an empty set with room for the ordinals 0 to n-1.
func NewSet(n int) Set { return Set{words: make([]uint64, wordsFor(n))} }

func wordsFor(n int) int { return (n + wordBits - 1) / wordBits }

// resized returns s emptied, with room for n ordinals, reusing its memory where it is large enough.
func (s Set) resized(n int) Set {
	w := wordsFor(n)
	if cap(s.words) < w {
		return Set{words: make([]uint64, w)}
	}
	s.words = s.words[:w]
	clear(s.words)
	return s
}

// Has reports whether ordinal i is in the set. Ordinals out of range are not.
func (s Set) Has(i int) bool {
	w := uint(i) / wordBits
	return w < uint(len(s.words)) && s.words[w]&(1<<(uint(i)%wordBits)) != 0
}

// Add puts ordinal i, which must be within the room the set was made with, into the set.
func (s Set) Add(i int) { s.words[uint(i)/wordBits] |= 1 << (uint(i) % wordBits) }

// Remove takes ordinal i out of the set; one that is not in it changes nothing.
func (s Set) Remove(i int) {
	if w := uint(i) / wordBits; w < uint(len(s.words)) {
		s.words[w] &^= 1 << (uint(i) % wordBits)
	}
}

// Len is the number of ordinals in the set.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Empty reports whether the set holds nothing.
func (s Set) Empty() bool {
	for _, w := range s.words {
		if w != 0 {
			return false
		}
	}
	return true
}

// Next is the smallest ordinal in the set that is at least i, or -1. `for i := s.Next(0); i >= 0; i = s.Next(i + 1)`
// walks the set in ascending order.
func (s Set) Next(i int) int {
	w := uint(i) / wordBits
	if w >= uint(len(s.words)) {
		return -1
	}
	if word := s.words[w] >> (uint(i) % wordBits); word != 0 {
		return i + bits.TrailingZeros64(word)
	}
	for w++; w < uint(len(s.words)); w++ {
		if s.words[w] != 0 {
			return int(w)*wordBits + bits.TrailingZeros64(s.words[w])
		}
	}
	return -1
}

// All walks the set in ascending order. The walk may remove the ordinal that it stands on; what else changes during it
// may or may not be seen.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w, word := range s.words { // word by word: it inlines into a loop of a few instructions
			for ; word != 0; word &= word - 1 {
				if !yield(w*wordBits + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// Clear empties the set.
func (s Set) Clear() { clear(s.words) }

// CopyFrom makes s hold what o holds. Ordinals of o beyond s's room are dropped.
func (s Set) CopyFrom(o Set) {
	n := copy(s.words, o.words)
	clear(s.words[n:])
}

// IntersectWith keeps in s only what is in o as well.
func (s Set) IntersectWith(o Set) {
	for i := range s.words {
		if i < len(o.words) {
			s.words[i] &= o.words[i]
		} else {
			s.words[i] = 0
		}
	}
}

// Subtract takes everything that is in o out of s.
func (s Set) Subtract(o Set) {
	for i := range min(len(s.words), len(o.words)) {
		s.words[i] &^= o.words[i]
	}
}
