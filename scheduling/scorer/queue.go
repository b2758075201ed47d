package scorer

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// engineMetricsParameters are the parameters of the scorers that read nothing but engine metrics.
type engineMetricsParameters struct {
	// EngineMetricsProducerName names the producer of the engine metrics; empty means the only one.
	EngineMetricsProducerName string `yaml:"engineMetricsProducerName"`
}

func consumeEngineMetrics(b *scheduling.Builder) (scheduling.Key[scheduling.EngineMetrics], error) {
	var p engineMetricsParameters
	if err := b.Parameters(&p); err != nil {
		return scheduling.Key[scheduling.EngineMetrics]{}, err
	}
	return scheduling.ConsumeColumn[scheduling.EngineMetrics](
		b, "engineMetricsProducerName", p.EngineMetricsProducerName), nil
}

func queueType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "queue-scorer",
		Summary:    "Prefers endpoints whose engine has fewer requests waiting.",
		Parameters: &engineMetricsParameters{},
		New: func(b *scheduling.Builder) (any, error) {
			metrics, err := consumeEngineMetrics(b)
			if err != nil {
				return nil, err
			}
			return &Queue{metrics: metrics}, nil
		},
	}
}

// Queue scores (most − waiting) / (most − least) over the candidates whose engines said how many requests wait; with
// all equal they score 1. An endpoint whose queue is unknown scores the mean of the others.
type Queue struct {
	metrics scheduling.Key[scheduling.EngineMetrics]
}

// Score implements scheduling.Scorer.
func (s *Queue) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	metrics, unknown := s.metrics.In(c), false
	least, most := math.Inf(1), math.Inf(-1)
	for e := range candidates.All() {
		m := metrics.At(e)
		if m == nil || !m.Has(scheduling.MetricsWaiting) || !scheduling.Finite(m.Waiting) {
			scores[e], unknown = math.NaN(), true
			continue
		}
		scores[e] = m.Waiting
		if m.Waiting < least {
			least = m.Waiting
		}
		if m.Waiting > most {
			most = m.Waiting
		}
	}
	for e := range candidates.All() {
		if most > least {
			scores[e] = (most - scores[e]) / (most - least) // NaN stays NaN
		} else if scores[e] == most {
			scores[e] = 1
		}
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}
