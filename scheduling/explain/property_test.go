package explain_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// world is a profile, endpoints and a request.
type world struct {
	profile   []string
	weights   map[string]float64
	gates     string // their parameters
	picks     int
	id        uint64
	endpoints []schedtest.Endpoint
}

func newWorld(r *rand.Rand) *world {
	w := &world{id: r.Uint64(), picks: 1 + r.IntN(2), weights: map[string]float64{}, profile: []string{"gate", "gate-2"}[:r.IntN(3)]}
	w.gates = []string{
		"{explorationProbability: 0}", "{explorationProbability: 0.5}", "{explorationProbability: 0, penaltyMode: matchedTokens}",
	}[r.IntN(3)]
	for _, name := range []string{
		"prefix-cache-scorer", "token-load-scorer", "prefill-cost-scorer", "active-request-scorer", "queue-scorer", "kv-cache-utilization-scorer",
		"lora-affinity-scorer",
	} {
		if r.IntN(2) == 0 {
			w.profile, w.weights[name] = append(w.profile, name), float64(1+r.IntN(30))/10
		}
	}
	w.profile = append(w.profile, []string{"max-score-picker", "max-score-picker", "weighted-random-picker", "random-picker"}[r.IntN(4)])
	for range r.IntN(6) {
		e := endpoint(int64(r.IntN(4)*r.IntN(60_000)), r.IntN(101))
		if e.Load.Requests, e.Load.Decoding = int64(r.IntN(20)), int64(r.IntN(5)); r.IntN(5) == 0 {
			e.Load = nil
		}
		if r.IntN(5) == 0 {
			e.Match, e.Uncached = nil, nil
		}
		if r.IntN(3) > 0 {
			e.Metrics = &scheduling.EngineMetrics{
				Known:   scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage,
				Waiting: float64(r.IntN(10)), Running: float64(r.IntN(10)), KVUsage: r.Float64(),
			}
			if r.IntN(2) == 0 {
				e.Metrics.Known |= scheduling.MetricsAdapters
				e.Metrics.Adapter, e.Metrics.Adapters, e.Metrics.MaxAdapters = scheduling.AdapterUse(r.IntN(4)), r.IntN(4), 2
			}
		}
		if r.IntN(10) == 0 {
			e.State = scheduling.EndpointDraining
		}
		w.endpoints = append(w.endpoints, e)
	}
	return w
}

func (w *world) decide(t *testing.T) (*scheduling.Scheduler, *decisionv1.Decision) {
	t.Helper()
	table := &schedtest.Table{Endpoints: w.endpoints, Prompt: &scheduling.TokenizedPrompt{Count: 1600, Exact: true}}
	var specs []scheduling.Spec
	for _, name := range []string{"gate", "gate-2"} {
		if slices.Contains(w.profile, name) {
			specs = append(specs, scheduling.Spec{Name: name, Type: gate.TypeName, Decode: schedtest.YAML(w.gates)})
		}
	}
	cfg := schedtest.Config(specs, w.profile...)
	cfg.MaxPicks = w.picks
	for i := range cfg.Profile {
		if weight, ok := w.weights[cfg.Profile[i].Name]; ok {
			cfg.Profile[i].Weight = weight
		}
	}
	s, err := scheduling.Build(slices.Concat(table.Types(), []scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types()), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, record.Of(s, table.Decide(t, s, &scheduling.Request{ID: w.id, Model: "m", Choices: 1}), record.Meta{})
}

// with is the pick of a world with another value.
func (w *world) with(t *testing.T, f explain.Flip, value float64) int {
	t.Helper()
	changed := *w
	changed.endpoints, changed.weights = slices.Clone(w.endpoints), maps.Clone(w.weights)
	switch f.Input {
	case explain.InFlight:
		load := *w.endpoints[f.Ordinal].Load
		load.Tokens = int64(value)
		changed.endpoints[f.Ordinal].Load = &load
	case explain.Cached:
		of := endpoint(0, int(value))
		changed.endpoints[f.Ordinal].Match, changed.endpoints[f.Ordinal].Uncached = of.Match, of.Uncached
	case explain.Weight:
		changed.weights[f.Scorer] = value
	case explain.Tie:
	}
	_, d := changed.decide(t)
	return int(d.GetPicks()[0])
}

// TestFlipsFlip tries the flips of decisions of every kind, with gates that explore, pickers that draw and values that are
// not known, afresh: at a flip's value the pick is the one that it says, and just before it still the old one.
func TestFlipsFlip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	tried := map[explain.Input]int{}
	for i := range 2000 {
		w := newWorld(r)
		s, d := w.decide(t)
		flips, err := explain.Flips(s, d)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flips {
			tried[f.Input]++
			at, before := f.To, f.To-1
			switch {
			case f.Input == explain.Tie:
				continue
			case f.Input == explain.Weight && s.Draws():
				t.Errorf("world %d, %v: %s, though it is drawn", i, w.profile, f.Words(d))
				continue
			case f.Input == explain.Weight && f.To > f.From:
				at, before = f.To*(1+1e-6), f.To*(1-1e-6)
			case f.Input == explain.Weight:
				at, before = f.To*(1-1e-6), f.To*(1+1e-6)
			case f.To < f.From:
				before = f.To + 1
			}
			if got := w.with(t, f, at); got != f.Pick {
				t.Errorf("world %d, %v: %s: %d is picked", i, w.profile, f.Words(d), got)
			}
			if got := w.with(t, f, before); got != int(d.GetPicks()[0]) {
				t.Errorf("world %d, %v: %s: just before it is %d already", i, w.profile, f.Words(d), got)
			}
		}
	}
	if len(tried) != 4 || slices.Min(slices.Collect(maps.Values(tried))) < 50 {
		t.Errorf("too few were tried: %v", tried)
	}
}
