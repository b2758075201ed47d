package policies

import (
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// sglang is the cache-aware policy of SGLang's router.
func sglang() []Policy {
	parameters := []Parameter{
		{Name: "cache_threshold", Default: "0.3", Help: "share of the prompt above which the best match is followed"},
		{Name: "balance_abs", Default: "64", Help: "requests in flight by which the busiest may exceed the idlest endpoint"},
		{Name: "balance_rel", Default: "1.5", Help: "and by which factor"},
		capacityOf("16777216", " (there: max_tree_size of 2^26 characters)"),
	}
	return []Policy{{
		Name: "sglang", Summary: "best match by its own record, fewest requests where the match is poor or the loads are far apart",
		Source:     "SMG policies cache_aware.rs at 73da68ca9, sgl-router at 026f853",
		config:     "sglang.yaml",
		Parameters: parameters,
		Tuned: append(grid(parameters, over("cache_threshold", "0.3 0.5"), over("balance_abs", "4 16 64"), over("balance_rel", "1.1 1.5")),
			Params{"capacity": "2097152"}, Params{"capacity": "262144"}),
	}}
}

// sglangParameters are the parameters of sim-sglang-picker.
type sglangParameters struct {
	// CacheThreshold is the share of the prompt, 0 to 1, above which the best match is followed.
	CacheThreshold float64 `yaml:"cacheThreshold"`
	// BalanceAbs and BalanceRel say when loads are far apart: most − least > BalanceAbs and most > BalanceRel · least.
	BalanceAbs float64 `yaml:"balanceAbs"`
	BalanceRel float64 `yaml:"balanceRel"`
	// PrefixMatchInfoProducerName and InFlightLoadProducerName name the producers; empty means the only ones.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	InFlightLoadProducerName    string `yaml:"inFlightLoadProducerName"`
}

// SGLang picks the endpoint with the longest match where that is more than a threshold of the prompt, else the one with the
// fewest requests in flight; and always that one while loads are far apart. Of endpoints that match alike it picks by the
// matched text, so that the same text has the same one. It is a scheduling.Picker.
type SGLang struct {
	parameters sglangParameters
	stream     uint64
	match      scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load       scheduling.Key[scheduling.InFlightLoad]
}

func sglangType() scheduling.PluginType {
	defaults := sglangParameters{CacheThreshold: 0.3, BalanceAbs: 64, BalanceRel: 1.5}
	return scheduling.PluginType{
		Type: "sim-sglang-picker", Summary: "Picks the best match while loads are balanced.", Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := defaults
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			return &SGLang{
				parameters: p, stream: b.Stream(),
				match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName),
				load:  scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, errors.Join(atLeast("cacheThreshold", p.CacheThreshold, 0), atLeast("balanceAbs", p.BalanceAbs, 0), atLeast("balanceRel", p.BalanceRel, 0))
		},
	}
}

// Pick implements scheduling.Picker.
func (p *SGLang) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	idlest := least{random: c.Rand(p.stream)}
	most, matched, block := 0.0, 0, 0
	for e := range candidates.All() {
		load, _ := p.load.In(c).Get(e)
		idlest.offer(e, float64(load.Requests))
		most = max(most, float64(load.Requests))
		if info := p.match.In(c).At(e); info != nil && info.Valid() && info.MatchBlocks > matched {
			matched, block = info.MatchBlocks, info.BlockSizeTokens
		}
	}
	apart := most-idlest.value > p.parameters.BalanceAbs && most > p.parameters.BalanceRel*idlest.value
	tokens := min(matched*block, len(c.Request.Tokens))
	if apart || matched == 0 || float64(tokens) <= p.parameters.CacheThreshold*float64(len(c.Request.Tokens)) {
		return idlest.appendTo(picks)
	}
	text := hashOf(c.Request.Tokens[:tokens])
	best, rank := -1, uint64(0)
	for e := range candidates.All() {
		if info := p.match.In(c).At(e); info != nil && info.MatchBlocks == matched {
			if r := scheduling.Mix64(text ^ uint64(e)); best < 0 || r > rank {
				best, rank = e, r
			}
		}
	}
	return append(picks, best)
}

// atLeast checks a parameter's range. It refuses what is not a number.
func atLeast(key string, value, low float64) error {
	if value >= low {
		return nil
	}
	return fmt.Errorf("parameters.%s: must be >= %v, got %v", key, low, value)
}
