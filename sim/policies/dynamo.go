package policies

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// dynamo is the cost of Dynamo's KV router.
func dynamo() []Policy {
	parameters := []Parameter{
		{Name: "overlap", Default: "1.0", Help: "weight of blocks to prefill against blocks in use"},
		{Name: "temperature", Default: "0", Help: "of the draw among endpoints by their costs; 0 picks the least"},
		indexBy(precise), tunedCapacity(),
	}
	return []Policy{{
		Name: "dynamo", Summary: "least weighted sum of blocks to prefill and blocks in use, this request's among them",
		Source:     "ai-dynamo lib/llm kv_router scheduler (overlap_score_weight, router_temperature), v1.5 documentation",
		config:     "dynamo.yaml",
		Parameters: parameters,
		Tuned:      append(grid(parameters, over("overlap", "0.5 1.0 2 4 8 16")), Params{"temperature": "0.2"}, Params{"temperature": "0.5"}),
	}}
}

// dynamoParameters are the parameters of sim-dynamo-picker.
type dynamoParameters struct {
	// OverlapWeight is the weight of blocks to prefill.
	OverlapWeight float64 `yaml:"overlapWeight"`
	// Temperature is that of the draw; 0 picks the least cost.
	Temperature float64 `yaml:"temperature"`
	// BlockTokens is the size of a block in tokens.
	BlockTokens int `yaml:"blockTokens"`
	// InFlightLoadProducerName names the producer of the load and of this request's uncached tokens; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// Dynamo picks by the cost w · P + D of each endpoint: P are the blocks that it would have to prefill, those of requests in
// flight before their first token and this one's; D the blocks that requests in flight would hold with this one, each counted
// once however many share it. With a temperature T it draws in proportion to exp(−x / T), where x is the cost between the
// least, 0, and the highest, 1. It is a scheduling.Picker, Charger and Follower.
type Dynamo struct {
	parameters dynamoParameters
	stream     uint64
	load       scheduling.Key[scheduling.InFlightLoad]
	uncached   scheduling.Key[scheduling.UncachedRequestTokens]
	held       scheduling.StateKey[dynamoHeld]
	active     map[uint64]map[uint64]int // requests that hold a block, by endpoint and block
	blocks     []uint64                  // of the request that is picked for
	costs      []float64
}

type dynamoHeld struct {
	endpoint uint64
	blocks   []uint64
}

func dynamoType() scheduling.PluginType {
	defaults := dynamoParameters{OverlapWeight: 1, BlockTokens: 16}
	return scheduling.PluginType{
		Type: "sim-dynamo-picker", Summary: "Picks the least cost in KV blocks.", Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := defaults
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			var errs []error
			if p.BlockTokens < 1 {
				errs = append(errs, fmt.Errorf("parameters.blockTokens: must be >= 1, got %d", p.BlockTokens))
			}
			return &Dynamo{
				parameters: p, stream: b.Stream(), active: map[uint64]map[uint64]int{},
				load:     scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				held:     scheduling.KeepState[dynamoHeld](b),
			}, errors.Join(append(errs, atLeast("overlapWeight", p.OverlapWeight, 0), atLeast("temperature", p.Temperature, 0))...)
		},
	}
}

// Pick implements scheduling.Picker.
func (p *Dynamo) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	p.hash(c.Request.Tokens)
	p.costs = append(p.costs[:0], make([]float64, len(c.Snapshot.Endpoints))...)
	random := c.Rand(p.stream)
	best, most := least{random: random}, math.Inf(-1)
	for e := range candidates.All() {
		load, _ := p.load.In(c).Get(e)
		own, _ := p.uncached.In(c).Get(e)
		held := p.active[c.Snapshot.Endpoints[e].Generation]
		inUse := len(held)
		for _, b := range p.blocks {
			if held[b] == 0 {
				inUse++
			}
		}
		p.costs[e] = p.parameters.OverlapWeight*float64(load.Tokens+int64(own))/float64(p.parameters.BlockTokens) + float64(inUse)
		best.offer(e, p.costs[e])
		most = max(most, p.costs[e])
	}
	if p.parameters.Temperature == 0 || most <= best.value {
		return best.appendTo(picks)
	}
	sum := 0.0
	for e := range candidates.All() {
		p.costs[e] = math.Exp(-(p.costs[e] - best.value) / (most - best.value) / p.parameters.Temperature)
		sum += p.costs[e]
	}
	left := random.Float64() * sum
	for e := range candidates.All() {
		if left -= p.costs[e]; left < 0 {
			return append(picks, e)
		}
	}
	return best.appendTo(picks) // rounding
}

// hash names the request's blocks: a block's name covers what comes before it.
func (p *Dynamo) hash(tokens []uint32) {
	p.blocks = p.blocks[:0]
	h := uint64(0)
	for len(tokens) > 0 {
		n := min(p.parameters.BlockTokens, len(tokens))
		h = scheduling.Mix64(h ^ hashOf(tokens[:n]))
		p.blocks, tokens = append(p.blocks, h), tokens[n:]
	}
}

// Charge implements scheduling.Charger.
func (p *Dynamo) Charge(_ *scheduling.Cycle, f *scheduling.Flight) {
	held := p.held.Of(f)
	held.endpoint, held.blocks = f.Endpoint.Generation, append([]uint64(nil), p.blocks...)
	if p.active[held.endpoint] == nil {
		p.active[held.endpoint] = map[uint64]int{}
	}
	for _, b := range held.blocks {
		p.active[held.endpoint][b]++
	}
}

// Committed implements scheduling.Follower.
func (p *Dynamo) Committed(*scheduling.Cycle, *scheduling.Flight) {}

// FirstToken implements scheduling.Follower.
func (p *Dynamo) FirstToken(*scheduling.Flight, time.Duration) {}

// Done implements scheduling.Follower.
func (p *Dynamo) Done(f *scheduling.Flight, _ time.Duration) {
	held := p.held.Of(f)
	active := p.active[held.endpoint]
	for _, b := range held.blocks {
		if active[b]--; active[b] == 0 {
			delete(active, b)
		}
	}
}
