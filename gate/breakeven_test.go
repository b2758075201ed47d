package gate_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// engine is an endpoint that holds matched of 100 blocks of 16 tokens, and what is in flight on it.
func engine(matched int, tokens, decoding int64) schedtest.Endpoint {
	e := endpoint(matched, 100, tokens)
	e.Load = &scheduling.InFlightLoad{Requests: decoding + 1, Tokens: tokens, Decoding: decoding}
	e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(1600 - 16*matched))
	return e
}

func breakEven(t *testing.T, parameters string, pressure *scheduling.PoolPressure, endpoints ...schedtest.Endpoint) ([]int, scheduling.GateReport) {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints, Pressure: pressure}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First},
		[]scheduling.Spec{spec("gate", "penaltyMode: breakEven\n"+parameters)}, "gate", schedtest.First.Type)
	c := table.Decide(t, s, &scheduling.Request{ID: 1})
	return slices.Collect(c.Candidates.All()), c.Gates[0]
}

// rated gives an endpoint learnt rates: so many ms per token.
func rated(e schedtest.Endpoint, ms float64) schedtest.Endpoint {
	e.Rates = &scheduling.LearntRates{PrefillMsPerToken: ms, WaitMsPerToken: ms / 2, Confidence: 1}
	return e
}

// 1 ms a token. The sticky endpoint saves 1,440 tokens of the prompt; what that is worth depends on the pool.
func TestBreakEven(t *testing.T) {
	idle, half, full := &scheduling.PoolPressure{}, &scheduling.PoolPressure{Utilisation: 0.5}, &scheduling.PoolPressure{Utilisation: 1}
	for name, tc := range map[string]struct {
		parameters string
		pressure   *scheduling.PoolPressure
		lead       int64
		decoding   int64 // on the other endpoint
		released   bool
		bar        float64
	}{
		"an idle pool: the request's own time alone": {"", idle, 1440, 0, false, 1440},
		"one token more": {"", idle, 1441, 0, true, 1440},
		"a pool that is half busy: twice as much":       {"", half, 2880, 0, false, 2880},
		"and one token more":                            {"", half, 2881, 0, true, 2880},
		"a full pool: bounded":                          {"", full, 5761, 0, true, 5760},
		"nothing measured: as a pool that is half busy": {"", nil, 2881, 0, true, 2880},
		"alpha given":                                   {"alpha: 2", full, 4320, 0, false, 4320},
		"each decode that prefill stalls": {"", &scheduling.PoolPressure{DecodeStall: 1}, 2400, 6,
			false, 1600*(1+0.6) - 160},
		"kappa given":    {"kappa: 0", &scheduling.PoolPressure{DecodeStall: 1}, 1441, 6, true, 1440},
		"decodes priced": {"decodePrice: 1", &scheduling.PoolPressure{DecodeStall: 0.5}, 1441, 6, false, 1600*(1+3) - 160},
		"company": {"", &scheduling.PoolPressure{CompanyMs: 100}, 1441, 6,
			false, 1440 + 60},
	} {
		t.Run(name, func(t *testing.T) {
			left, report := breakEven(t, tc.parameters, tc.pressure, rated(engine(90, tc.lead, 0), 1), rated(engine(0, 0, tc.decoding), 1))
			wantLeft, want := []int{0}, scheduling.GateHeld
			if tc.released {
				wantLeft, want = []int{0, 1}, scheduling.GateReleasedBreakEven
			}
			expect(t, left, report, wantLeft, want)
			if report.GapMs != float64(tc.lead) || math.Abs(report.BarMs-tc.bar) > 1e-9 || !math.IsNaN(report.BarTokens) {
				t.Errorf("gap %v ms against %v ms and %v tokens, want %d, %v, NaN", report.GapMs, report.BarMs, report.BarTokens, tc.lead, tc.bar)
			}
		})
	}
}

// A slow sticky endpoint is let go of sooner, a slow other one later.
func TestBreakEvenKnowsHowFastEndpointsAre(t *testing.T) {
	idle := &scheduling.PoolPressure{}
	left, report := breakEven(t, "", idle, rated(engine(90, 1000, 0), 3), rated(engine(0, 0, 0), 1))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedBreakEven) // 3,000 + 480 against 1,600 ms
	if report.GapMs != 3000 || report.BarMs != 1600-480 {
		t.Errorf("gap %v ms against %v, want 3000 against 1120", report.GapMs, report.BarMs)
	}
	left, report = breakEven(t, "", idle, rated(engine(90, 4000, 0), 1), rated(engine(0, 0, 0), 3))
	expect(t, left, report, []int{0}, scheduling.GateHeld) // 4,000 + 160 against 4,800 ms
}

func TestBreakEvenWithoutRatesUsesTheConstant(t *testing.T) {
	_, report := breakEven(t, "alpha: 0", nil, engine(90, 15928, 0), engine(0, 0, 0))
	if math.Abs(report.GapMs-1000) > 1e-9 || report.Verdict != scheduling.GateReleasedBreakEven {
		t.Errorf("verdict %v, gap %v ms, want released_break_even, 1000", report.Verdict, report.GapMs)
	}
}

func TestBreakEvenCeiling(t *testing.T) {
	pressure := &scheduling.PoolPressure{Utilisation: 1}
	left, report := breakEven(t, "maxTTFTPenaltyMs: 500", pressure, rated(engine(90, 501, 0), 1), rated(engine(0, 0, 0), 1))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedCeiling)
	if report.BarMs != 500 {
		t.Errorf("bar %v ms, want 500", report.BarMs)
	}
	left, report = breakEven(t, "", pressure, rated(engine(90, 5000, 0), 1), rated(engine(0, 0, 0), 1))
	expect(t, left, report, []int{0}, scheduling.GateHeld)
}

// TestC32_BreakEvenMissingSignal: what is not known is neither nothing nor without end. 1 ms a token; a match of 1,440 tokens,
// worth twice that in a pool that is half busy.
func TestC32_BreakEvenMissingSignal(t *testing.T) {
	s := func(tokens int64) schedtest.Endpoint { return rated(engine(90, tokens, 0), 1) }
	n := func(tokens int64) schedtest.Endpoint { return rated(engine(0, tokens, 0), 1) }
	half := &scheduling.PoolPressure{Utilisation: 0.5}
	for name, tc := range map[string]struct {
		endpoints []schedtest.Endpoint
		left      []int
		verdict   scheduling.GateVerdict
	}{
		"both known, far: open":     {[]schedtest.Endpoint{s(5000), n(20)}, []int{0, 1}, scheduling.GateReleasedBreakEven},
		"both known, near: hold":    {[]schedtest.Endpoint{s(90), n(20)}, []int{0}, scheduling.GateHeld},
		"exactly even: hold":        {[]schedtest.Endpoint{s(2900), n(20)}, []int{0}, scheduling.GateHeld},
		"S unknown: hold":           {[]schedtest.Endpoint{unloaded(s(0)), n(20)}, []int{0}, scheduling.GateMissingSignal},
		"N unknown: hold":           {[]schedtest.Endpoint{s(5000), unloaded(n(0))}, []int{0}, scheduling.GateMissingSignal},
		"both unknown: hold":        {[]schedtest.Endpoint{unloaded(s(0)), unloaded(n(0))}, []int{0}, scheduling.GateMissingSignal},
		"S negative is unknown":     {[]schedtest.Endpoint{s(-1), n(20)}, []int{0}, scheduling.GateMissingSignal},
		"N negative is unknown":     {[]schedtest.Endpoint{s(1 << 40), n(-1)}, []int{0}, scheduling.GateMissingSignal},
		"S without a number":        {[]schedtest.Endpoint{rated(s(1<<40), math.NaN()), n(20)}, []int{0}, scheduling.GateMissingSignal},
		"S without end":             {[]schedtest.Endpoint{rated(s(1<<40), math.Inf(1)), n(20)}, []int{0}, scheduling.GateMissingSignal},
		"N without a number":        {[]schedtest.Endpoint{s(1 << 40), rated(n(20), math.NaN())}, []int{0}, scheduling.GateMissingSignal},
		"N at a rate below nothing": {[]schedtest.Endpoint{s(1 << 40), rated(n(20), -1)}, []int{0}, scheduling.GateMissingSignal},
		"3 sticky, one unknown, the best known is near: hold": {
			[]schedtest.Endpoint{s(5000), unloaded(s(0)), s(90), n(20)}, []int{0, 1, 2}, scheduling.GateHeld,
		},
		"3 sticky, one unknown, the known are far: open": {
			[]schedtest.Endpoint{s(5000), unloaded(s(0)), s(4000), n(20)}, []int{0, 1, 2, 3}, scheduling.GateReleasedBreakEven,
		},
		"an unknown other does not stand for an idle one": {
			[]schedtest.Endpoint{s(5000), unloaded(n(0)), n(4000)}, []int{0}, scheduling.GateHeld,
		},
	} {
		t.Run(name, func(t *testing.T) {
			left, report := breakEven(t, "", half, tc.endpoints...)
			expect(t, left, report, tc.left, tc.verdict)
			if missing := tc.verdict == scheduling.GateMissingSignal; missing != math.IsNaN(report.GapMs) {
				t.Errorf("compared %v ms", report.GapMs)
			}
		})
	}
}

// TestC32_BreakEvenUnknownPrompt: where it is not known what of the prompt an endpoint would have to compute, that is not nothing.
func TestC32_BreakEvenUnknownPrompt(t *testing.T) {
	half := &scheduling.PoolPressure{Utilisation: 0.5}
	s, n := rated(engine(90, 1000, 0), 1), rated(engine(0, 0, 0), 1)
	n.Uncached = nil
	left, report := breakEven(t, "", half, s, n)
	expect(t, left, report, []int{0}, scheduling.GateMissingSignal)
}

// TestBreakEvenAgreesWithTheScorer: the gate releases exactly where the scorer alone would have left the sticky endpoints, so that
// the two together pick what everyone pays least for, or at least a sticky endpoint where they hold.
func TestBreakEvenAgreesWithTheScorer(t *testing.T) {
	types := slices.Concat([]scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types())
	rapid.Check(t, func(rt *rapid.T) {
		table := &schedtest.Table{Pressure: &scheduling.PoolPressure{
			Utilisation: rapid.Float64Range(0, 1).Draw(rt, "utilisation"), DecodeStall: 1, CompanyMs: rapid.Float64Range(0, 300).Draw(rt, "company"),
		}}
		for range rapid.IntRange(2, 8).Draw(rt, "endpoints") {
			matched := rapid.SampledFrom([]int{0, 40, 80, 95, 100}).Draw(rt, "matched")
			e := engine(matched, rapid.Int64Range(0, 20_000).Draw(rt, "tokens"), rapid.Int64Range(0, 40).Draw(rt, "decoding"))
			table.Endpoints = append(table.Endpoints, rated(e, rapid.Float64Range(0.01, 2).Draw(rt, "ms")))
		}
		build := func(plugins []scheduling.Spec, profile ...string) *scheduling.Cycle {
			return table.Decide(t, table.Build(t, types, plugins, profile...), &scheduling.Request{ID: 1})
		}
		free := build(nil, "prefill-cost-scorer", "max-score-picker")
		gated := build([]scheduling.Spec{spec("gate", "penaltyMode: breakEven")}, "gate", "prefill-cost-scorer", "max-score-picker")
		if free.Picks[0] != gated.Picks[0] {
			rt.Fatalf("the scorer alone picks %d, behind the gate %d (%v)", free.Picks[0], gated.Picks[0], gated.Gates[0])
		}
	})
}
