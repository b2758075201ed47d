package scorer

import (
	"errors"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// prefillCostParameters are the parameters of prefill-cost-scorer.
type prefillCostParameters struct {
	// InFlightLoadProducerName names the producer of the load and of this request's uncached tokens; empty means the
	// only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// PeakPrefillThroughput is how many uncached prompt tokens an endpoint prefills in a second.
	PeakPrefillThroughput float64 `yaml:"peakPrefillThroughput"`
	// Alpha prices what this request's prefill takes from requests still to come, in units of its own time.
	Alpha float64 `yaml:"alpha"`
	// Kappa prices what it takes from each request that is decoding on the endpoint, in the same units.
	Kappa float64 `yaml:"kappa"`
}

func prefillCostDefaults() prefillCostParameters {
	return prefillCostParameters{PeakPrefillThroughput: 15928, Alpha: 1, Kappa: 0.1}
}

func prefillCostType() scheduling.PluginType {
	defaults := prefillCostDefaults()
	return scheduling.PluginType{
		Type:       "prefill-cost-scorer",
		Summary:    "Prefers the endpoint on which the request costs everyone the least prefill time.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := prefillCostDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			err := errors.Join(
				within("peakPrefillThroughput", p.PeakPrefillThroughput, 1, 1e9),
				within("alpha", p.Alpha, 0, 1000),
				within("kappa", p.Kappa, 0, 1000),
			)
			if err != nil {
				return nil, err
			}
			return &PrefillCost{
				load: scheduling.ConsumeColumn[scheduling.InFlightLoad](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				msPerToken: 1000 / p.PeakPrefillThroughput,
				alpha:      p.Alpha,
				kappa:      p.Kappa,
			}, nil
		},
	}
}

// PrefillCost minimises what a pick costs everyone, in ms of prefill:
//
//	cost(e) = wait(W) + prefill(U) · (1 + α + κ · n)
//
// W are the uncached tokens in flight on e, U the request's own uncached tokens there, n the requests decoding on e;
// wait and prefill both take 1000 / peakPrefillThroughput ms a token. The 1 is the request's own wait, α is for the
// requests still to come, κ for each decode that the prefill stalls. The score is (1 + least) / (1 + cost), with least
// the smallest cost among the candidates: above 0, 1 for the cheapest, and in exactly the order of the costs, so that
// equal costs are equal scores.
//
// Where U is unknown the whole input counts, as if nothing were cached; an endpoint whose load is unknown scores the
// mean of the others.
type PrefillCost struct {
	load       scheduling.Key[scheduling.InFlightLoad]
	uncached   scheduling.Key[scheduling.UncachedRequestTokens]
	msPerToken float64
	alpha      float64
	kappa      float64
}

// Score implements scheduling.Scorer.
func (s *PrefillCost) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	loads, uncached := s.load.In(c), s.uncached.In(c)
	whole := inputTokens(c.Request)
	least, unknown := math.Inf(1), false
	for e := range candidates.All() {
		load := loads.At(e)
		if load == nil {
			scores[e], unknown = math.NaN(), true
			continue
		}
		own, ok := uncached.Get(e)
		if !ok {
			own = whole
		}
		cost := s.cost(load, own)
		scores[e] = cost
		if cost < least {
			least = cost
		}
	}
	for e := range candidates.All() {
		scores[e] = (1 + least) / (1 + scores[e]) // NaN stays NaN
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}

// cost is the pick's cost in ms. Tokens are summed before they are turned into time, so that endpoints which differ only
// in how the same work is split cost exactly the same.
func (s *PrefillCost) cost(load *scheduling.InFlightLoad, own scheduling.UncachedRequestTokens) float64 {
	others := s.alpha + s.kappa*float64(max(0, load.Decoding))
	return (float64(max(0, load.Tokens)) + float64(max(0, own))*(1+others)) * s.msPerToken
}

// defaultBytesPerToken is what an unknown tokenizer makes of English text, about.
const defaultBytesPerToken = 4

// inputTokens is the request's input length in tokens as far as the request itself tells.
func inputTokens(r *scheduling.Request) scheduling.UncachedRequestTokens {
	if r.TokenCount > 0 {
		return scheduling.UncachedRequestTokens(r.TokenCount)
	}
	return scheduling.UncachedRequestTokens((r.PromptBytes + defaultBytesPerToken - 1) / defaultBytesPerToken)
}
