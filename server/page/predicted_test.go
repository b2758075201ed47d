package page

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
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
