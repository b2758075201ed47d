package filter

import (
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// sloHeadroomTierParameters are the parameters of slo-headroom-tier-filter.
type sloHeadroomTierParameters struct {
	// EpsilonExploreNeg is the share of requests, 0 to 1, that go to the endpoints predicted to exceed the objective although
	// others meet it, so that it is found out where the prediction is wrong.
	EpsilonExploreNeg float64 `yaml:"epsilonExploreNeg"`
	// LatencyPredictionInfoProducerName names the producer of the predictions and of what the request asks; empty means the
	// only one.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

func sloHeadroomTierDefaults() sloHeadroomTierParameters {
	return sloHeadroomTierParameters{EpsilonExploreNeg: 0.01}
}

func sloHeadroomTierType() scheduling.PluginType {
	defaults := sloHeadroomTierDefaults()
	return scheduling.PluginType{
		Type:       "slo-headroom-tier-filter",
		Summary:    "Keeps the endpoints whose predicted latency meets what the request asks, where any does.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := sloHeadroomTierDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if !(p.EpsilonExploreNeg >= 0 && p.EpsilonExploreNeg <= 1) { // so that NaN is refused
				return nil, fmt.Errorf("parameters.epsilonExploreNeg: must be from 0 to 1, got %v", p.EpsilonExploreNeg)
			}
			const param = "latencyPredictionInfoProducerName"
			return &SLOHeadroomTier{
				predictions: scheduling.ConsumeColumn[scheduling.LatencyPrediction](b, param, p.LatencyPredictionInfoProducerName),
				objective:   scheduling.ConsumeValue[scheduling.LatencyObjective](b, param, p.LatencyPredictionInfoProducerName),
				epsilon:     p.EpsilonExploreNeg,
				stream:      b.Stream(),
			}, nil
		},
	}
}

// SLOHeadroomTier keeps the candidates that are predicted to meet everything that the request asks of its latency, or where
// none does those that exceed it. A candidate of which that is not known is of neither tier, and is kept where no other is
// left. A request that asks nothing passes.
type SLOHeadroomTier struct {
	predictions scheduling.Key[scheduling.LatencyPrediction]
	objective   scheduling.ValueKey[scheduling.LatencyObjective]
	epsilon     float64
	stream      uint64
}

// Preference marks the filter: an endpoint of the other tier can still serve as a fallback.
func (*SLOHeadroomTier) Preference() {}

// Filter implements scheduling.Filter. It never leaves fewer than one of the candidates that it was given.
func (f *SLOHeadroomTier) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	asked, ok := f.objective.In(c).Get()
	if !ok {
		return
	}
	predictions := f.predictions.In(c)
	meet, exceed := 0, 0
	for e := range candidates.All() {
		switch h := predictions.At(e).HeadroomOf(asked); {
		case !h.Known():
		case h.Negative():
			exceed++
		default:
			meet++
		}
	}
	if meet+exceed == 0 {
		return
	}
	negative := meet == 0 || exceed > 0 && f.explores(c)
	for e := candidates.Next(0); e >= 0; e = candidates.Next(e + 1) {
		if h := predictions.At(e).HeadroomOf(asked); !h.Known() || h.Negative() != negative {
			candidates.Remove(e)
		}
	}
}

func (f *SLOHeadroomTier) explores(c *scheduling.Cycle) bool {
	if f.epsilon <= 0 {
		return false
	}
	random := c.Rand(f.stream)
	return random.Float64() < f.epsilon
}
