package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// tiered engines have a small cache on the GPU, and a larger one in the CPU's memory.
func tiered(selfDescribing bool) engine.Config {
	return events(sim.Params{NumBlocks: 64, OffloadBlocks: 200}, engine.KVEvents{SelfDescribing: selfDescribing})
}

// What was evicted from the GPU is found on the CPU, whether the events of that tier describe themselves or name blocks
// only; what is found on either counts as cached, block by block.
func TestPreciseOffload(t *testing.T) {
	t.Parallel()
	for _, self := range []bool{false, true} {
		t.Run(fmt.Sprint("self-describing: ", self), func(t *testing.T) {
			p := newPrecise(t, lab.Plan{Engines: 2, Engine: tiered(self)})
			chance := rand.New(rand.NewPCG(1, 2))
			for i := range 48 {
				name := fmt.Sprint("text ", chance.IntN(18))
				p.exactly(t, fmt.Sprintf("step %d, %s", i, name), continueIDs(ids(name, 150+chance.IntN(150)), 20), p.Engines[i%2])
			}
			for i, e := range p.Engines {
				if s := e.Stats(); s.OffloadHits == 0 || s.PrefixHits == 0 || len(e.Cached(sim.CPU)) < 190 {
					t.Errorf("engine %d does not stir: %+v", i, s)
				}
			}
			if n := p.Sluice.Total(t, "sluice_kv_event_blocks_total", `what="unjoined"`); n != 0 {
				t.Errorf("%v blocks of the offload tier are not known", n)
			}
		})
	}
}

// A block on the CPU is worth less than one on the GPU for the pick, as much as its tier weighs, and the same for what
// the request is charged with: nothing of it is computed.
func TestPreciseTierWeight(t *testing.T) {
	t.Parallel()
	const prefer = `
  - type: inflight-load-producer
  - type: prefix-cache-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: longest
    plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
`
	prompt := ids("weighed", 20*blockSize+1)
	for weight, want := range map[string]string{"": "engine-1", "tiers: {cpu: 1.0}": "engine-0"} {
		t.Run(weight, func(t *testing.T) {
			p := newPrecise(t, lab.Plan{Engines: 2, Engine: tiered(false), Config: byEvents(weight) + prefer})
			p.exactly(t, "all of it", continueIDs(prompt, 1), p.Engines[0])
			for i := range 4 {
				p.exactly(t, "what pushes it out", continueIDs(ids(fmt.Sprint("other ", i), 250), 1), p.Engines[0])
			}
			p.exactly(t, "a part of it", continueIDs(prompt[:17*blockSize], 1), p.Engines[1])
			p.quiet(t)
			if n := p.Engines[0].Stats().OffloadHits; n != 0 {
				t.Fatalf("%d tokens were loaded before", n)
			}
			p.Fault(t, engine.Faults{Freeze: true})
			body := continueIDs(prompt, 1)
			answer := background(t, p.Lab, p.envoy.URL("/v1/completions"), lab.JSON(t, body))
			lab.Wait(t, "the charge", func() bool { return p.Sluice.InFlight(t).Requests == 1 })
			charged := p.Sluice.InFlight(t).Tokens
			p.Fault(t, engine.Faults{})
			got := readAsked(t, <-answer)
			if got.engine != want || got.predicted != got.cached {
				t.Errorf("%s answers, with %d tokens cached and %d predicted; want %s", got.engine, got.cached, got.predicted, want)
			}
			if uncached := int64(got.prompt - got.cached); charged != uncached || got.cached < 17*blockSize {
				t.Errorf("%d tokens were charged for %d that are not cached", charged, uncached)
			}
		})
	}
}
