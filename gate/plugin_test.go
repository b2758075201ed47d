package gate_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// endpoint is one endpoint with a match (weighted = literal, blocks of 16 tokens) and tokens in flight.
func endpoint(matchBlocks, totalBlocks int, tokens int64) schedtest.Endpoint {
	e := loaded(tokens)
	e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(matchBlocks, totalBlocks, 16))
	return e
}

// loaded is an endpoint without match info.
func loaded(tokens int64) schedtest.Endpoint {
	return schedtest.Endpoint{Load: &scheduling.InFlightLoad{Requests: 1, Tokens: tokens}}
}

// unloaded takes an endpoint's load away: it is unknown.
func unloaded(e schedtest.Endpoint) schedtest.Endpoint {
	e.Load = nil
	return e
}

// gated runs one request through a gate that never explores and returns what is left and what the gate said.
func gated(t *testing.T, parameters string, endpoints ...schedtest.Endpoint) (left []int, report scheduling.GateReport) {
	t.Helper()
	c := gatedCycle(t, parameters, endpoints...)
	if len(c.Gates) != 1 {
		t.Fatalf("%d gate reports, want 1", len(c.Gates))
	}
	return slices.Collect(c.Candidates.All()), c.Gates[0]
}

func gatedCycle(t *testing.T, parameters string, endpoints ...schedtest.Endpoint) *scheduling.Cycle {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{spec("gate", parameters)},
		"gate", schedtest.First.Type)
	return table.Decide(t, s, &scheduling.Request{ID: 1})
}

func spec(name, parameters string) scheduling.Spec {
	return scheduling.Spec{
		Name: name, Type: gate.TypeName, Path: "plugins[0]", Decode: schedtest.YAML("explorationProbability: 0\n" + parameters),
	}
}

// expect compares what is left and the verdict.
func expect(t *testing.T, left []int, report scheduling.GateReport, wantLeft []int, want scheduling.GateVerdict) {
	t.Helper()
	if report.Verdict != want {
		t.Errorf("verdict %v, want %v (gap %v ms, %v tokens)", report.Verdict, want, report.GapMs, report.GapTokens)
	}
	if diff := cmp.Diff(wantLeft, left); diff != "" {
		t.Errorf("candidates left (-want +got):\n%s", diff)
	}
}

const matchedTokensMode = "penaltyMode: matchedTokens\n"

func TestKeepsPinWhenGapBelowMatchedTokens(t *testing.T) {
	left, report := gated(t, matchedTokensMode, endpoint(90, 100, 1000), endpoint(0, 100, 0))
	expect(t, left, report, []int{0}, scheduling.GateHeld)
	want := scheduling.GateReport{
		Filter: "gate", Verdict: scheduling.GateHeld,
		GapTokens: 1000, BarTokens: 1440, GapMs: 1000.0 * 1000 / 15928, BarMs: 18000, Sticky: 0, Other: 1,
		Settings: &scheduling.GateSettings{AffinityThreshold: 0.8},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestReleasesPinWhenGapExceedsMatchedTokens(t *testing.T) {
	left, report := gated(t, matchedTokensMode, endpoint(90, 100, 4000), endpoint(0, 100, 0))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedMatched)
	if report.GapTokens != 4000 || report.BarTokens != 1440 {
		t.Errorf("gap %v against %v tokens, want 4000 against 1440", report.GapTokens, report.BarTokens)
	}
}

func TestScalesWithCacheValue(t *testing.T) {
	left, report := gated(t, matchedTokensMode, endpoint(300, 320, 4000), endpoint(0, 320, 0))
	expect(t, left, report, []int{0}, scheduling.GateHeld)
	if report.GapTokens != 4000 || report.BarTokens != 4800 {
		t.Errorf("gap %v against %v tokens, want 4000 against 4800", report.GapTokens, report.BarTokens)
	}
}

func TestCeilingStillApplies(t *testing.T) {
	// 20 s of prefill behind, on a prefix that is worth still more tokens.
	const gap, match = 20 * 15928, 25000
	left, report := gated(t, matchedTokensMode, endpoint(match, match, gap), endpoint(0, match, 0))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedCeiling)
	if report.GapMs != 20000 || report.BarMs != 18000 {
		t.Errorf("gap %v against %v ms, want 20000 against 18000", report.GapMs, report.BarMs)
	}

	t.Run("maxTTFTPenaltyMs 0 removes it", func(t *testing.T) {
		left, report := gated(t, matchedTokensMode+"maxTTFTPenaltyMs: 0", endpoint(match, match, gap), endpoint(0, match, 0))
		expect(t, left, report, []int{0}, scheduling.GateHeld)
	})
}

func TestNoMatchInfoIsNoOp(t *testing.T) {
	t.Run("absent", func(t *testing.T) {
		left, report := gated(t, matchedTokensMode, loaded(400_000), loaded(0))
		expect(t, left, report, []int{0, 1}, scheduling.GateNoSticky)
	})
	t.Run("block size 0", func(t *testing.T) {
		blind := loaded(400_000)
		blind.Match = &scheduling.PrefixCacheMatchInfo{MatchBlocks: 100, CachedBlockCount: 100, TotalBlocks: 100}
		left, report := gated(t, matchedTokensMode, blind, loaded(0))
		expect(t, left, report, []int{0, 1}, scheduling.GateNoSticky)
	})
}

func TestStaticModeUnchanged(t *testing.T) {
	t.Run("above the penalty releases, whatever the match", func(t *testing.T) {
		left, report := gated(t, "penaltyMode: static", endpoint(25000, 25000, 19*15928), endpoint(0, 25000, 0))
		expect(t, left, report, []int{0, 1}, scheduling.GateReleasedStatic)
		if report.GapMs != 19000 || report.BarMs != 18000 || !math.IsNaN(report.BarTokens) {
			t.Errorf("gap %v ms against %v ms and %v tokens, want 19000, 18000, NaN", report.GapMs, report.BarMs, report.BarTokens)
		}
	})
	t.Run("below the penalty holds, whatever the match", func(t *testing.T) {
		left, report := gated(t, "penaltyMode: static", endpoint(90, 100, 17*15928), endpoint(0, 100, 0))
		expect(t, left, report, []int{0}, scheduling.GateHeld)
	})
	t.Run("penalty 0 always sticks", func(t *testing.T) {
		left, report := gated(t, "maxTTFTPenaltyMs: 0", endpoint(90, 100, math.MaxInt64), endpoint(0, 100, 0))
		expect(t, left, report, []int{0}, scheduling.GateHeld)
		if report.BarMs != 0 {
			t.Errorf("BarMs %v, want 0: none applies", report.BarMs)
		}
	})
}

func TestDefaultPenaltyModeIsStatic(t *testing.T) {
	// matchedTokens would release at a gap of 4,000 over a match of 1,440.
	left, report := gated(t, "", endpoint(90, 100, 4000), endpoint(0, 100, 0))
	expect(t, left, report, []int{0}, scheduling.GateHeld)
	left, report = gated(t, "", endpoint(90, 100, 18*15928+1), endpoint(0, 100, 0))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedStatic)
}

func TestBarIsTierWeighted(t *testing.T) {
	// 4,096 tokens wholly on the CPU tier at 0.8: 204 weighted blocks, so a lead of 3,264 tokens is worth leaving for,
	// although 4,096 tokens are cached.
	cpu := func(tokens int64) schedtest.Endpoint {
		e := loaded(tokens)
		e.Match = &scheduling.PrefixCacheMatchInfo{MatchBlocks: 204, CachedBlockCount: 256, TotalBlocks: 256, BlockSizeTokens: 16}
		return e
	}
	const mode = matchedTokensMode + "affinityThreshold: 0.75"
	left, report := gated(t, mode, cpu(3264), endpoint(0, 256, 0))
	expect(t, left, report, []int{0}, scheduling.GateHeld)
	left, report = gated(t, mode, cpu(3265), endpoint(0, 256, 0))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedMatched)
	if report.BarTokens != 3264 {
		t.Errorf("bar %v tokens, want 3264", report.BarTokens)
	}
	// At the default threshold it is not sticky at all: 204/256 is 0.796875.
	left, report = gated(t, matchedTokensMode, cpu(0), endpoint(0, 256, 0))
	expect(t, left, report, []int{0, 1}, scheduling.GateNoSticky)
}

func TestBothSidesAreTheirBestByTTFT(t *testing.T) {
	tests := map[string]struct {
		endpoints     []schedtest.Endpoint
		sticky, other int
		gap           float64
		bar           float64
		left          []int
		verdict       scheduling.GateVerdict
	}{
		"least loaded of each side": {
			endpoints: []schedtest.Endpoint{
				endpoint(95, 100, 9000), endpoint(90, 100, 1000), endpoint(0, 100, 800), endpoint(10, 100, 500),
			},
			sticky: 1, other: 3, gap: 500, bar: 1440, left: []int{0, 1}, verdict: scheduling.GateHeld,
		},
		"equal TTFT prefers the longer match": {
			endpoints: []schedtest.Endpoint{endpoint(85, 100, 1500), endpoint(95, 100, 1500), endpoint(0, 100, 0)},
			sticky:    1, other: 2, gap: 1500, bar: 1520, left: []int{0, 1}, verdict: scheduling.GateHeld,
		},
		"and of the others as well": {
			endpoints: []schedtest.Endpoint{endpoint(85, 100, 1361), endpoint(0, 100, 0), endpoint(40, 100, 0)},
			sticky:    0, other: 2, gap: 1361, bar: 1360, left: []int{0, 1, 2}, verdict: scheduling.GateReleasedMatched,
		},
		"a sticky endpoint that is less busy": {
			endpoints: []schedtest.Endpoint{endpoint(85, 100, 0), endpoint(0, 100, 5000)},
			sticky:    0, other: 1, gap: -5000, bar: 1360, left: []int{0}, verdict: scheduling.GateHeld,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			left, report := gated(t, matchedTokensMode, test.endpoints...)
			expect(t, left, report, test.left, test.verdict)
			want := scheduling.GateReport{
				Filter: "gate", Verdict: test.verdict, Sticky: test.sticky, Other: test.other,
				GapTokens: test.gap, GapMs: test.gap * 1000 / 15928, BarTokens: test.bar, BarMs: 18000,
				Settings: &scheduling.GateSettings{AffinityThreshold: 0.8},
			}
			if diff := cmp.Diff(want, report); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutTwoSides(t *testing.T) {
	none := scheduling.GateReport{
		Filter: "gate", GapMs: math.NaN(), GapTokens: math.NaN(), BarTokens: math.NaN(), Sticky: -1, Other: -1,
		Settings: &scheduling.GateSettings{AffinityThreshold: 0.8},
	}
	tests := map[string]struct {
		endpoints []schedtest.Endpoint
		left      []int
		verdict   scheduling.GateVerdict
		sticky    int
	}{
		"every candidate sticky": {
			endpoints: []schedtest.Endpoint{endpoint(100, 100, 400_000), endpoint(100, 100, 3)},
			left:      []int{0, 1}, verdict: scheduling.GateHeld, sticky: 1,
		},
		"every candidate sticky, no load known": {
			endpoints: []schedtest.Endpoint{unloaded(endpoint(100, 100, 0))},
			left:      []int{0}, verdict: scheduling.GateHeld, sticky: -1,
		},
		"none sticky": {
			endpoints: []schedtest.Endpoint{endpoint(79, 100, 400_000), endpoint(0, 100, 3)},
			left:      []int{0, 1}, verdict: scheduling.GateNoSticky, sticky: -1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			left, report := gated(t, "", test.endpoints...)
			expect(t, left, report, test.left, test.verdict)
			want := none
			want.Verdict, want.Sticky = test.verdict, test.sticky
			if diff := cmp.Diff(want, report, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestThresholdZeroOrLessIsOff(t *testing.T) {
	for _, threshold := range []string{"0", "-1"} {
		c := gatedCycle(t, "affinityThreshold: "+threshold, endpoint(100, 100, 0), endpoint(0, 100, 0))
		if c.Candidates.Len() != 2 || len(c.Gates) != 0 {
			t.Errorf("threshold %s: %d candidates and %d reports, want 2 and 0", threshold, c.Candidates.Len(), len(c.Gates))
		}
	}
}

func TestNoCandidatesNoVerdict(t *testing.T) {
	c := gatedCycle(t, "")
	if len(c.Gates) != 0 {
		t.Errorf("verdict %v over no candidates", c.Gates[0].Verdict)
	}
}

func TestStickyTellsMovedFromOpened(t *testing.T) {
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{endpoint(90, 100, 0), endpoint(79, 100, 0), loaded(0)}}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{spec("gate", "")},
		"gate", schedtest.First.Type)
	c := table.Decide(t, s, &scheduling.Request{ID: 1})
	filter, ok := s.Plugin("gate").(*gate.Filter)
	if !ok {
		t.Fatalf("plugin is a %T", s.Plugin("gate"))
	}
	for ordinal, want := range []bool{true, false, false} {
		if got := filter.Sticky(c, ordinal); got != want {
			t.Errorf("Sticky(%d) = %v, want %v", ordinal, got, want)
		}
	}
}

func TestExplorationFrequency(t *testing.T) {
	const n, epsilon = 40_000, 0.05
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{endpoint(90, 100, 0), endpoint(0, 100, 0)}}
	parameters := "affinityThreshold: 0.5\nepsilonExploreSticky: 0.05"
	specs := []scheduling.Spec{
		{Name: "first", Type: gate.TypeName, Decode: schedtest.YAML(parameters)},
		{Name: "second", Type: gate.TypeName, Decode: schedtest.YAML(parameters)},
	}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, specs, "first", "second", schedtest.First.Type)
	snapshot := table.Pool().Snapshot()
	first, both := 0, 0
	for id := range uint64(n) {
		c := s.Begin(snapshot, &scheduling.Request{ID: id}, 0)
		s.Produce(t.Context(), c)
		s.Preview(c)
		explored := [2]bool{c.Gates[0].Verdict == scheduling.GateExplored, c.Gates[1].Verdict == scheduling.GateExplored}
		if explored[0] {
			first++
			if explored[1] {
				both++
			}
		}
		if all := explored[0] && explored[1]; all != (c.Candidates.Len() == 2) {
			t.Fatalf("id %d: explored %v left %d candidates", id, explored, c.Candidates.Len())
		}
		s.End(c)
	}
	within := func(name string, got int, p float64) {
		if sigma := math.Sqrt(n * p * (1 - p)); math.Abs(float64(got)-n*p) > 5*sigma {
			t.Errorf("%s: %d of %d, want %v ± %.0f", name, got, n, n*p, 5*sigma)
		}
	}
	within("the first gate explores", first, epsilon)
	within("both explore, independently", both, epsilon*epsilon)
}

func TestExplorationExtremes(t *testing.T) {
	for parameters, want := range map[string]scheduling.GateVerdict{
		"explorationProbability: 1": scheduling.GateExplored,
		"explorationProbability: 0": scheduling.GateHeld,
	} {
		table := &schedtest.Table{Endpoints: []schedtest.Endpoint{endpoint(90, 100, 0), endpoint(0, 100, 0)}}
		s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First},
			[]scheduling.Spec{{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML(parameters)}}, "gate", schedtest.First.Type)
		for id := range uint64(200) {
			if got := table.Decide(t, s, &scheduling.Request{ID: id}).Gates[0].Verdict; got != want {
				t.Fatalf("%s, id %d: %v, want %v", parameters, id, got, want)
			}
		}
	}
}

func TestFilterAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	table := &schedtest.Table{}
	for i := range 64 {
		table.Endpoints = append(table.Endpoints, endpoint(i%2*100, 100, int64(i)*1000))
	}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{spec("gate", "")},
		"gate", schedtest.First.Type)
	snapshot, request, ctx := table.Pool().Snapshot(), &scheduling.Request{ID: 1}, t.Context()
	if allocs := testing.AllocsPerRun(200, func() {
		c := s.Begin(snapshot, request, 0)
		s.Produce(ctx, c)
		s.Preview(c)
		s.End(c)
	}); allocs != 0 {
		t.Errorf("%v allocations a decision, want 0", allocs)
	}
}

func BenchmarkFilter(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run("endpoints="+map[int]string{8: "8", 64: "64", 512: "512"}[n], func(b *testing.B) {
			table := &schedtest.Table{}
			for i := range n {
				table.Endpoints = append(table.Endpoints, endpoint(i%4/3*100, 100, int64(i)*10))
			}
			s := table.Build(b, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{spec("gate", matchedTokensMode)},
				"gate", schedtest.First.Type)
			filter := s.Plugin("gate").(scheduling.Filter)
			c := table.Decide(b, s, &scheduling.Request{ID: 1})
			all := table.Pool().Snapshot().Ready
			b.ReportAllocs()
			for b.Loop() {
				c.Candidates.CopyFrom(all)
				c.Gates = c.Gates[:0]
				filter.Filter(c, c.Candidates)
			}
		})
	}
}
