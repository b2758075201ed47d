package scorer_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// predicted is an endpoint with a prediction, in ms; a TPOT of 0 is not predicted.
func predicted(ttft, tpot float64) schedtest.Endpoint {
	return schedtest.Endpoint{Latency: &scheduling.LatencyPrediction{TTFTMs: ttft, TPOTMs: tpot}}
}

// roomy is an endpoint whose prediction leaves so many ms of the objectives.
func roomy(ttft, tpot float64) schedtest.Endpoint {
	e := predicted(50, 10)
	e.Latency.TTFTHeadroomMs, e.Latency.TPOTHeadroomMs = ttft, tpot
	return e
}

func TestLatencyScorer(t *testing.T) {
	whole := predicted(3000, 10)
	whole.Latency.WholeResponse = true
	runScoreCases(t, "latency-scorer", []scoreCase{
		{name: "the best in both", endpoints: []schedtest.Endpoint{predicted(99, 10), predicted(199, 20)}, want: []float64{1, 0.5}},
		{name: "near is near, whoever is there besides", endpoints: []schedtest.Endpoint{predicted(100, 0), predicted(101, 0), predicted(10_000, 0)},
			want: []float64{1, 101. / 102, 101. / 10_001}},
		{name: "too short to tell apart", endpoints: []schedtest.Endpoint{predicted(0.01, 0), predicted(0.03, 0)}, want: []float64{1, 1.01 / 1.03}},
		{name: "the weights", endpoints: []schedtest.Endpoint{predicted(99, 30), predicted(199, 10)},
			want: []float64{1 / (0.8 + 0.2*3), 1 / (0.8*2 + 0.2)}},
		{name: "other weights", parameters: "{ttftWeight: 1, tpotWeight: 3}", endpoints: []schedtest.Endpoint{predicted(99, 30), predicted(199, 10)},
			want: []float64{1 / (0.25 + 0.75*3), 1 / (0.25*2 + 0.75)}},
		{name: "TPOT alone", parameters: "ttftWeight: 0", endpoints: []schedtest.Endpoint{predicted(99, 30), predicted(1e6, 10)}, want: []float64{1. / 3, 1}},
		{name: "TTFT alone", parameters: "tpotWeight: 0", endpoints: []schedtest.Endpoint{predicted(99, 30), predicted(199, 10)}, want: []float64{1, 0.5}},
		{name: "TPOT predicted nowhere", endpoints: []schedtest.Endpoint{predicted(99, 0), predicted(199, 0)}, want: []float64{1, 0.5}},
		{name: "TPOT predicted for one only", endpoints: []schedtest.Endpoint{predicted(99, 0), predicted(199, 10)}, want: []float64{1, 1 / (0.8*2 + 0.2)}},
		{name: "TPOT alone and not predicted", parameters: "ttftWeight: 0", endpoints: []schedtest.Endpoint{predicted(99, 0), predicted(199, 0)},
			want: []float64{1, 0.5}},
		{name: "TPOT that is none", endpoints: []schedtest.Endpoint{predicted(99, math.NaN()), predicted(199, math.Inf(1)), predicted(199, -1)},
			want: []float64{1, 0.5, 0.5}},
		{name: "no prediction is the worst", endpoints: []schedtest.Endpoint{
			{}, predicted(math.NaN(), 10), predicted(math.Inf(1), 10), predicted(0, 10), predicted(-5, 10), predicted(99, 10), predicted(1e15, 1e15),
		}, want: []float64{0, 0, 0, 0, 0, 1, 1e-9}},
		{name: "an unusable prediction has no best TPOT", endpoints: []schedtest.Endpoint{predicted(0, 1), predicted(99, 10)}, want: []float64{0, 1}},
		{name: "nothing predicted", endpoints: []schedtest.Endpoint{{}, predicted(math.NaN(), 0)}, want: []float64{0, 0}},
		{name: "times to the end compare with each other", endpoints: []schedtest.Endpoint{whole, whole}, want: []float64{1, 1}},
	})
}

func TestLatencyScorerWithObjective(t *testing.T) {
	both := &scheduling.LatencyObjective{TTFTMs: 200, TPOTMs: 40}
	ttft, tpot := &scheduling.LatencyObjective{TTFTMs: 200}, &scheduling.LatencyObjective{TPOTMs: 40}
	meets := func(h float64) float64 { return 0.5 + 0.5/(1+h) }
	exceeds := func(d float64) float64 { return 0.5 / (1 + d) }
	whole := roomy(100, 20)
	whole.Latency.WholeResponse = true
	noTPOT := roomy(20, 0)
	noTPOT.Latency.TPOTMs = 0
	for name, tc := range map[string]struct {
		parameters string
		objective  *scheduling.LatencyObjective
		endpoints  []schedtest.Endpoint
		want       []float64
	}{
		"the least headroom first": {"", ttft, []schedtest.Endpoint{roomy(100, 0), roomy(10, 0), roomy(0, 0)}, []float64{meets(.5), meets(.05), 1}},
		"then the least excess": {"", ttft, []schedtest.Endpoint{roomy(-100, 0), roomy(-10, 0), roomy(190, 0)},
			[]float64{exceeds(.5), exceeds(.05), meets(.95)}},
		"both, by weight": {"", both, []schedtest.Endpoint{roomy(100, 10), roomy(20, 30)},
			[]float64{meets(.8*.5 + .2*.25), meets(.8*.1 + .2*.75)}},
		"one that exceeds is enough, and room in the other is no excuse": {"", both, []schedtest.Endpoint{roomy(190, -10), roomy(-50, 39), roomy(-50, -10)},
			[]float64{exceeds(.2 * .25), exceeds(.8 * .25), exceeds(.25)}},
		"what is not asked drops out, its excess too": {"", ttft, []schedtest.Endpoint{roomy(100, -10)}, []float64{meets(.5)}},
		"TPOT alone":                                       {"", tpot, []schedtest.Endpoint{roomy(-100, 10), roomy(100, -10)}, []float64{meets(.25), exceeds(.25)}},
		"asked for, of no weight":                          {"tpotWeight: 0", tpot, []schedtest.Endpoint{roomy(0, 10), roomy(0, 20)}, []float64{meets(.25), meets(.5)}},
		"an excess of no weight is one":                    {"tpotWeight: 0", both, []schedtest.Endpoint{roomy(10, -10)}, []float64{.5}},
		"unknown beside known":                             {"", ttft, []schedtest.Endpoint{{}, roomy(math.NaN(), 0), roomy(math.Inf(1), 0), roomy(-1e12, 0)}, []float64{0, 0, 0, 1e-9}},
		"TPOT asked for too, and not predicted":            {"", both, []schedtest.Endpoint{noTPOT, roomy(20, 4)}, []float64{meets(.1), meets(.1)}},
		"TPOT alone asked for, and predicted for one only": {"", tpot, []schedtest.Endpoint{noTPOT, roomy(0, -4)}, []float64{0, exceeds(.1)}},
		"TPOT alone asked for, and predicted nowhere: by latency": {"", tpot, []schedtest.Endpoint{predicted(99, 0), predicted(199, 0), {}},
			[]float64{1, .5, 0}},
		"a time to the end is held against no time to a first token": {"", ttft, []schedtest.Endpoint{whole, whole}, []float64{1, 1}},
		"nothing predicted":       {"", ttft, []schedtest.Endpoint{{}, {}}, []float64{0, 0}},
		"an objective of nothing": {"", &scheduling.LatencyObjective{}, []schedtest.Endpoint{predicted(99, 10), predicted(199, 20)}, []float64{1, .5}},
	} {
		t.Run(name, func(t *testing.T) {
			table := schedtest.Table{Endpoints: tc.endpoints, Objective: tc.objective}
			got := table.Scores(t, scorer.Types(), "latency-scorer", tc.parameters, &scheduling.Request{})
			for i := range tc.want {
				if math.Abs(got[i]-tc.want[i]) > 1e-12 {
					t.Errorf("endpoint %d scores %v, want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

// TestC46_OddPredictions: whatever a prediction says, an endpoint with one scores above 0 and at most 1, one without scores 0, and
// of two candidates that meet the objective in everything the one with less headroom in both never scores less.
func TestC46_OddPredictions(t *testing.T) {
	odd := rapid.OneOf(rapid.Float64Range(-1e3, 1e3), rapid.SampledFrom([]float64{
		0, math.NaN(), math.Inf(1), math.Inf(-1), 1e12, math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64,
	}))
	rapid.Check(t, func(rt *rapid.T) {
		table := &schedtest.Table{}
		if rapid.Bool().Draw(rt, "asks") {
			table.Objective = &scheduling.LatencyObjective{
				TTFTMs: rapid.SampledFrom([]float64{0, 1, 250, 86_400_000}).Draw(rt, "ttft"), TPOTMs: rapid.SampledFrom([]float64{0, 0.001, 40}).Draw(rt, "tpot"),
			}
		}
		for range rapid.IntRange(1, 6).Draw(rt, "endpoints") {
			e := schedtest.Endpoint{}
			if rapid.Bool().Draw(rt, "predicted") {
				e.Latency = &scheduling.LatencyPrediction{
					TTFTMs: odd.Draw(rt, "TTFTMs"), TPOTMs: odd.Draw(rt, "TPOTMs"),
					TTFTHeadroomMs: odd.Draw(rt, "TTFTHeadroomMs"), TPOTHeadroomMs: odd.Draw(rt, "TPOTHeadroomMs"),
				}
			}
			table.Endpoints = append(table.Endpoints, e)
		}
		parameters := rapid.SampledFrom([]string{"", "ttftWeight: 0", "tpotWeight: 0"}).Draw(rt, "parameters")
		got := table.Scores(t, scorer.Types(), "latency-scorer", parameters, &scheduling.Request{})
		judged := slices.ContainsFunc(table.Endpoints, func(e schedtest.Endpoint) bool {
			return table.Objective != nil && e.Latency.HeadroomOf(*table.Objective).Known()
		})
		for i, e := range table.Endpoints {
			takesPart := e.Latency.Usable() && (!judged || e.Latency.HeadroomOf(*table.Objective).Known())
			if !(got[i] >= 0 && got[i] <= 1) || (got[i] > 0) != takesPart {
				rt.Fatalf("endpoint %d scores %v; takes part: %t (%+v)", i, got[i], takesPart, e.Latency)
			}
			for j, other := range table.Endpoints {
				if !judged || got[i] == 0 || got[j] == 0 {
					continue
				}
				a, b := e.Latency.HeadroomOf(*table.Objective), other.Latency.HeadroomOf(*table.Objective)
				if !a.Negative() && b.Negative() && got[i] < got[j] {
					rt.Fatalf("%d meets the objective and scores %v, %d does not and scores %v", i, got[i], j, got[j])
				}
				if !a.Negative() && a.TTFT <= b.TTFT && a.TPOT <= b.TPOT && got[i] < got[j] {
					rt.Fatalf("%d has less headroom than %d and scores %v below %v", i, j, got[i], got[j])
				}
			}
		}
	})
}

// TestNothingPredictedIsDrawn: where nobody has a prediction the seed decides, and everyone is picked in turn.
func TestNothingPredictedIsDrawn(t *testing.T) {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 4)}
	s := table.Build(t, append(scorer.Types(), picker.Types()...), nil, "latency-scorer", "max-score-picker")
	picks := map[int]int{}
	for id := range uint64(400) {
		picks[table.Decide(t, s, &scheduling.Request{ID: id}).Picks[0]]++
	}
	for e := range 4 {
		if picks[e] < 60 {
			t.Errorf("of 400 picks endpoint %d has %d", e, picks[e])
		}
	}
}

// TestLatencyBesideOthers: what nobody notices does not outvote a difference in the cache, and a random picker takes slow
// endpoints seldom and equal ones alike.
func TestLatencyBesideOthers(t *testing.T) {
	cold, warm := predicted(100, 10), predicted(101, 10)
	warm.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(5, 100, 16))
	cold.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(0, 100, 16))
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{cold, warm}}
	types := append(scorer.Types(), picker.Types()...)
	s := table.Build(t, types, nil, "latency-scorer", "prefix-cache-scorer", "max-score-picker")
	if got := table.Decide(t, s, &scheduling.Request{ID: 1}).Picks[0]; got != 1 {
		t.Errorf("1 ms outvotes a match of 5 %%")
	}

	table = &schedtest.Table{Endpoints: []schedtest.Endpoint{predicted(100, 0), predicted(101, 0), predicted(2000, 0)}}
	s = table.Build(t, types, nil, "latency-scorer", "weighted-random-picker")
	picks := [3]int{}
	for id := range uint64(1000) {
		picks[table.Decide(t, s, &scheduling.Request{ID: id}).Picks[0]]++
	}
	if picks[0] < 400 || picks[1] < 400 || picks[2] > 60 || picks[2] == 0 {
		t.Errorf("picks %v", picks)
	}
}
