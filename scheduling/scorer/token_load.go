package scorer

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// tokenLoadParameters are the parameters of token-load-scorer.
type tokenLoadParameters struct {
	// InFlightLoadProducerName names the producer of the load; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// QueueThresholdTokens is the number of tokens in flight at which an endpoint scores 0.
	QueueThresholdTokens int64 `yaml:"queueThresholdTokens"`
}

// tokenLoadDefaults has room for 128 requests of 32 Ki tokens.
func tokenLoadDefaults() tokenLoadParameters {
	return tokenLoadParameters{QueueThresholdTokens: 128 * 32 << 10}
}

func tokenLoadType() scheduling.PluginType {
	defaults := tokenLoadDefaults()
	return scheduling.PluginType{
		Type:       "token-load-scorer",
		Summary:    "Prefers endpoints with fewer tokens in flight.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := tokenLoadDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if err := within("queueThresholdTokens", float64(p.QueueThresholdTokens), 1, 1e15); err != nil {
				return nil, err
			}
			return &TokenLoad{
				load: scheduling.ConsumeColumn[scheduling.InFlightLoad](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				threshold: float64(p.QueueThresholdTokens),
			}, nil
		},
	}
}

// TokenLoad scores 1 − tokens / queueThresholdTokens, never below 0. An endpoint whose load is unknown scores the mean
// of the others.
type TokenLoad struct {
	load      scheduling.Key[scheduling.InFlightLoad]
	threshold float64 // tokens
}

// Score implements scheduling.Scorer.
func (s *TokenLoad) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	loads, unknown := s.load.In(c), false
	for e := range candidates.All() {
		if load := loads.At(e); load != nil {
			scores[e] = 1 - min(1, float64(max(0, load.Tokens))/s.threshold)
		} else {
			scores[e], unknown = math.NaN(), true
		}
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}
