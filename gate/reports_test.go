package gate_test

import (
	"math"
	"slices"
	"testing"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// TestC20_RatioInsteadOfMatchedTokens: the value of a match is the tokens that it saves, not their share of the prompt.
// A is the endpoint that holds the prompt, B holds nothing and is idle; blocks have 16 tokens.
func TestC20_RatioInsteadOfMatchedTokens(t *testing.T) {
	const a, b = 0, 1
	tests := map[string]struct {
		cached, prompt int // tokens
		lead           int64
		left           []int
		verdict        scheduling.GateVerdict
	}{
		"P1 may leave a busy A":                      {128, 160, 4000, []int{a, b}, scheduling.GateReleasedMatched},
		"P1 one token above what it saves":           {128, 160, 129, []int{a, b}, scheduling.GateReleasedMatched},
		"P1 at what it saves; 0.8 exactly is sticky": {128, 160, 128, []int{a}, scheduling.GateHeld},
		"P2 is below the threshold":                  {60_000, 100_000, 59_000, []int{a, b}, scheduling.GateNoSticky},
		"P3 has no whole block: 0 of 0 is neutral":   {0, 10, 4000, []int{a, b}, scheduling.GateNoSticky},
		"P4 sticks below the gate":                   {1600, 1600, 1600, []int{a}, scheduling.GateHeld},
		"P4 is released above it":                    {1600, 1600, 1601, []int{a, b}, scheduling.GateReleasedMatched},
		"the unfinished last block has no credit":    {1610, 1610, 1601, []int{a, b}, scheduling.GateReleasedMatched},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			blocks := test.prompt / 16
			left, report := gated(t, matchedTokensMode, endpoint(test.cached/16, blocks, test.lead), endpoint(0, blocks, 0))
			expect(t, left, report, test.left, test.verdict)
			if report.BarTokens > float64(test.prompt) {
				t.Errorf("matched %v of %d tokens", report.BarTokens, test.prompt)
			}
		})
	}
}

// TestC20_LongTailStaysByCost: a match below the threshold passes the gate, and the cost scorer still sends the request
// to A while A's lead is less than what the match saves.
func TestC20_LongTailStaysByCost(t *testing.T) {
	const prompt, cached, a, b = 100_000, 60_000, 0, 1
	uncached := func(e schedtest.Endpoint, tokens int64) schedtest.Endpoint {
		e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(tokens))
		return e
	}
	// The match saves this request 60,000 tokens of its own wait, and others as much (α = 1).
	for lead, want := range map[int64]int{0: a, 1000: a, cached - 1: a, 2*cached - 1: a, 2*cached + 1: b, 500_000: b} {
		table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
			uncached(endpoint(cached/16, prompt/16, lead), prompt-cached),
			uncached(endpoint(0, prompt/16, 0), prompt),
		}}
		types := slices.Concat([]scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types())
		s := table.Build(t, types, []scheduling.Spec{spec("gate", matchedTokensMode)}, "gate", "prefill-cost-scorer", "max-score-picker")
		c := table.Decide(t, s, &scheduling.Request{ID: 1})
		if c.Gates[0].Verdict != scheduling.GateNoSticky || c.Picks[0] != want {
			t.Errorf("lead %d: verdict %v, picked %d, want no_sticky and %d", lead, c.Gates[0].Verdict, c.Picks[0], want)
		}
	}
}

// TestC32_MissingSignal: an endpoint whose load is not known takes no part in the comparison. With 1,000 tokens per
// second a token in flight is 1 ms.
func TestC32_MissingSignal(t *testing.T) {
	const limit = "maxTTFTPenaltyMs: 100\npeakPrefillThroughput: 1000"
	s := func(ms int64) schedtest.Endpoint { return endpoint(90, 100, ms) }
	n := func(ms int64) schedtest.Endpoint { return endpoint(0, 100, ms) }
	tests := map[string]struct {
		endpoints []schedtest.Endpoint
		left      []int
		verdict   scheduling.GateVerdict
		gap       float64 // ms; NaN: nothing compared
	}{
		"both known, S=500 N=20: open": {[]schedtest.Endpoint{s(500), n(20)}, []int{0, 1}, scheduling.GateReleasedStatic, 480},
		"both known, S=90 N=20: hold":  {[]schedtest.Endpoint{s(90), n(20)}, []int{0}, scheduling.GateHeld, 70},
		"exactly at the limit: hold":   {[]schedtest.Endpoint{s(120), n(20)}, []int{0}, scheduling.GateHeld, 100},
		"one above the limit: open":    {[]schedtest.Endpoint{s(121), n(20)}, []int{0, 1}, scheduling.GateReleasedStatic, 101},
		"S unknown: hold":              {[]schedtest.Endpoint{unloaded(s(0)), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N unknown: hold":              {[]schedtest.Endpoint{s(500), unloaded(n(0))}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"both unknown: hold":           {[]schedtest.Endpoint{unloaded(s(0)), unloaded(n(0))}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"S negative is unknown":        {[]schedtest.Endpoint{s(-1), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N negative is unknown":        {[]schedtest.Endpoint{s(500), n(math.MinInt64)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"3 sticky, one unknown, the best known is near: hold": {
			[]schedtest.Endpoint{s(500), unloaded(s(0)), s(90), n(20)}, []int{0, 1, 2}, scheduling.GateHeld, 70,
		},
		"3 sticky, one unknown, the known are far: open": {
			[]schedtest.Endpoint{s(500), unloaded(s(0)), s(400), n(20)}, []int{0, 1, 2, 3}, scheduling.GateReleasedStatic, 380,
		},
		"an unknown other does not stand for an idle one": {
			[]schedtest.Endpoint{s(500), unloaded(n(0)), n(450)}, []int{0}, scheduling.GateHeld, 50,
		},
		"nothing in flight is known": {[]schedtest.Endpoint{s(101), n(0)}, []int{0, 1}, scheduling.GateReleasedStatic, 101},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			left, report := gated(t, limit, test.endpoints...)
			expect(t, left, report, test.left, test.verdict)
			if report.GapMs != test.gap && !(math.IsNaN(report.GapMs) && math.IsNaN(test.gap)) {
				t.Errorf("gap %v ms, want %v", report.GapMs, test.gap)
			}
			if test.verdict == scheduling.GateMissingSignal && report.Sticky >= 0 && report.Other >= 0 {
				t.Errorf("missing_signal names %d and %d", report.Sticky, report.Other)
			}
		})
	}
}

// TestC36_UnitIsChecked: limits in ms and predictions of another kind never meet, and a throughput that makes every
// TTFT infinite is refused.
func TestC36_UnitIsChecked(t *testing.T) {
	refused(t, "ttftSource: prefillThroughput\npeakPrefillThroughput: 0", "parameters.peakPrefillThroughput: must be > 0")
	refused(t, "ttftSource: prefillThroughput\npeakPrefillThroughput: -1", "parameters.peakPrefillThroughput: must be > 0")
	refused(t, "ttftSource: latencyPredictor\npenaltyMode: matchedTokens\nmaxTTFTPenaltyMs: 100", "milliseconds and tokens do not compare")
}

// TestC36_TwoGatesInARow: a strict gate, then a loose one over whatever the strict one let through.
func TestC36_TwoGatesInARow(t *testing.T) {
	const whole, most, none = 0, 1, 2 // hold 100, 85 and 0 % of the prompt
	const second = 15928              // of prefill
	tests := map[string]struct {
		load     [3]int64
		left     []int
		verdicts [2]scheduling.GateVerdict
	}{
		"all idle": {
			left: []int{whole}, verdicts: [2]scheduling.GateVerdict{scheduling.GateHeld, scheduling.GateHeld},
		},
		"the whole match is busy": {
			load: [3]int64{whole: 20 * second},
			left: []int{whole, most}, verdicts: [2]scheduling.GateVerdict{scheduling.GateReleasedStatic, scheduling.GateHeld},
		},
		"every match is busy": {
			load: [3]int64{whole: 20 * second, most: 19 * second},
			left: []int{whole, most, none}, verdicts: [2]scheduling.GateVerdict{scheduling.GateReleasedStatic, scheduling.GateReleasedStatic},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
				whole: endpoint(100, 100, test.load[whole]), most: endpoint(85, 100, test.load[most]), none: endpoint(0, 100, test.load[none]),
			}}
			s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First},
				[]scheduling.Spec{spec("strict", "affinityThreshold: 0.99"), spec("loose", "affinityThreshold: 0.80")},
				"strict", "loose", schedtest.First.Type)
			c := table.Decide(t, s, &scheduling.Request{ID: 1})
			if got := slices.Collect(c.Candidates.All()); !slices.Equal(got, test.left) {
				t.Errorf("left %v, want %v", got, test.left)
			}
			for i, name := range []string{"strict", "loose"} {
				if r := c.Gates[i]; r.Filter != name || r.Verdict != test.verdicts[i] {
					t.Errorf("report %d: %s %v, want %s %v", i, r.Filter, r.Verdict, name, test.verdicts[i])
				}
			}
		})
	}
}

// TestC36_WhoWinsWhenTheGateOpens: with the cost scorer behind it, load decides once the gate is open; a heavy prefix
// scorer undoes the release. Sticky on the pick is what tells the two apart.
func TestC36_WhoWinsWhenTheGateOpens(t *testing.T) {
	const busy = 19 * 15928
	sticky, idle := endpoint(100, 100, busy), endpoint(0, 100, 0)
	sticky.Uncached, idle.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(0)), schedtest.Ref(scheduling.UncachedRequestTokens(1600))
	types := slices.Concat([]scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types())
	cost := scheduling.Ref{Name: "prefill-cost-scorer", Weight: 1}
	load := scheduling.Ref{Name: "token-load-scorer", Weight: 1}
	prefix := scheduling.Ref{Name: "prefix-cache-scorer", Weight: 2}
	const breakEven = "penaltyMode: breakEven"
	for name, test := range map[string]struct {
		parameters string
		scorers    []scheduling.Ref
		verdict    scheduling.GateVerdict
		moved      bool
	}{
		"cost":                    {"", []scheduling.Ref{cost}, scheduling.GateReleasedStatic, true},
		"load":                    {"", []scheduling.Ref{load}, scheduling.GateReleasedStatic, true},
		"prefix 2 against load 1": {"", []scheduling.Ref{prefix, load}, scheduling.GateReleasedStatic, false},
		"breakEven, cost":         {breakEven, []scheduling.Ref{cost}, scheduling.GateReleasedBreakEven, true},
		"breakEven, load":         {breakEven, []scheduling.Ref{load}, scheduling.GateReleasedBreakEven, true},
		"breakEven, prefix 2 against load 1": {
			breakEven, []scheduling.Ref{prefix, load}, scheduling.GateReleasedBreakEven, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := &schedtest.Table{Endpoints: []schedtest.Endpoint{sticky, idle}}
			cfg := schedtest.Config([]scheduling.Spec{spec("gate", test.parameters)}, "gate")
			cfg.Profile = append(append(cfg.Profile, test.scorers...), scheduling.Ref{Name: "max-score-picker"})
			s, err := scheduling.Build(append(table.Types(), types...), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := table.Decide(t, s, &scheduling.Request{ID: 1})
			if c.Gates[0].Verdict != test.verdict {
				t.Fatalf("verdict %v, want %v", c.Gates[0].Verdict, test.verdict)
			}
			if moved := !s.Plugin("gate").(*gate.Filter).Sticky(c, c.Picks[0]); moved != test.moved {
				t.Errorf("moved %v, want %v", moved, test.moved)
			}
		})
	}
}

// TestC43_Typo: a misspelt parameter or value is an error that names it.
func TestC43_Typo(t *testing.T) {
	refused(t, "affinityTreshold: 0.5", "affinityTreshold")
	refused(t, "penaltyMode: matched-tokens", `did you mean "matchedTokens"?`)
	refused(t, `maxTTFTPenaltyMs: "5s"`, "5s")
}
