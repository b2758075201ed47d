package record_test

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// byLatency is a profile of everything that looks at predictions.
func byLatency(t *testing.T, table *schedtest.Table, objective *scheduling.LatencyObjective) *scheduling.Scheduler {
	t.Helper()
	table.Objective = objective
	types := slices.Concat([]scheduling.PluginType{gate.Type()}, filter.Types(), scorer.Types(), picker.Types())
	return table.Build(t, types, []scheduling.Spec{
		{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{ttftSource: latencyPredictor, penaltyMode: breakEven, explorationProbability: 0.3}")},
		{Name: "tier", Type: "slo-headroom-tier-filter", Decode: schedtest.YAML("epsilonExploreNeg: 0.3")},
	}, "gate", "tier", "latency-scorer", "weighted-random-picker")
}

// TestObjectivesAreRecorded and come back in a replay; a request that asks nothing has none.
func TestObjectivesAreRecorded(t *testing.T) {
	for _, tc := range []struct {
		asks *scheduling.LatencyObjective
		want []*decisionv1.LatencyObjective
	}{
		{nil, nil},
		{&scheduling.LatencyObjective{TTFTMs: 250}, []*decisionv1.LatencyObjective{{TtftMs: 250}}},
		{&scheduling.LatencyObjective{TTFTMs: 250, TPOTMs: 12.5}, []*decisionv1.LatencyObjective{{TtftMs: 250, TpotMs: 12.5}}},
	} {
		table := oneMatch()
		s := byLatency(t, table, tc.asks)
		d := decide(table, s, &scheduling.Request{ID: 1}, 0)
		table.Objective = &scheduling.LatencyObjective{TTFTMs: 1} // what a replay must not see
		again, err := record.Replay(s, d, "abc")
		if err != nil {
			t.Fatal(err)
		}
		for name, d := range map[string]*decisionv1.Decision{"record": d, "replay": again} {
			if diff := cmp.Diff(tc.want, d.GetRequest().GetLatencyObjectives(), protocmp.Transform()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

// TestPredictedDecisionsReplayToTheByte: whatever was predicted, and asked for.
func TestPredictedDecisionsReplayToTheByte(t *testing.T) {
	odd := rapid.OneOf(rapid.Float64Range(-100, 1000), rapid.SampledFrom([]float64{0, math.Inf(1), math.Inf(-1), 1e300}))
	rapid.Check(t, func(rt *rapid.T) {
		table := &schedtest.Table{}
		for range rapid.IntRange(1, 12).Draw(rt, "endpoints") {
			e := schedtest.Endpoint{Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(rapid.IntRange(0, 20).Draw(rt, "match"), 20, 16))}
			if rapid.IntRange(0, 4).Draw(rt, "predicted") > 0 {
				e.Latency = &scheduling.LatencyPrediction{
					TTFTMs: odd.Draw(rt, "TTFTMs"), TPOTMs: odd.Draw(rt, "TPOTMs"), TTFTP90Ms: odd.Draw(rt, "TTFTP90Ms"), TPOTP90Ms: odd.Draw(rt, "TPOTP90Ms"),
					TTFTHeadroomMs: odd.Draw(rt, "TTFTHeadroomMs"), TPOTHeadroomMs: odd.Draw(rt, "TPOTHeadroomMs"),
					WaitMs: odd.Draw(rt, "WaitMs"), PrefillMs: odd.Draw(rt, "PrefillMs"), Residual: odd.Draw(rt, "Residual"),
					WholeResponse: rapid.Bool().Draw(rt, "WholeResponse"),
				}
			}
			if rapid.Bool().Draw(rt, "load") {
				e.Load = &scheduling.InFlightLoad{Requests: 3, Tokens: rapid.Int64Range(0, 5000).Draw(rt, "tokens"), Decoding: 2}
				e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(rapid.Int64Range(0, 320).Draw(rt, "uncached")))
			}
			table.Endpoints = append(table.Endpoints, e)
		}
		var asks *scheduling.LatencyObjective
		if rapid.Bool().Draw(rt, "asks") {
			asks = &scheduling.LatencyObjective{TTFTMs: 250, TPOTMs: rapid.SampledFrom([]float64{0, 40}).Draw(rt, "tpot")}
		}
		s := byLatency(t, table, asks)
		d := decide(table, s, &scheduling.Request{ID: rapid.Uint64().Draw(rt, "id"), PromptBytes: 700}, 0)
		again, err := record.Replay(s, d, "abc")
		if err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(marshal(t, d), marshal(t, again)) {
			rt.Fatalf("(-recorded +replayed):\n%s", cmp.Diff(d, again, protocmp.Transform()))
		}
	})
}
