package approx

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

const testSlots = 200 // more than three words, so that shards with narrower sets meet wider questions

func setOf(members map[int]bool) []uint64 {
	words := make([]uint64, (testSlots+wordBits-1)/wordBits)
	for slot, in := range members {
		if in {
			words[slot/wordBits] |= 1 << (slot % wordBits)
		}
	}
	return words
}

func count(words []uint64) (n int) {
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

func TestShardAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shard{}
		model := map[uint64]map[int]bool{}
		slot := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, testSlots-1))
		key := rapid.Uint64Range(0, 4)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k, sl := key.Draw(t, "key"), slot.Draw(t, "slot")
				s.add(k, sl)
				if model[k] == nil {
					model[k] = map[int]bool{}
				}
				model[k][sl] = true
			},
			"remove": func(t *rapid.T) {
				k, sl := key.Draw(t, "key"), slot.Draw(t, "slot")
				s.remove(k, sl)
				delete(model[k], sl)
			},
			"shrink": func(*rapid.T) {
				s.peak = max(s.peak, 4*len(s.holders)+shrinkFloor) // as if it had been full
				s.shrink()
			},
			"ask": func(t *rapid.T) {
				k := key.Draw(t, "key")
				members := map[int]bool{}
				for _, sl := range rapid.SliceOfN(slot, 1, 8).Draw(t, "alive") {
					members[sl] = true
				}
				alive, dropped := setOf(members), setOf(map[int]bool{7: true})
				all := true
				stay, leave := map[int]bool{}, map[int]bool{}
				for sl := range members {
					all = all && model[k][sl]
					stay[sl], leave[sl] = model[k][sl], !model[k][sl]
				}
				if got := s.covers(k, alive, count(alive)); got != all {
					t.Fatalf("covers(%d, %v) = %v, want %v", k, members, got, all)
				}
				n := s.narrow(k, alive, dropped)
				for w := range alive {
					if alive[w] != setOf(stay)[w] || dropped[w] != setOf(leave)[w] {
						t.Fatalf("narrow(%d, %v): stay %x, leave %x", k, members, alive, dropped)
					}
				}
				if n != count(alive) {
					t.Fatalf("narrow says %d stay, %d do", n, count(alive))
				}
			},
			"": func(t *rapid.T) {
				held := 0
				for k, m := range model {
					for sl := range m {
						if one := setOf(map[int]bool{sl: true}); !s.covers(k, one, 1) {
							t.Fatalf("slot %d is not known to hold %d", sl, k)
						}
						held++
					}
				}
				if n := len(bitsOf(t, s)); n != held {
					t.Fatalf("%d bits for %d holdings", n, held)
				}
			},
		})
	})
}
