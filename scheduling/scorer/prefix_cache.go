package scorer

import (
	"errors"

	"github.com/sluice-epp/sluice/scheduling"
)

// prefixCacheParameters are the parameters of prefix-cache-scorer.
type prefixCacheParameters struct {
	// PrefixMatchInfoProducerName names the producer of the match info; empty means the only one.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// MatchLengthWeight is the share, 0 to 1, of the match's absolute length in the score.
	MatchLengthWeight float64 `yaml:"matchLengthWeight"`
	// MatchLengthScaleTokens is the length of a match, in tokens, from which on longer ones score no higher.
	MatchLengthScaleTokens int `yaml:"matchLengthScaleTokens"`
}

func prefixCacheDefaults() prefixCacheParameters {
	return prefixCacheParameters{MatchLengthScaleTokens: 8192}
}

func prefixCacheType() scheduling.PluginType {
	defaults := prefixCacheDefaults()
	return scheduling.PluginType{
		Type:       "prefix-cache-scorer",
		Summary:    "Prefers endpoints whose prefix cache holds more of the prompt.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := prefixCacheDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			err := errors.Join(
				within("matchLengthWeight", p.MatchLengthWeight, 0, 1),
				within("matchLengthScaleTokens", float64(p.MatchLengthScaleTokens), 1, 1e9),
			)
			if err != nil {
				return nil, err
			}
			return &PrefixCache{
				match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](
					b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName),
				lengthWeight: p.MatchLengthWeight,
				lengthScale:  float64(p.MatchLengthScaleTokens),
			}, nil
		},
	}
}

// PrefixCache scores the weighted match: (1 − w) · ratio + w · min(1, length / scale)², where ratio is
// prefix_cache_score, length the matched tokens, and w matchLengthWeight. An endpoint without match info scores 0: it
// is not known to hold anything.
type PrefixCache struct {
	match        scheduling.Key[scheduling.PrefixCacheMatchInfo]
	lengthWeight float64
	lengthScale  float64 // tokens
}

// Score implements scheduling.Scorer.
func (s *PrefixCache) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	match := s.match.In(c)
	for e := range candidates.All() {
		info := match.At(e)
		if info == nil {
			continue
		}
		scores[e] = info.Score()
		if s.lengthWeight > 0 {
			length := min(1, float64(info.MatchedTokens())/s.lengthScale)
			scores[e] += s.lengthWeight * (length*length - scores[e])
		}
	}
}
