package scorer_test

import (
	"math"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func usage(u float64) schedtest.Endpoint {
	return metrics(scheduling.EngineMetrics{Known: scheduling.MetricsKVUsage, KVUsage: u})
}

func TestKVCacheUtilizationScorer(t *testing.T) {
	runScoreCases(t, "kv-cache-utilization-scorer", []scoreCase{
		{
			name:      "free share",
			endpoints: []schedtest.Endpoint{usage(0), usage(0.25), usage(1)},
			want:      []float64{1, 0.75, 0},
		},
		{name: "above full is full", endpoints: []schedtest.Endpoint{usage(1.5)}, want: []float64{0}},
		{
			name:      "unknown is the mean",
			endpoints: []schedtest.Endpoint{usage(0.2), {}, waiting(0), usage(math.NaN()), usage(-0.5), usage(0.8)},
			want:      []float64{0.8, 0.5, 0.5, 0.5, 0.5, 0.2},
		},
		{name: "nothing known", endpoints: []schedtest.Endpoint{{}, waiting(2)}, want: []float64{0, 0}},
	})
}
