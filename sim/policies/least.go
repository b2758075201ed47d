package policies

import "github.com/sluice-epp/sluice/scheduling"

// least finds the endpoint with the lowest value, of equals one at random.
type least struct {
	random scheduling.Rand
	at     int // meaningful once something was offered
	value  float64
	equals int
}

func (l *least) offer(endpoint int, value float64) {
	switch {
	case l.equals == 0 || value < l.value:
		l.at, l.value, l.equals = endpoint, value, 1
	case value == l.value:
		if l.equals++; l.random.IntN(l.equals) == 0 {
			l.at = endpoint
		}
	}
}

// appendTo appends the endpoint to picks, if there was any.
func (l *least) appendTo(picks []int) []int {
	if l.equals == 0 {
		return picks
	}
	return append(picks, l.at)
}

// hashOf is a hash of tokens.
func hashOf(tokens []uint32) uint64 {
	h := uint64(len(tokens))
	for _, t := range tokens {
		h = scheduling.Mix64(h ^ uint64(t))
	}
	return h
}
