package chain

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// reference is the same index as maps of sets.
type reference struct {
	weight map[Holder]int32
	source map[Holder]uint32
	has    map[Holder]map[uint64]bool
}

func (r *reference) match(hashes []uint64, source uint32) Match {
	var m Match
	for _, h := range hashes {
		best := int32(-1)
		for holder, set := range r.has {
			if r.source[holder] == source && set[h] {
				best = max(best, r.weight[holder])
			}
		}
		if best < 0 {
			return m
		}
		m.Blocks++
		m.Weight += best
	}
	return m
}

// owner is a source with its holders: three tiers and one whose blocks count for nothing.
type owner struct {
	tiers [3]Holder
	doubt Holder
	refs  map[uint64]Ref // every block that any of the holders has
}

// tree is the prompts of a test: block k of a prompt has a child hash for each digit.
func promptOf(digits []int) []uint64 {
	hashes := make([]uint64, len(digits))
	h := uint64(1)
	for i, d := range digits {
		h = (h ^ uint64(d+1)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		hashes[i] = h
	}
	return hashes
}

func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, ref := New(), &reference{map[Holder]int32{}, map[Holder]uint32{}, map[Holder]map[uint64]bool{}}
		sources := rapid.IntRange(1, 5).Draw(t, "sources")
		if rapid.Bool().Draw(t, "wide") {
			sources = 70
		}
		owners := make([]*owner, sources)
		register := func(source uint32, weight int) Holder {
			h := s.Register(source, weight)
			ref.source[h], ref.weight[h], ref.has[h] = source, int32(weight), map[uint64]bool{}
			return h
		}
		for i := range owners {
			owners[i] = &owner{
				tiers: [3]Holder{register(uint32(i), 800), register(uint32(i), 1000), register(uint32(i), 300)},
				doubt: register(NoSource, 0), refs: map[uint64]Ref{},
			}
		}
		var l Lookup
		prompt := rapid.SliceOfN(rapid.IntRange(0, 1), 1, 12)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			o := owners[rapid.IntRange(0, sources-1).Draw(t, "source")]
			hashes := promptOf(prompt.Draw(t, "prompt"))
			h := o.tiers[rapid.IntRange(0, 2).Draw(t, "tier")]
			switch rapid.IntRange(0, 5).Draw(t, "action") {
			case 0, 1, 2:
				// From the longest prefix whose last block the owner keeps a place of.
				from := rapid.IntRange(0, len(hashes)-1).Draw(t, "from")
				parent, parentHash := NoRef, uint64(0)
				if from > 0 {
					at, ok := o.refs[hashes[from-1]]
					if !ok {
						continue
					}
					parent, parentHash = at, hashes[from-1]
				}
				refs := make([]Ref, len(hashes)-from)
				if n := s.Insert(h, nil, parent, parentHash, 16, hashes[from:], refs); n != len(refs) {
					t.Fatalf("%d of %d inserted", n, len(refs))
				}
				for i, hash := range hashes[from:] {
					ref.has[h][hash] = true
					o.refs[hash] = refs[i]
				}
			case 3:
				hash := hashes[len(hashes)-1]
				if at, ok := o.refs[hash]; ok {
					s.Unset(at, h)
					delete(ref.has[h], hash)
					o.forgetIfGone(ref, hash)
				}
			case 4:
				hash := hashes[len(hashes)-1]
				if at, ok := o.refs[hash]; ok && ref.has[h][hash] {
					moved, _ := s.Move(h, o.doubt, at)
					o.refs[hash] = moved
					delete(ref.has[h], hash)
					ref.has[o.doubt][hash] = true
				}
			case 5:
				first := rapid.IntRange(0, len(hashes)).Draw(t, "first")
				s.Demote(hashes, first, o.tiers[:], o.doubt, func(uint64) bool { return false })
				known := 0
				for known < len(hashes) && ref.anyHas(hashes[known]) {
					known++
				}
				// Demote follows the chains, which may reach further than what anybody holds: never less.
				for _, hash := range hashes[min(first, len(hashes)):] {
					at, ok := o.refs[hash]
					if !ok || !(ref.has[o.tiers[0]][hash] || ref.has[o.tiers[1]][hash] || ref.has[o.tiers[2]][hash]) {
						continue
					}
					if slices.Index(hashes, hash) >= known {
						// Out of reach or not, the block counts for nothing: make both agree.
						for _, tier := range o.tiers {
							if ref.has[tier][hash] {
								moved, _ := s.Move(tier, o.doubt, at)
								o.refs[hash] = moved
							}
						}
					}
					for _, tier := range o.tiers {
						delete(ref.has[tier], hash)
					}
					ref.has[o.doubt][hash] = true
				}
			}
			query := promptOf(prompt.Draw(t, "query"))
			l.Run(s, query, sources)
			for i := range owners {
				if diff := cmp.Diff(ref.match(query, uint32(i)), l.Matches[i]); diff != "" {
					t.Fatalf("source %d (-want +got):\n%s", i, diff)
				}
			}
			s.check(t)
		}
		// Whatever was put in is gone when everybody has let go.
		for _, o := range owners {
			for hash, at := range o.refs {
				for _, h := range append(o.tiers[:], o.doubt) {
					if ref.has[h][hash] {
						s.Unset(at, h)
					}
				}
			}
		}
		s.check(t)
		if z := s.Sizes(); z.Chains != 0 || z.Positions != 0 || z.Bits != 0 {
			t.Fatalf("left over: %+v", z)
		}
	})
}

func (r *reference) anyHas(hash uint64) bool {
	for _, set := range r.has {
		if set[hash] {
			return true
		}
	}
	return false
}

func (o *owner) forgetIfGone(r *reference, hash uint64) {
	for _, h := range append(o.tiers[:], o.doubt) {
		if r.has[h][hash] {
			return
		}
	}
	delete(o.refs, hash)
}

func (s *Store) check(t *rapid.T) {
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestLongPromptsSpanChains(t *testing.T) {
	s := New()
	h := s.Register(0, 1000)
	hashes := make([]uint64, 3*maxLength+5)
	for i := range hashes {
		hashes[i] = rand.Uint64()
	}
	refs := make([]Ref, len(hashes))
	if n := s.Insert(h, nil, NoRef, 0, 16, hashes, refs); n != len(hashes) {
		t.Fatalf("%d inserted", n)
	}
	var l Lookup
	l.Run(s, hashes, 1)
	if got := l.Matches[0]; got.Blocks != int32(len(hashes)) || got.Weight != 1000*int32(len(hashes)) {
		t.Fatalf("got %+v", got)
	}
	if z := s.Sizes(); z.Chains != 4 {
		t.Errorf("%d chains", z.Chains)
	}
	for _, at := range refs { // from the head: nothing may go before its children do
		s.Unset(at, h)
	}
	if z := s.Sizes(); z.Chains != 0 || z.Positions != 0 {
		t.Errorf("left: %+v", z)
	}
}
