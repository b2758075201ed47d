package explain_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

var update = flag.Bool("update", false, "write testdata anew")

// endpoint has so many tokens in flight and blocks of a prompt of 100.
func endpoint(tokens int64, cached int) schedtest.Endpoint {
	return schedtest.Endpoint{
		Load:     &scheduling.InFlightLoad{Requests: tokens / 100, Tokens: tokens},
		Match:    schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, 100, 16)),
		Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - cached))),
	}
}

func decided(t *testing.T, profile []string, endpoints ...schedtest.Endpoint) (*scheduling.Scheduler, *decisionv1.Decision) {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints}
	types := slices.Concat(table.Types(), []scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types())
	var specs []scheduling.Spec
	if slices.Contains(profile, "gate") {
		specs = append(specs, scheduling.Spec{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0}")})
	}
	cfg := schedtest.Config(specs, profile...)
	s, err := scheduling.Build(types, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := table.Decide(t, s, &scheduling.Request{ID: 7, Model: "m", Choices: 1})
	return s, record.Of(s, c, record.Meta{})
}

var (
	usual  = []string{"gate", "prefill-cost-scorer", "max-score-picker"}
	scored = []string{"prefix-cache-scorer", "token-load-scorer", "max-score-picker"}
	drawn  = []string{"prefix-cache-scorer", "random-picker"}

	predicted = []string{"latency-scorer", "max-score-picker"}
)

// foreseen is an endpoint of which so many ms to the first token and per token are predicted.
func foreseen(ttft, tpot float64) schedtest.Endpoint {
	e := endpoint(0, 0)
	e.Latency = &scheduling.LatencyPrediction{TTFTMs: ttft, TTFTP90Ms: 1.5 * ttft, TPOTMs: tpot, TPOTP90Ms: 2 * tpot, WaitMs: ttft, Residual: 1}
	return e
}

// TestReasonAndFlips shows decisions of every kind with their reasons and flips, as testdata/decisions.txt has them. Each
// flip is tried: at its value the pick is the one that it says, and one token or block before it still the old one.
func TestReasonAndFlips(t *testing.T) {
	var got strings.Builder
	for _, tc := range []struct {
		name      string
		profile   []string
		endpoints []schedtest.Endpoint
	}{
		{"held", usual, []schedtest.Endpoint{endpoint(1000, 90), endpoint(0, 0), endpoint(5000, 95)}},
		{"held, and ahead", usual, []schedtest.Endpoint{endpoint(500, 90), endpoint(2000, 0)}},
		{"released", usual, []schedtest.Endpoint{endpoint(400_000, 90), endpoint(0, 0)}},
		{"everybody holds it", usual, []schedtest.Endpoint{endpoint(40, 100), endpoint(0, 100)}},
		{"nobody holds it", usual, []schedtest.Endpoint{endpoint(300, 0), endpoint(100, 0)}},
		{"equals", usual, []schedtest.Endpoint{endpoint(0, 0), endpoint(0, 0), endpoint(0, 0)}},
		{"alone", usual, []schedtest.Endpoint{endpoint(0, 10)}},
		{"nothing is known", usual, []schedtest.Endpoint{{}, {}}},
		{"several scorers", scored, []schedtest.Endpoint{endpoint(1000, 90), endpoint(0, 20)}},
		{"three of them", scored, []schedtest.Endpoint{endpoint(1000, 90), endpoint(3000, 20), endpoint(2000, 70)}},
		{"drawn", drawn, []schedtest.Endpoint{endpoint(0, 90), endpoint(0, 20)}},
		{"predicted", predicted, []schedtest.Endpoint{foreseen(400, 30), foreseen(430, 30), foreseen(2000, 10)}},
		{"predicted to be equal", predicted, []schedtest.Endpoint{foreseen(400, 30), foreseen(400, 30)}},
		{"none is ready", usual, []schedtest.Endpoint{{EndpointSpec: scheduling.EndpointSpec{State: scheduling.EndpointDraining}}}},
		{"there is none", usual, nil},
	} {
		s, d := decided(t, tc.profile, tc.endpoints...)
		flips, err := explain.Flips(s, d)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "# %s\n%s\n", tc.name, explain.Reason(d))
		for i, f := range flips {
			fmt.Fprintf(&got, "- %.2f %s\n", f.Size(), f.Words(d))
			if i > 0 && f.Size() < flips[i-1].Size() {
				t.Errorf("%s: flip %d is smaller than the one before", tc.name, i)
			}
			check(t, tc.profile, tc.endpoints, d, f)
		}
	}
	const file = "testdata/decisions.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-update writes %s anew (-there +now):\n%s", file, diff)
	}
}

// check decides a flip's change afresh, on endpoints that have it.
func check(t *testing.T, profile []string, endpoints []schedtest.Endpoint, d *decisionv1.Decision, f explain.Flip) {
	t.Helper()
	step := 1.0
	if f.To > f.From {
		step = -1
	}
	pick := func(v float64) int {
		changed := slices.Clone(endpoints)
		e := &changed[f.Ordinal]
		switch f.Input {
		case explain.InFlight:
			e.Load = &scheduling.InFlightLoad{Tokens: int64(v)}
		case explain.Cached:
			e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(int(v), 100, 16))
			e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - int(v))))
		case explain.PredictedTTFT:
			e.Latency = schedtest.Ref(*e.Latency)
			e.Latency.TTFTMs = v
		}
		_, again := decided(t, profile, changed...)
		return int(again.GetPicks()[0])
	}
	if f.Input == explain.PredictedTTFT {
		step /= 1000 // a µs
	}
	switch f.Input {
	case explain.InFlight, explain.Cached, explain.PredictedTTFT:
		if got := pick(f.To); got != f.Pick {
			t.Errorf("%s: %d is picked", f.Words(d), got)
		}
		if got := pick(f.To + step); got != int(d.GetPicks()[0]) {
			t.Errorf("%s: one step before it already", f.Words(d))
		}
	case explain.Weight, explain.Tie:
	}
}

// TestWeightFlip rebuilds the scheduler with a weight a little before and beyond what a flip says.
func TestWeightFlip(t *testing.T) {
	endpoints := []schedtest.Endpoint{endpoint(1000, 90), endpoint(0, 20)}
	s, d := decided(t, scored, endpoints...)
	flips, err := explain.Flips(s, d)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range flips {
		if f.Input != explain.Weight {
			continue
		}
		tried++
		for factor, want := range map[float64]int{0.999: int(d.GetPicks()[0]), 1.001: f.Pick} {
			if f.To < f.From {
				factor = 1 / factor
			}
			again := weighted(t, f.Scorer, f.To*factor, endpoints)
			if got := int(again.GetPicks()[0]); got != want {
				t.Errorf("%s: with %v %d is picked", f.Words(d), f.To*factor, got)
			}
		}
	}
	if tried == 0 {
		t.Error("no weight was found that changes the pick")
	}
}

func weighted(t *testing.T, name string, weight float64, endpoints []schedtest.Endpoint) *decisionv1.Decision {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints}
	cfg := schedtest.Config(nil, scored...)
	for i := range cfg.Profile {
		if cfg.Profile[i].Name == name {
			cfg.Profile[i].Weight = weight
		}
	}
	s, err := scheduling.Build(slices.Concat(table.Types(), scorer.Types(), picker.Types()), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return record.Of(s, table.Decide(t, s, &scheduling.Request{ID: 7, Model: "m", Choices: 1}), record.Meta{})
}

// What a gate did not compare is not the endpoint with the ordinal 0, and one gate takes nothing from what another says.
func TestCompared(t *testing.T) {
	zero, three := uint32(0), uint32(3)
	for _, tc := range []struct {
		gates []*decisionv1.GateReport
		want  map[uint32]bool
	}{
		{nil, map[uint32]bool{}},
		{[]*decisionv1.GateReport{{Sticky: &zero}}, map[uint32]bool{0: true}},
		{[]*decisionv1.GateReport{{Sticky: &three}}, map[uint32]bool{3: true}},
		{[]*decisionv1.GateReport{{Sticky: &zero, Other: &three}, {}}, map[uint32]bool{0: true, 3: true}},
	} {
		if diff := cmp.Diff(tc.want, explain.Compared(&decisionv1.Decision{Gates: tc.gates})); diff != "" {
			t.Error(diff)
		}
	}
}

// What decided is the weighted difference to the best of the others, not the plain one, nor that to somebody else.
func TestReasonNamesWhatDecided(t *testing.T) {
	margin := 2.5
	candidate := func(ordinal uint32, total float64, scores ...float64) *decisionv1.Candidate {
		return &decisionv1.Candidate{Ordinal: ordinal, Address: fmt.Sprintf("e%d", ordinal), Total: total, Scores: scores}
	}
	d := &decisionv1.Decision{
		Picks: []uint32{1}, RunnerUpMargin: &margin,
		Scorers:    []*decisionv1.Scorer{{Name: "heavy", Weight: 10}, {Name: "light", Weight: 1}},
		Candidates: []*decisionv1.Candidate{candidate(0, 0.5, 0, 0.5), candidate(1, 6, 0.5, 1), candidate(2, 3.5, 0.3, 0.5), candidate(3, 0, 0, 0)},
	}
	want := "e1 was picked; of 4 candidates it had the highest total, 6, ahead of e2 by 2.5, most of it by heavy (2)."
	if got := explain.Reason(d); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	d.Candidates[1].SessionHomes = []*decisionv1.SessionHome{{}}
	if got, want := explain.Reason(d), "e1 was picked, having served the session before; of 4 candidates"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// The blocks that are taken from an endpoint are worth what its blocks are worth, on the CPU's tier for example.
func TestFlipOfBlocksThatAreWorthLess(t *testing.T) {
	worth := func(cached int) schedtest.Endpoint {
		e := endpoint(0, cached)
		e.Match.MatchBlocks = cached / 2
		return e
	}
	other := endpoint(0, 20)
	s, d := decided(t, scored, worth(90), other)
	flips, err := explain.Flips(s, d)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range flips {
		if f.Input != explain.Cached || f.Ordinal != 0 {
			continue
		}
		tried++
		for blocks, want := range map[int]int{int(f.To): f.Pick, int(f.To) + 1: 0} {
			if _, again := decided(t, scored, worth(blocks), other); int(again.GetPicks()[0]) != want {
				t.Errorf("%s: with %d blocks %d is picked", f.Words(d), blocks, again.GetPicks()[0])
			}
		}
	}
	if tried == 0 {
		t.Error("no number of blocks was found that changes the pick")
	}
}
