package picker

import "github.com/sluice-epp/sluice/scheduling"

func randomType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "random-picker",
		Summary:    "Picks candidates uniformly, whatever they score.",
		Parameters: &parameters{},
		New: func(b *scheduling.Builder) (any, error) {
			base, err := newBase(b)
			if err != nil {
				return nil, err
			}
			return &Random{base: base}, nil
		},
	}
}

// Random picks uniformly, without replacement.
type Random struct{ base }

// Draws implements scheduling.Drawer.
func (*Random) Draws() {}

// Pick implements scheduling.Picker.
func (p *Random) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	return top(byTicket{p.lottery(c)}, candidates, picks, p.room(c, picks))
}

type byTicket struct{ lottery }

func (byTicket) value(int) float64 { return 0 }
