package page

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// TestPredictedWords: what a prediction is made of shows where it is recorded.
func TestPredictedWords(t *testing.T) {
	for want, p := range map[string]*decisionv1.LatencyPrediction{
		"240 ms": {TtftMs: 240},
		"264 ms: 200 ms of waiting, 40 ms of prefill; nine of ten below 360 ms": {TtftMs: 264, WaitMs: 200, PrefillMs: 40, TtftP90Ms: 360},
	} {
		if got := predictedWords(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestSharesAreThoseOfExplain: a share says the same wherever it is shown.
func TestSharesAreThoseOfExplain(t *testing.T) {
	for i := range 1001 {
		share := float64(i) / 1000
		if got, want := percent(share), explain.Percent(share); got != want && got != "< 1 %" {
			t.Errorf("%v: %s on the page, %s in words", share, got, want)
		}
	}
}
