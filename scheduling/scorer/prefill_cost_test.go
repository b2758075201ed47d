package scorer_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

func costs(inFlight, decoding, uncached int64) schedtest.Endpoint {
	return schedtest.Endpoint{
		Load:     &scheduling.InFlightLoad{Tokens: inFlight, Decoding: decoding},
		Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(uncached)),
	}
}

func TestPrefillCostScorer(t *testing.T) {
	runScoreCases(t, "prefill-cost-scorer", []scoreCase{
		{
			// 1 ms a token; α = 1, κ = 0.1. Costs: 10·2 = 20; 5 + 10·2 = 25; 10·(2 + 0.1·5) = 25; 0.
			name:       "wait, own prefill, decodes",
			parameters: "peakPrefillThroughput: 1000",
			endpoints:  []schedtest.Endpoint{costs(0, 0, 10), costs(5, 0, 10), costs(0, 5, 10), costs(0, 9, 0)},
			want:       []float64{1. / 21, 1. / 26, 1. / 26, 1},
		},
		{
			name:      "default throughput",
			endpoints: []schedtest.Endpoint{costs(15928, 0, 0), costs(0, 0, 15928)},
			want:      []float64{1, 1001. / 2001},
		},
		{
			name:       "own constants",
			parameters: "{peakPrefillThroughput: 1000, alpha: 3, kappa: 0}",
			endpoints:  []schedtest.Endpoint{costs(3, 100, 1), costs(6, 0, 1)},
			want:       []float64{1, 8. / 11},
		},
		{
			name:       "idle and wholly cached everywhere",
			parameters: "peakPrefillThroughput: 1000",
			endpoints:  []schedtest.Endpoint{costs(0, 0, 0), costs(0, 3, 0)},
			want:       []float64{1, 1},
		},
		{
			name:       "unknown uncached tokens: the whole input, exact where the body gave ids",
			parameters: "peakPrefillThroughput: 1000",
			request:    scheduling.Request{TokenCount: 10, PromptBytes: 400},
			endpoints:  []schedtest.Endpoint{{Load: &scheduling.InFlightLoad{}}, costs(0, 0, 0)},
			want:       []float64{1. / 21, 1},
		},
		{
			name:       "unknown uncached tokens: the whole input, estimated from bytes",
			parameters: "peakPrefillThroughput: 1000",
			request:    scheduling.Request{PromptBytes: 37},
			endpoints:  []schedtest.Endpoint{{Load: &scheduling.InFlightLoad{}}, costs(0, 0, 0)},
			want:       []float64{1. / 21, 1},
		},
		{
			name:       "unknown load is the mean",
			parameters: "peakPrefillThroughput: 1000",
			endpoints:  []schedtest.Endpoint{costs(0, 0, 0), {Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(0))}, costs(1, 0, 0)},
			want:       []float64{1, 0.75, 0.5},
		},
		{name: "nothing known", endpoints: []schedtest.Endpoint{{}, {}}, want: []float64{0, 0}},
		{
			name:       "negative counts are none",
			parameters: "peakPrefillThroughput: 1000",
			endpoints:  []schedtest.Endpoint{costs(-5, -5, -5), costs(0, 0, 0)},
			want:       []float64{1, 1},
		},
	})
}

// TestC20_LongPromptFollowsItsMatch: 60,000 of 100,000 tokens cached are below any usual affinity threshold, yet the
// cost keeps the request on the endpoint that holds them for as long as its lead in tokens is less than what the match
// saves everyone: with nobody decoding, (1 + α) times the matched tokens.
func TestC20_LongPromptFollowsItsMatch(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lead  int64
		wantA bool
	}{
		{"no lead", 0, true},
		{"lead less than the match", 59_000, true},
		{"lead less than what the match saves everyone", 119_999, true},
		{"lead more than that", 120_001, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := schedtest.Table{Endpoints: []schedtest.Endpoint{costs(tc.lead, 0, 40_000), costs(0, 0, 100_000)}}
			got := table.Scores(t, scorer.Types(), "prefill-cost-scorer", "", &scheduling.Request{})
			if onA := got[0] > got[1]; onA != tc.wantA {
				t.Errorf("scores %v: on A %t, want %t", got, onA, tc.wantA)
			}
		})
	}
}

// TestPrefillCostKeepsTheOrder compares the scores with the costs in exact integers: throughput cancels out, and with
// α = 1 and κ = 1/8 so do fractions. The scores must order as they do and be equal where they are.
func TestPrefillCostKeepsTheOrder(t *testing.T) {
	const eighths = 8
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(rt, "endpoints")
		table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, n)}
		exact := make([]int64, n)
		for i := range n {
			inFlight := rapid.Int64Range(0, 1<<31).Draw(rt, "inFlight")
			decoding := rapid.Int64Range(0, 512).Draw(rt, "decoding")
			uncached := rapid.Int64Range(0, 1<<21).Draw(rt, "uncached")
			table.Endpoints[i] = costs(inFlight, decoding, uncached)
			exact[i] = inFlight*eighths + uncached*(2*eighths+decoding)
			if i > 0 && rapid.Bool().Draw(rt, "same work, split otherwise") {
				table.Endpoints[i] = costs(exact[i-1]/eighths-2*(exact[i-1]/eighths/4), 0, exact[i-1]/eighths/4)
				exact[i] = exact[i-1] / eighths * eighths
			}
		}
		got := table.Scores(t, scorer.Types(), "prefill-cost-scorer", "kappa: 0.125", &scheduling.Request{})
		for i := range n {
			if got[i] <= 0 || got[i] > 1 {
				rt.Fatalf("score %v is not in (0, 1]", got[i])
			}
			for j := range n {
				if (got[i] > got[j]) != (exact[i] < exact[j]) {
					rt.Fatalf("endpoint %d costs %d and scores %v, %d costs %d and scores %v", i, exact[i], got[i], j, exact[j], got[j])
				}
			}
		}
	})
}

// What is given takes the place of what is learnt, one by one.
func TestPrefillCostKnobs(t *testing.T) {
	rates := func(e schedtest.Endpoint, ms float64) schedtest.Endpoint {
		e.Rates = &scheduling.LearntRates{PrefillMsPerToken: ms, WaitMsPerToken: ms, Confidence: 1}
		return e
	}
	for name, tc := range map[string]struct {
		parameters string
		pressure   scheduling.PoolPressure
		want       []float64 // costs
	}{
		"all learnt": {"", scheduling.PoolPressure{Utilisation: 0.75, DecodeStall: 0.5, CompanyMs: 10},
			[]float64{2 * (100 + 10*(1+3+0.05*4)), 10 * (1 + 3)}},
		"utilisation is bounded":   {"", scheduling.PoolPressure{Utilisation: 1e9}, []float64{2 * (100 + 10*4), 10 * 4}},
		"and not below 0":          {"", scheduling.PoolPressure{Utilisation: -1}, []float64{2 * (100 + 10), 10}},
		"throughput given":         {"peakPrefillThroughput: 500", scheduling.PoolPressure{}, []float64{2 * (100 + 10), 2 * 10}},
		"alpha given":              {"alpha: 5", scheduling.PoolPressure{Utilisation: 0.75}, []float64{2 * (100 + 10*6), 10 * 6}},
		"kappa given":              {"kappa: 1", scheduling.PoolPressure{DecodeStall: 0.5}, []float64{2 * (100 + 10*5), 10}},
		"decodes at another price": {"decodePrice: 1", scheduling.PoolPressure{DecodeStall: 0.5, CompanyMs: 10}, []float64{2 * (100 + 10*3), 10}},
	} {
		t.Run(name, func(t *testing.T) {
			table := schedtest.Table{
				Endpoints: []schedtest.Endpoint{rates(costs(100, 4, 10), 2), rates(costs(0, 0, 10), 1), rates(costs(0, -3, 0), 1)}, Pressure: &tc.pressure,
			}
			got := table.Scores(t, scorer.Types(), "prefill-cost-scorer", tc.parameters, &scheduling.Request{})
			for i, cost := range append(tc.want, 0) {
				if want := 1 / (1 + cost); math.Abs(got[i]-want) > 1e-12 {
					t.Errorf("endpoint %d scores %v, a cost of %v; want %v", i, got[i], 1/got[i]-1, cost)
				}
			}
		})
	}
}
