package policies

import "github.com/sluice-epp/sluice/scheduling"

// workParameters are the parameters of sim-token-load-scorer.
type workParameters struct {
	// InFlightLoadProducerName names the producer of the load and of this request's uncached tokens; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// Work prefers endpoints with less to compute: the uncached prompt tokens in flight and this request's own there, which
// llm-d's token-load-scorer adds up. It scores (1 + least) / (1 + tokens): in exactly that order. It is a scheduling.Scorer.
type Work struct {
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
}

func workType() scheduling.PluginType {
	return scheduling.PluginType{
		Type: "sim-token-load-scorer", Summary: "Prefers endpoints with fewer tokens to compute, this request's own among them.",
		Parameters: &workParameters{},
		New: func(b *scheduling.Builder) (any, error) {
			var p workParameters
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			return &Work{
				load:     scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, nil
		},
	}
}

// Score implements scheduling.Scorer.
func (s *Work) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	var fewest least
	for e := range candidates.All() {
		load, _ := s.load.In(c).Get(e)
		own, _ := s.uncached.In(c).Get(e)
		scores[e] = float64(max(0, load.Tokens) + max(0, int64(own)))
		fewest.offer(e, scores[e])
	}
	for e := range candidates.All() {
		scores[e] = (1 + fewest.value) / (1 + scores[e])
	}
}
