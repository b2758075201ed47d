package scorer

import (
	"errors"
	"math"
	"slices"

	"github.com/sluice-epp/sluice/scheduling"
)

// loraAffinityParameters are the parameters of lora-affinity-scorer.
type loraAffinityParameters struct {
	// WaitingScore is the score, 0 to 1, of an endpoint on which requests for the adapter wait and none is computed.
	WaitingScore float64 `yaml:"waitingScore"`
	// FreeSlotScore is the score, 0 to 1, of an endpoint that can load one more adapter. Where requests for the adapter wait on
	// such an endpoint, the higher of the two scores counts.
	FreeSlotScore float64 `yaml:"freeSlotScore"`
	// BaseModels are names of models that are no adapters: to a request for one of them, every endpoint is the same.
	BaseModels []string `yaml:"baseModels"`
	// EngineMetricsProducerName names the producer of the engine metrics; empty means the only one.
	EngineMetricsProducerName string `yaml:"engineMetricsProducerName"`
}

func loraAffinityDefaults() loraAffinityParameters {
	return loraAffinityParameters{WaitingScore: 0.8, FreeSlotScore: 0.6}
}

func loraAffinityType() scheduling.PluginType {
	defaults := loraAffinityDefaults()
	return scheduling.PluginType{
		Type:       "lora-affinity-scorer",
		Summary:    "Prefers endpoints whose engine computes with the request's LoRA adapter, then those that can load it.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := loraAffinityDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			err := errors.Join(
				within("waitingScore", p.WaitingScore, 0, 1),
				within("freeSlotScore", p.FreeSlotScore, 0, 1),
			)
			if err != nil {
				return nil, err
			}
			return &LoRAAffinity{
				metrics: scheduling.ConsumeColumn[scheduling.EngineMetrics](
					b, "engineMetricsProducerName", p.EngineMetricsProducerName),
				waiting: p.WaitingScore,
				free:    p.FreeSlotScore,
				bases:   p.BaseModels,
			}, nil
		},
	}
}

// LoRAAffinity scores 1 for an endpoint whose engine computes a request for the adapter that this request names,
// waitingScore where such requests wait only, freeSlotScore where the engine can load one more, and 0 where it is full. An
// endpoint whose adapters are unknown scores the mean of the others. A request that names no model, or a base model, is
// no matter of adapters: everybody scores 0.5.
type LoRAAffinity struct {
	metrics       scheduling.Key[scheduling.EngineMetrics]
	waiting, free float64
	bases         []string
}

// Score implements scheduling.Scorer.
func (s *LoRAAffinity) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	if model := c.Request.Model; model == "" || slices.Contains(s.bases, model) {
		for e := range candidates.All() {
			scores[e] = 0.5
		}
		return
	}
	metrics, unknown := s.metrics.In(c), false
	for e := range candidates.All() {
		scores[e] = s.score(metrics.At(e))
		unknown = unknown || math.IsNaN(scores[e])
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}

// score is that of one endpoint; NaN where it is unknown.
func (s *LoRAAffinity) score(m *scheduling.EngineMetrics) float64 {
	if m == nil || !m.Has(scheduling.MetricsAdapters) {
		return math.NaN()
	}
	room := m.MaxAdapters > m.Adapters
	switch m.Adapter {
	case scheduling.AdapterRunning:
		return 1
	case scheduling.AdapterWaiting:
		if room {
			return max(s.waiting, s.free)
		}
		return s.waiting
	case scheduling.AdapterUnused:
		switch {
		case room:
			return s.free
		case m.MaxAdapters > 0:
			return 0
		}
	}
	return math.NaN()
}
