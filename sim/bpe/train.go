package bpe

import (
	"cmp"
	"slices"
)

// Train learns at most n merges from a text: over and over the pair of neighbouring tokens that
// occurs most often within pieces, the one with the lower ids among equals, until every piece is
// one token.
func Train(text string, n int) []Pair {
	count := map[string]int{}
	for p := range Pieces(text) {
		count[p]++
	}
	type word struct {
		ids   []uint32
		count int
	}
	var words []word
	for p, c := range count {
		w := word{count: c}
		for i := range len(p) {
			w.ids = append(w.ids, uint32(p[i]))
		}
		words = append(words, w)
	}
	var merges []Pair
	for len(merges) < n {
		pairs := map[Pair]int{}
		for _, w := range words {
			for i := range len(w.ids) - 1 {
				pairs[Pair{w.ids[i], w.ids[i+1]}] += w.count
			}
		}
		best, most := Pair{}, 0
		for p, c := range pairs {
			if c > most || c == most && comparePairs(p, best) < 0 {
				best, most = p, c
			}
		}
		if most == 0 {
			break
		}
		id := uint32(256 + len(merges))
		merges = append(merges, best)
		for i := range words {
			words[i].ids = replace(words[i].ids, best, id)
		}
	}
	return merges
}

func comparePairs(a, b Pair) int {
	return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Right, b.Right))
}

func replace(ids []uint32, p Pair, id uint32) []uint32 {
	for i := 0; i+1 < len(ids); i++ {
		if ids[i] == p.Left && ids[i+1] == p.Right {
			ids[i] = id
			ids = slices.Delete(ids, i+1, i+2)
		}
	}
	return ids
}
