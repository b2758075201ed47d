package picker

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

func weightedRandomType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "weighted-random-picker",
		Summary:    "Picks candidates at random, each with a chance in proportion to its total score.",
		Parameters: &parameters{},
		New: func(b *scheduling.Builder) (any, error) {
			base, err := newBase(b)
			if err != nil {
				return nil, err
			}
			return &WeightedRandom{base: base}, nil
		},
	}
}

// WeightedRandom draws without replacement, each draw in proportion to the totals: every candidate gets the key
// U^(1/total) with U uniform on (0, 1), and the largest keys win (algorithm A-Res; Efraimidis and Spirakis 2006).
// Candidates with a total of 0 come after all others, in uniform order; with every total 0 the draw is uniform.
type WeightedRandom struct{ base }

// Draws implements scheduling.Drawer.
func (*WeightedRandom) Draws() {}

// Pick implements scheduling.Picker.
func (p *WeightedRandom) Pick(c *scheduling.Cycle, candidates scheduling.Set, totals []float64, picks []int) []int {
	return top(byKey{totals, p.lottery(c)}, candidates, picks, p.room(c, picks))
}

type byKey struct {
	totals []float64
	lottery
}

// value is log U / total, which orders as U^(1/total) does and does not underflow.
func (r byKey) value(e int) float64 {
	if r.totals[e] <= 0 {
		return math.Inf(-1)
	}
	u := (float64(r.ticket(e)>>12) + 0.5) / (1 << 52) // 52 bits, so that neither 0 nor 1 comes out
	return math.Log(u) / r.totals[e]
}
