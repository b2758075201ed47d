package scorer_test

import (
	"math"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func metrics(m scheduling.EngineMetrics) schedtest.Endpoint { return schedtest.Endpoint{Metrics: &m} }

func waiting(n float64) schedtest.Endpoint {
	return metrics(scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: n})
}

func TestQueueScorer(t *testing.T) {
	noQueue := metrics(scheduling.EngineMetrics{Known: scheduling.MetricsKVUsage, Waiting: 0})
	runScoreCases(t, "queue-scorer", []scoreCase{
		{
			name:      "least to most",
			endpoints: []schedtest.Endpoint{waiting(2), waiting(4), waiting(10)},
			want:      []float64{1, 0.75, 0},
		},
		{name: "all equal", endpoints: []schedtest.Endpoint{waiting(3), waiting(3)}, want: []float64{1, 1}},
		{name: "one alone", endpoints: []schedtest.Endpoint{waiting(3)}, want: []float64{1}},
		{
			name:      "a page without the field is unknown",
			endpoints: []schedtest.Endpoint{waiting(0), noQueue, waiting(4)},
			want:      []float64{1, 0.5, 0},
		},
		{
			name:      "what cannot be a queue is unknown",
			endpoints: []schedtest.Endpoint{waiting(0), waiting(math.NaN()), waiting(-1), waiting(math.Inf(1)), waiting(4)},
			want:      []float64{1, 0.5, 0.5, 0.5, 0},
		},
		{name: "equal beside unknown", endpoints: []schedtest.Endpoint{waiting(3), {}}, want: []float64{1, 1}},
		{name: "nothing known", endpoints: []schedtest.Endpoint{{}, noQueue}, want: []float64{0, 0}},
	})
}

// TestC10_UnknownMetricsAreNeutral: an endpoint that was never read neither outranks one that reports nor loses to all.
func TestC10_UnknownMetricsAreNeutral(t *testing.T) {
	a := metrics(scheduling.EngineMetrics{
		Known: scheduling.MetricsWaiting | scheduling.MetricsKVUsage, Waiting: 2, KVUsage: 0.4,
	})
	b, hung := schedtest.Endpoint{}, schedtest.Endpoint{}
	for typ, want := range map[string]float64{"queue-scorer": 1, "kv-cache-utilization-scorer": 0.6} {
		runScoreCases(t, typ, []scoreCase{{
			name: typ, endpoints: []schedtest.Endpoint{a, b, hung}, want: []float64{want, want, want},
		}})
	}
}
