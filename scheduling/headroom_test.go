package scheduling_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestHeadroom: the prediction's own figures, of what is both asked and predicted.
func TestHeadroom(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	both := scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 40}
	for name, tc := range map[string]struct {
		of         scheduling.LatencyPrediction
		asked      scheduling.LatencyObjective
		want       scheduling.Headroom
		shares     [2]float64
		known, neg bool
	}{
		"both, with a reserve": {
			scheduling.LatencyPrediction{TTFTMs: 200, TTFTP90Ms: 270, TTFTHeadroomMs: -30, TPOTMs: 20, TPOTP90Ms: 22, TPOTHeadroomMs: 10}, both,
			scheduling.Headroom{TTFT: -30, TPOT: 10}, [2]float64{-0.1, 0.25}, true, true,
		},
		"nothing asked": {
			scheduling.LatencyPrediction{TTFTMs: 200, TPOTMs: 20}, scheduling.LatencyObjective{}, scheduling.Headroom{TTFT: nan, TPOT: nan}, [2]float64{nan, nan}, false, false,
		},
		"no time per token": {
			scheduling.LatencyPrediction{TTFTMs: 200, TTFTHeadroomMs: 30}, both, scheduling.Headroom{TTFT: 30, TPOT: nan}, [2]float64{0.1, nan}, true, false,
		},
		"a whole response": {
			scheduling.LatencyPrediction{TTFTMs: 200, TTFTHeadroomMs: 100, WholeResponse: true}, both, scheduling.Headroom{TTFT: nan, TPOT: nan}, [2]float64{nan, nan}, false, false,
		},
		"no numbers": {
			scheduling.LatencyPrediction{TTFTMs: 200, TTFTHeadroomMs: inf, TPOTMs: 20, TPOTHeadroomMs: -inf}, both, scheduling.Headroom{TTFT: nan, TPOT: nan}, [2]float64{nan, nan}, false, false,
		},
		"not usable": {
			scheduling.LatencyPrediction{TTFTMs: nan, TTFTHeadroomMs: 1, TPOTMs: 20, TPOTHeadroomMs: 1}, both, scheduling.Headroom{TTFT: nan, TPOT: nan}, [2]float64{nan, nan}, false, false,
		},
	} {
		got := tc.of.HeadroomOf(tc.asked)
		ttft, tpot := got.Shares(tc.asked)
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateNaNs()) + cmp.Diff(tc.shares, [2]float64{ttft, tpot}, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Known() != tc.known || got.Negative() != tc.neg {
			t.Errorf("%s: known %t, negative %t", name, got.Known(), got.Negative())
		}
	}
}
