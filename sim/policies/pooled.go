package policies

import (
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// pooled is what routing is held against.
func pooled() []Policy {
	return []Policy{{
		Name: "pooled", Summary: "a reference, not a policy: all engines share one cache of all their memory, fewest tokens to compute picks",
		Source: "nobody's: what is left to gain, as far as known; no strict bound",
		Pooled: true,
		picker: func(view *fleet.View) fleet.Picker { return newPooled(view) },
	}}
}

// Pooled is the reference: engines that share one cache (fleet.Config.Pooled), and a picker that knows what it holds and
// sends each request to the engine with the fewest prompt tokens that are neither cached nor computed yet. It is a
// fleet.Picker.
type Pooled struct {
	view    *fleet.View
	tokens  []int // to compute, by engine
	charged map[int]int
}

func newPooled(view *fleet.View) *Pooled {
	return &Pooled{view: view, tokens: make([]int, len(view.Pool().Snapshot().Endpoints)), charged: map[int]int{}}
}

// Pick implements fleet.Picker.
func (p *Pooled) Pick(_ time.Duration, r *fleet.Request) int {
	best := least{random: scheduling.NewRand(p.view.Seed(), uint64(r.Number))}
	for e, tokens := range p.tokens {
		best.offer(e, float64(tokens))
	}
	own := len(r.Tokens) - p.view.Reusable(best.at, r) // the same on each
	p.tokens[best.at] += own
	p.charged[r.Number] = own
	return best.at
}

// FirstToken implements fleet.Picker.
func (p *Pooled) FirstToken(_ time.Duration, r *fleet.Request) {
	p.tokens[r.Endpoint] -= p.charged[r.Number]
	delete(p.charged, r.Number)
}

// Done implements fleet.Picker. A request that an engine refused has had no first token.
func (p *Pooled) Done(now time.Duration, r *fleet.Request) { p.FirstToken(now, r) }

// InFlight is how many tokens it believes are to compute, on all engines.
func (p *Pooled) InFlight() (tokens int) {
	for _, n := range p.tokens {
		tokens += n
	}
	return tokens
}
