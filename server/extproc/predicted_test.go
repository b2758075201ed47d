package extproc

import (
	"context"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// foreseeing is a producer that predicts the latency of every endpoint, for requests that ask for one.
func foreseeing() scheduling.PluginType {
	return scheduling.PluginType{Type: "seer", New: func(b *scheduling.Builder) (any, error) {
		return seer{scheduling.ProduceColumn[scheduling.LatencyPrediction](b), scheduling.ProduceValue[scheduling.LatencyObjective](b)}, nil
	}}
}

type seer struct {
	key   scheduling.Key[scheduling.LatencyPrediction]
	asked scheduling.ValueKey[scheduling.LatencyObjective]
}

func (s seer) Produce(_ context.Context, c *scheduling.Cycle) error {
	s.asked.In(c).Set(scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 40})
	for e := range c.Candidates.All() {
		s.key.In(c).Set(e, foreseen)
	}
	return nil
}

var foreseen = scheduling.LatencyPrediction{
	TTFTMs: 264, TTFTP90Ms: 360, TPOTMs: 20, TPOTP90Ms: 30, WaitMs: 200, PrefillMs: 40, Residual: 1.1, Confidence: 0.75,
	TTFTHeadroomMs: -60, TPOTHeadroomMs: 10,
}

func TestPredictionAttributes(t *testing.T) {
	asked := scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 40}
	whole, odd := foreseen, foreseen
	whole.WholeResponse = true
	odd.TTFTMs, odd.TTFTP90Ms, odd.WaitMs, odd.Confidence = math.Inf(1), math.NaN(), math.NaN(), math.NaN()
	for name, tc := range map[string]struct {
		of    scheduling.LatencyPrediction
		asked scheduling.LatencyObjective
		want  map[string]any
	}{
		"all": {foreseen, asked, map[string]any{
			"sluice.predicted.ttft_ms": 264.0, "sluice.predicted.ttft_p90_ms": 360.0, "sluice.predicted.tpot_ms": 20.0, "sluice.predicted.wait_ms": 200.0,
			"sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1, "sluice.predicted.confidence": 0.75,
			"sluice.slo.ttft_ms": 300.0, "sluice.slo.ttft_headroom_ms": -60.0, "sluice.slo.tpot_ms": 40.0, "sluice.slo.tpot_headroom_ms": 10.0,
		}},
		"a whole response, nothing asked": {whole, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.response_ms": 264.0, "sluice.predicted.tpot_ms": 20.0, "sluice.predicted.wait_ms": 200.0,
			"sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1, "sluice.predicted.confidence": 0.75,
		}},
		"a time alone": {scheduling.LatencyPrediction{TTFTMs: 5}, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.ttft_ms": 5.0, "sluice.predicted.confidence": 0.0,
		}},
		"no numbers": {odd, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.tpot_ms": 20.0, "sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]any{}
			for _, a := range predictionAttributes(&tc.of, tc.asked) {
				got[string(a.Key)] = a.Value.AsInterface()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
