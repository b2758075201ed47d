package scorer

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

func kvCacheUtilizationType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "kv-cache-utilization-scorer",
		Summary:    "Prefers endpoints whose engine has more of its KV cache free.",
		Parameters: &engineMetricsParameters{},
		New: func(b *scheduling.Builder) (any, error) {
			metrics, err := consumeEngineMetrics(b)
			if err != nil {
				return nil, err
			}
			return &KVCacheUtilization{metrics: metrics}, nil
		},
	}
}

// KVCacheUtilization scores 1 − usage, the free share of the engine's KV cache. An endpoint whose usage is unknown
// scores the mean of the others.
type KVCacheUtilization struct {
	metrics scheduling.Key[scheduling.EngineMetrics]
}

// Score implements scheduling.Scorer.
func (s *KVCacheUtilization) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	metrics, unknown := s.metrics.In(c), false
	for e := range candidates.All() {
		if m := metrics.At(e); m != nil && m.Has(scheduling.MetricsKVUsage) && scheduling.Finite(m.KVUsage) {
			scores[e] = 1 - min(1, m.KVUsage)
		} else {
			scores[e], unknown = math.NaN(), true
		}
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}
