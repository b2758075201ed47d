package e2e

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// small is a cache into which three texts fit.
func small() sim.Params { return sim.Params{NumBlocks: 64} }

func text(i int) object { return continueIDs(ids(fmt.Sprint("text ", i), 270), 20) }

// Batches are lost on the way, stores and evictions among them. Where the engine replays them, all is known again with
// the next message.
func TestPreciseGapIsFilled(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engines: 1, Engine: events(small(), engine.KVEvents{})})
	for i := range 3 {
		p.exactly(t, fmt.Sprint("text ", i), text(i), nil)
	}
	p.lossy = true
	for round := range 3 {
		p.quiet(t)
		p.Fault(t, engine.Faults{DropBatches: 1 + round})
		for i := 3; p.Engines[0].Faults() != (engine.Faults{}); i++ {
			p.ask(t, text(10*round+i), nil)
		}
		p.ask(t, text(10*round+9), nil) // its events show the gap
		for i := range 10 {
			p.exactly(t, fmt.Sprintf("round %d, text %d", round, i), text(10*round+i), nil)
		}
		p.state(t, "live", 1)
	}
}

// Where batches are lost for good, Sluice says so, and believes what turns out wrong only once.
func TestPreciseGapIsLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events engine.KVEvents
		faults engine.Faults
	}{
		"not replayed":     {engine.KVEvents{NoReplay: true}, engine.Faults{DropBatches: 6}},
		"no longer stored": {engine.KVEvents{}, engine.Faults{LoseBatches: 6}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrecise(t, lab.Plan{Engines: 1, Engine: events(small(), tt.events)})
			for i := range 3 {
				p.exactly(t, fmt.Sprint("text ", i), text(i), nil)
			}
			p.lossy = true
			p.Fault(t, tt.faults)
			for i := 3; p.Engines[0].Faults() != (engine.Faults{}); i++ {
				p.ask(t, text(i), nil) // evicts the first ones, of which no event comes
			}
			p.ask(t, text(9), nil)
			p.state(t, "degraded", 1)
			over := map[int]int{}
			for round := range 6 {
				for i := range 5 {
					if got := p.ask(t, text(i), nil); got.predicted > got.cached {
						over[i]++
						if over[i] > 1 {
							t.Errorf("round %d: text %d: %d tokens predicted, %d cached, for the %d. time", round, i, got.predicted, got.cached, over[i])
						}
					}
				}
			}
			if len(over) == 0 {
				t.Error("what was evicted unheard was never believed to be there: the test tests nothing")
			}
			p.reset(t, p.Engines[0]) // with it nothing is unknown any more
			p.ask(t, text(0), nil)
			p.state(t, "live", 1)
			for i := range 8 {
				p.exactly(t, fmt.Sprint("after the reset, text ", i%4), text(i%4), nil)
			}
		})
	}
}
