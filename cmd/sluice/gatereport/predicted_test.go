package gatereport_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// predictedLog are decisions of a gate whose times are predicted: the fixture's gaps, where the tokens in flight say the opposite.
func predictedLog(t *testing.T, parameters string) []*decisionv1.Decision {
	t.Helper()
	return predictedBy(t, newFixture(t, "{explorationProbability: 0, ttftSource: latencyPredictor, "+parameters+"}", gate.TypeName, schedtest.First.Type))
}

func predictedBy(t *testing.T, f *fixture) []*decisionv1.Decision {
	t.Helper()
	var all []*decisionv1.Decision
	for i, gap := range fixtureGaps() {
		for ordinal, ms := range []float64{50_000 + float64(gap), 50_000, 190_000} {
			f.table.Endpoints[ordinal].Latency = &scheduling.LatencyPrediction{TTFTMs: ms, Confidence: 1}
			f.table.Endpoints[ordinal].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(1000 * ordinal))
		}
		all = append(all, f.decide("large", -7*gap, matchedOf(i)))
	}
	return all
}

// TestPredictedTimes: a gate that compares predicted times is judged by them, and not by tokens over a throughput.
func TestPredictedTimes(t *testing.T) {
	r := reportOn(t, predictedLog(t, "maxTTFTPenaltyMs: 18000"), options())
	g := r.Gates[0]
	if g.Compared != 702 || g.Released != 4 || g.Pinned != 121 || !g.Predicted || len(g.PeaksPerS) != 0 {
		t.Errorf("compared %d, released %d, pinned %d, predicted %v, throughputs %v", g.Compared, g.Released, g.Pinned, g.Predicted, g.PeaksPerS)
	}
	if g.GapMs == nil || math.Abs(g.GapMs.P90-6459) > 1e-6 {
		t.Errorf("gaps in ms: %+v", g.GapMs)
	}
	if g.Checked != 702 || g.Reconstructed != 702 {
		t.Errorf("%d of %d comparisons come out of the columns", g.Reconstructed, g.Checked)
	}
	for _, u := range g.WhatIf {
		var bar float64
		switch u.Rule {
		case "static 1 s":
			bar = 1000
		case "static 5 s":
			bar = 5000
		case "static 18 s":
			bar = 18_000
		case "matchedTokens ×1":
			if u.Released == 0 || u.Released == u.Compared {
				t.Errorf("%s releases %d of %d", u.Rule, u.Released, u.Compared)
			}
			continue
		default:
			continue
		}
		want, spared := uint64(0), 0.0
		for _, gap := range fixtureGaps() {
			if float64(gap) > bar {
				want, spared = want+1, spared+float64(gap)
			}
		}
		if u.Released != want || math.Abs(u.SparedMs-spared) > 1e-3 {
			t.Errorf("%s releases %d and spares %v ms, want %d and %v", u.Rule, u.Released, u.SparedMs, want, spared)
		}
	}
	var text bytes.Buffer
	if err := r.WriteText(&text, gatereport.Paper{Cells: 100}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"both with a predicted time", "more earlier, as predicted", "gaps in ms are between predicted times"} {
		if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "tok/s") {
		t.Errorf("a throughput is made up:\n%s", text.String())
	}
}

// contrary predicts the shortest time where the others predict the longest.
type contrary struct {
	key scheduling.Key[scheduling.LatencyPrediction]
}

func (p contrary) Fill(c *scheduling.Cycle) {
	for e := range c.Candidates.All() {
		p.key.In(c).Set(e, scheduling.LatencyPrediction{TTFTMs: float64(100 + 60_000*e), Confidence: 1})
	}
}

// TestPredictedBySeveral: the times that count are those of the producer that the gate took. Where a record does not say which
// one it was, nothing is told of it.
func TestPredictedBySeveral(t *testing.T) {
	f := newFixture(t, "", schedtest.First.Type)
	f.scheduler = f.table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First, {Type: "contrary", New: func(b *scheduling.Builder) (any, error) {
		return contrary{scheduling.ProduceColumn[scheduling.LatencyPrediction](b)}, nil
	}}, {Type: "reader", New: func(b *scheduling.Builder) (any, error) { // so that they are the first ones of a record
		return contrary{scheduling.ConsumeColumn[scheduling.LatencyPrediction](b, "", "contrary")}, nil
	}}}, []scheduling.Spec{{Name: "reader", Type: "reader"}, {Name: "contrary", Type: "contrary"}, {Name: gate.TypeName, Type: gate.TypeName, Decode: schedtest.YAML(
		"{explorationProbability: 0, ttftSource: latencyPredictor, latencyPredictionInfoProducerName: table-latency, maxTTFTPenaltyMs: 18000}")}},
		gate.TypeName, schedtest.First.Type)
	log := predictedBy(t, f)
	if p := log[0].GetCandidates()[0].GetLatencyPredictions(); len(p) != 2 || p[0].GetProducer() != "contrary" {
		t.Fatalf("the first prediction is not the wrong one: %v", p)
	}
	several, alone := reportOn(t, log, options()).Gates[0], reportOn(t, predictedLog(t, "maxTTFTPenaltyMs: 18000"), options()).Gates[0]
	if several.Checked != 702 || several.Reconstructed != 702 {
		t.Errorf("%d of %d comparisons come out of the columns", several.Reconstructed, several.Checked)
	}
	if diff := cmp.Diff(alone, several); diff != "" {
		t.Errorf("a second producer makes a difference (-alone +beside another):\n%s", diff)
	}
	for _, d := range log {
		d.Gates[0].PredictedBy = ""
	}
	if r := reportOn(t, log, options()); r.Skipped[gatereport.ManyPredictions] != 702 {
		t.Errorf("skipped: %v", r.Skipped)
	}
}

// TestPredictedBreakEven: what such a gate compared is made again from its predictions and rates.
func TestPredictedBreakEven(t *testing.T) {
	g := reportOn(t, predictedLog(t, "penaltyMode: breakEven"), options()).Gates[0]
	if g.Checked != 702 || g.Reconstructed != 702 || g.Released == 0 || g.Released == g.Compared {
		t.Errorf("%d of %d comparisons come out of the columns, %d released", g.Reconstructed, g.Checked, g.Released)
	}
	for _, u := range g.WhatIf {
		if u.Rule == gate.ModeBreakEven && (u.Released != g.Released || u.Changed != 0) {
			t.Errorf("its own rule releases %d and changes %d, it released %d", u.Released, u.Changed, g.Released)
		}
	}
}

// TestSuggestedBarsOfPredictedTimes: bars are looked for among the predicted gaps.
func TestSuggestedBarsOfPredictedTimes(t *testing.T) {
	s, err := gatereport.Suggest(t.Context(), sequence(predictedLog(t, "maxTTFTPenaltyMs: 18000")), gatereport.Options{Threshold: 0.8, Behind: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.BarsMs); !strings.Contains(got, "18000") || s.BarsMs[0] < 100 || s.BarsMs[len(s.BarsMs)-1] < 18_000 {
		t.Errorf("bars %v", s.BarsMs)
	}
}
