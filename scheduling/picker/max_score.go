package picker

import "github.com/sluice-epp/sluice/scheduling"

func maxScoreType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "max-score-picker",
		Summary:    "Picks the candidates with the highest total score.",
		Parameters: &parameters{},
		New: func(b *scheduling.Builder) (any, error) {
			base, err := newBase(b)
			if err != nil {
				return nil, err
			}
			return &MaxScore{base: base}, nil
		},
	}
}

// MaxScore picks the highest totals. Among equal totals the seed draws.
type MaxScore struct{ base }

// Pick implements scheduling.Picker.
func (p *MaxScore) Pick(c *scheduling.Cycle, candidates scheduling.Set, totals []float64, picks []int) []int {
	return top(byTotal{totals, p.lottery(c)}, candidates, picks, p.room(c, picks))
}

type byTotal struct {
	totals []float64
	lottery
}

func (r byTotal) value(e int) float64 { return r.totals[e] }
