package policies

import "github.com/sluice-epp/sluice/scheduling"

// lmetric is the policy of the paper of that name.
func lmetric() []Policy {
	parameters := []Parameter{indexBy(precise), tunedCapacity()}
	return []Policy{{
		Name: "lmetric", Summary: "least product of prompt tokens to compute, this request's own among them, and requests in flight with it",
		Source:     "LMetric, arXiv 2603.15202; AIBrix l_metric_local.go at 2519ad599",
		config:     "lmetric.yaml",
		Parameters: parameters,
		Tuned:      []Params{{"index": "approx"}},
	}}
}

// lmetricParameters are the parameters of sim-lmetric-picker.
type lmetricParameters struct {
	// InFlightLoadProducerName names the producer of the load and of this request's uncached tokens; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// LMetric picks the endpoint with the least (W + U) · (n + 1): W are the uncached prompt tokens on it that are not computed
// yet, U this request's own there, n the requests in flight. It is a scheduling.Picker.
type LMetric struct {
	stream   uint64
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
}

func lmetricType() scheduling.PluginType {
	return scheduling.PluginType{
		Type: "sim-lmetric-picker", Summary: "Picks the least product of tokens to compute and requests.", Parameters: &lmetricParameters{},
		New: func(b *scheduling.Builder) (any, error) {
			var p lmetricParameters
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			return &LMetric{
				stream:   b.Stream(),
				load:     scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, nil
		},
	}
}

// Pick implements scheduling.Picker.
func (p *LMetric) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	best := least{random: c.Rand(p.stream)}
	for e := range candidates.All() {
		load, _ := p.load.In(c).Get(e)
		own, _ := p.uncached.In(c).Get(e)
		best.offer(e, float64(load.Tokens+int64(own))*float64(load.Requests+1))
	}
	return best.appendTo(picks)
}
