package telemetry

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// seer predicts a time to the first token for the first endpoint.
type seer struct {
	ttft float64
	key  scheduling.Key[scheduling.LatencyPrediction]
}

func (p *seer) Fill(c *scheduling.Cycle) {
	p.key.In(c).Set(0, scheduling.LatencyPrediction{TTFTMs: p.ttft, Confidence: 1})
}

// flown is a flight to an endpoint by its ordinal, for which the first one's TTFT was predicted.
func flown(t *testing.T, ttft float64, ordinal int) (*scheduling.Flight, *scheduling.Snapshot) {
	t.Helper()
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 2)}
	types := []scheduling.PluginType{
		{Type: "seer", New: func(b *scheduling.Builder) (any, error) {
			return &seer{ttft, scheduling.ProduceColumn[scheduling.LatencyPrediction](b)}, nil
		}},
		{Type: "fixed-picker", New: func(*scheduling.Builder) (any, error) { return fixedPicker(ordinal), nil }},
	}
	s := table.Build(t, types, []scheduling.Spec{{Name: "seer", Type: "seer"}}, "fixed-picker")
	c := s.Begin(table.Pool().Snapshot(), &scheduling.Request{ID: 1, Model: "m", Choices: 1}, 0)
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	return f, c.Snapshot
}

type fixedPicker int

func (p fixedPicker) Pick(_ *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, int(p))
}

func ended(m *Metrics, f *scheduling.Flight, firstToken time.Duration) {
	m.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, firstToken, time.Second)
}

// What a producer predicts of the endpoint that is picked shows beside what is seen, of exactly those answers.
func TestPredictedFirstToken(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg, 0, "m")
	for _, seen := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} {
		f, _ := flown(t, 200, 0)
		ended(m, f, seen)
	}
	sums, counts, within := histograms(t, reg, 1)
	for id, want := range map[string]float64{
		"sluice_predicted_first_token_seconds m": 0.4, "sluice_first_token_seconds m": 0.4,
		"sluice_first_token_prediction_error_seconds m": 0.2, "sluice_first_token_prediction_ratio m": 2,
	} {
		if counts[id] != 2 || math.Abs(sums[id]-want) > 1e-9 {
			t.Errorf("%s: %d, %v in all; want 2 and %v", id, counts[id], sums[id], want)
		}
	}
	if n := within["sluice_first_token_prediction_ratio m"]; n != 1 {
		t.Errorf("%d answers were not later than predicted, want 1", n)
	}
}

// TestPredictedResponse: a prediction of a whole response is held against no first token.
func TestPredictedResponse(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, 0, "m")
	f, _ := flown(t, 200, 0)
	f.Predicted.WholeResponse = true
	ended(m, f, 100*time.Millisecond)
	if _, counts, _ := histograms(t, reg, 1); counts["sluice_predicted_first_token_seconds m"] != 0 || counts["sluice_first_token_seconds m"] != 1 {
		t.Errorf("%v", counts)
	}
}

func TestWhatWasNotPredictedOrNotSeenStaysOut(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, 0, "m")
	f, _ := flown(t, 200, 0)
	ended(m, f, -1) // no first token
	f, _ = flown(t, 200, 1)
	ended(m, f, time.Second) // the one that was not predicted
	f, s := flown(t, 200, 0)
	f.Served(s.Endpoints[1], f.PickedAt)
	ended(m, f, time.Second) // a retry
	for _, ttft := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		f, _ = flown(t, ttft, 0)
		ended(m, f, time.Second)
	}
	if n := testutil.CollectAndCount(m.predictions.predicted) + testutil.CollectAndCount(m.predictions.misses) + testutil.CollectAndCount(m.predictions.ratio); n != 0 {
		t.Errorf("%d series", n)
	}
}
