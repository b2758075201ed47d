package scorer

import (
	"errors"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// prefillCostParameters are the parameters of prefill-cost-scorer. What is not given is learnt.
type prefillCostParameters struct {
	// InFlightLoadProducerName names the producer of the load and of this request's uncached tokens; empty means the
	// only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// LearntRatesProducerName names the producer of what has been learnt; empty means the only one.
	LearntRatesProducerName string `yaml:"learntRatesProducerName"`
	// PeakPrefillThroughput is how many uncached prompt tokens each endpoint prefills in a second, in place of what has
	// been learnt of it.
	PeakPrefillThroughput *float64 `yaml:"peakPrefillThroughput,omitempty"`
	// Alpha prices what this request's prefill takes from requests still to come, in units of its own time, in place of
	// what follows from the pool's utilisation.
	Alpha *float64 `yaml:"alpha,omitempty"`
	// Kappa prices what it takes from each request that is decoding on the endpoint, in the same units, in place of what
	// follows from the measured slowdown of decodes.
	Kappa *float64 `yaml:"kappa,omitempty"`
	// DecodePrice is what a ms that an answer takes longer counts, in ms to a first token.
	DecodePrice float64 `yaml:"decodePrice"`
}

func prefillCostDefaults() prefillCostParameters {
	return prefillCostParameters{DecodePrice: scheduling.DefaultDecodePrice}
}

func (p *prefillCostParameters) validate() error {
	given := func(name string, v *float64, least, most float64) error {
		if v == nil {
			return nil
		}
		return within(name, *v, least, most)
	}
	return errors.Join(
		given("peakPrefillThroughput", p.PeakPrefillThroughput, 1, 1e9),
		given("alpha", p.Alpha, 0, 1000),
		given("kappa", p.Kappa, 0, 1000),
		within("decodePrice", p.DecodePrice, 0, 1000),
	)
}

func prefillCostType() scheduling.PluginType {
	defaults := prefillCostDefaults()
	return scheduling.PluginType{
		Type:       "prefill-cost-scorer",
		Summary:    "Prefers the endpoint on which the request costs everyone the least time.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := prefillCostDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if err := p.validate(); err != nil {
				return nil, err
			}
			s := &PrefillCost{
				load: scheduling.ConsumeColumn[scheduling.InFlightLoad](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				learnt: scheduling.ConsumePricing(b, "learntRatesProducerName", p.LearntRatesProducerName, scheduling.PriceKnobs{
					Alpha: p.Alpha, Kappa: p.Kappa, DecodePrice: p.DecodePrice, PrefillThroughput: p.PeakPrefillThroughput,
				}),
			}
			return s, nil
		},
	}
}

// PrefillCost minimises what a pick costs everyone, in ms:
//
//	cost(e) = wait(W) + prefill(U) · (1 + α + κ · n) + company · m
//
// W are the uncached tokens in flight on e, U the request's own uncached tokens there, n the requests decoding on e and m
// those in flight. wait and prefill both take e's learnt time per prompt token (scheduling.LearntRates). The 1 is the request's own wait, α is
// for the requests still to come, κ for each decode that the prefill stalls, company for how much longer the request and
// each of the m decode for being together (scheduling.PoolPressure). The score is (1 + least) / (1 + cost), with least
// the smallest cost among the candidates: above 0, 1 for the cheapest, and in exactly the order of the costs, so that
// equal costs are equal scores.
//
// Where U is unknown the whole input counts, as if nothing were cached; an endpoint whose load is unknown scores the
// mean of the others.
type PrefillCost struct {
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	learnt   scheduling.Pricing
}

// Score implements scheduling.Scorer.
func (s *PrefillCost) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	loads, uncached := s.load.In(c), s.uncached.In(c)
	price, rates := s.learnt.In(c)
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
		cost := price.Cost(rates.Of(e), load, own)
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

// defaultBytesPerToken is what an unknown tokenizer makes of English text, about.
const defaultBytesPerToken = 4

// inputTokens is the request's input length in tokens as far as the request itself tells.
func inputTokens(r *scheduling.Request) scheduling.UncachedRequestTokens {
	if r.TokenCount > 0 {
		return scheduling.UncachedRequestTokens(r.TokenCount)
	}
	return scheduling.UncachedRequestTokens((r.PromptBytes + defaultBytesPerToken - 1) / defaultBytesPerToken)
}
