package chain

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// filled is an index in which every holder has its share of prompts of 256 blocks that share their first 64.
func filled(b *testing.B, holders, blocks int) (*Store, [][]uint64) {
	b.Helper()
	s := New()
	r := rand.New(rand.NewPCG(1, 2))
	hs := make([]Holder, holders)
	for i := range hs {
		hs[i] = s.Register(uint32(i), 1000)
	}
	system := make([]uint64, 64)
	for i := range system {
		system[i] = r.Uint64()
	}
	var prompts [][]uint64
	refs := make([]Ref, 256)
	for have := 0; have < blocks; {
		prompt := append([]uint64(nil), system...)
		for len(prompt) < 256 {
			prompt = append(prompt, r.Uint64())
		}
		for h := range hs {
			n := 64 + int(r.UintN(193))
			if h == len(prompts)%holders {
				n = 256
			}
			s.Insert(hs[h], nil, NoRef, 0, 16, prompt[:n], refs[:n])
			have += n - 64
		}
		prompts = append(prompts, prompt)
	}
	return s, prompts
}

func BenchmarkLookup(b *testing.B) {
	for _, holders := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(holders), func(b *testing.B) {
			s, prompts := filled(b, holders, 2_000_000)
			var l Lookup
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				l.Run(s, prompts[i%len(prompts)], holders)
				i += 7
			}
		})
	}
}

// BenchmarkLookupTiers is a look-up where every source has the prompt in two tiers, and one of them goes on alone.
func BenchmarkLookupTiers(b *testing.B) {
	for _, sources := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(sources), func(b *testing.B) {
			s := New()
			prompt := make([]uint64, 256)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range prompt {
				prompt[i] = r.Uint64()
			}
			refs := make([]Ref, len(prompt))
			for i := range sources {
				for tier, blocks := range []int{128, 250} {
					s.Insert(s.Register(uint32(i), 1000-200*tier), nil, NoRef, 0, 16, prompt[:blocks], refs[:blocks])
				}
			}
			var l Lookup
			b.ReportAllocs()
			for b.Loop() {
				l.Run(s, prompt, sources)
			}
			if m := l.Matches[sources-1]; m != (Match{250, 128*1000 + 122*800}) {
				b.Fatalf("%+v", m)
			}
		})
	}
}
