package picker

import (
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// Types lists the pickers. A new one is one file, its test and a line here.
func Types() []scheduling.PluginType {
	return []scheduling.PluginType{maxScoreType(), randomType(), weightedRandomType()}
}

// parameters are what every picker takes.
type parameters struct {
	// MaxNumOfEndpoints bounds the length of the ordered list of picks below what the configuration asks for; 0 leaves
	// that as it is.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

// maxPicks is the highest value of maxNumOfEndpoints: nobody falls back further, and inserting stays cheap.
const maxPicks = 1000

// base is what the pickers share: their random stream and their bound.
type base struct {
	stream uint64
	most   int // 0: no bound of its own
}

func newBase(b *scheduling.Builder) (base, error) {
	var p parameters
	if err := b.Parameters(&p); err != nil {
		return base{}, err
	}
	if p.MaxNumOfEndpoints < 0 || p.MaxNumOfEndpoints > maxPicks {
		return base{}, fmt.Errorf("parameters.maxNumOfEndpoints: must be between 0 and %d, got %d", maxPicks, p.MaxNumOfEndpoints)
	}
	return base{stream: b.Stream(), most: p.MaxNumOfEndpoints}, nil
}

// room is how many more picks may follow those already in the list. The picker's own bound is on the whole list.
func (b base) room(c *scheduling.Cycle, picks []int) int {
	if b.most == 0 {
		return c.MaxPicks
	}
	return min(c.MaxPicks, b.most-len(picks))
}

// lottery gives every endpoint a ticket of 64 uniform bits. A ticket depends on the seed and the ordinal alone, so it
// stays the same whoever else is a candidate, and the order of the list plays no part.
type lottery uint64

func (b base) lottery(c *scheduling.Cycle) lottery {
	r := c.Rand(b.stream)
	return lottery(r.Uint64())
}

func (l lottery) ticket(ordinal int) uint64 {
	return scheduling.Mix64(uint64(l) ^ scheduling.Mix64(uint64(ordinal)))
}

// ranker orders candidates: the higher value first, of equal values the higher ticket. It is a type parameter below
// rather than an interface value, so that a pick allocates nothing.
type ranker interface {
	value(ordinal int) float64
	ticket(ordinal int) uint64
}

// top appends the room best-ranked candidates to picks, best first. It keeps the list sorted as it goes, which for the
// few picks that are ever asked for is one comparison per candidate; a ticket is drawn only where values are equal.
func top[R ranker](r R, candidates scheduling.Set, picks []int, room int) []int {
	if room <= 0 {
		return picks
	}
	start := len(picks)
	var last float64 // the value of the list's last pick
	for e := range candidates.All() {
		value := r.value(e)
		i := len(picks) // where e goes
		if i-start < room {
			picks = append(picks, e)
		} else {
			i--
			if value < last || (value == last && r.ticket(e) <= r.ticket(picks[i])) {
				continue
			}
		}
		for i > start && before(r, e, value, picks[i-1]) {
			picks[i] = picks[i-1]
			i--
		}
		picks[i] = e
		last = r.value(picks[len(picks)-1])
	}
	return picks
}

// before reports whether e, of the given value, ranks before other.
func before[R ranker](r R, e int, value float64, other int) bool {
	v := r.value(other)
	return value > v || (value == v && r.ticket(e) > r.ticket(other))
}
