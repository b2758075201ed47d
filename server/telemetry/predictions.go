package telemetry

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// predictions holds what was predicted of the time to first token against what was seen. Its metrics have series once a
// producer fills the column of LatencyPrediction.
type predictions struct {
	predicted, misses, ratio *prometheus.HistogramVec
}

func newPredictions(histogram newHistogram, latency []float64) predictions {
	return predictions{
		predicted: histogram("sluice_predicted_first_token_seconds",
			"Time from the pick to the first token as it was predicted at the pick, of those answers in sluice_first_token_seconds for which it was.",
			latency, "model"),
		misses: histogram("sluice_first_token_prediction_error_seconds",
			"By how much the time to the first token was another one than predicted, either way.", latency, "model"),
		ratio: histogram("sluice_first_token_prediction_ratio",
			"The time to the first token over the one that was predicted: above 1 it took longer.",
			[]float64{0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10}, "model"),
	}
}

// seen takes in a first token. A prediction is of the endpoint that was picked.
func (m *predictions) seen(f *scheduling.Flight, model string, took time.Duration) {
	ttft, ok := f.Predicted.FirstTokenMs()
	if f.Endpoint != f.Picks[0] || !ok {
		return
	}
	predicted := ttft / 1000
	seen := took.Seconds()
	m.predicted.WithLabelValues(model).Observe(predicted)
	m.misses.WithLabelValues(model).Observe(math.Abs(seen - predicted))
	m.ratio.WithLabelValues(model).Observe(seen / predicted)
}
