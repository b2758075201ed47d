package approx

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/cache/blockhash"
)

// Parameters are the plugin's parameters. In the four sizes 0 means the default, never "nothing" and never "no limit".
type Parameters struct {
	// AutoTune takes the block size and the capacity of each endpoint from what the engines say of their KV cache. As
	// long as no engine says anything, BlockSizeTokens and LRUCapacityPerServer hold.
	AutoTune bool `yaml:"autoTune"`
	// BlockSizeTokens is the size of a block in tokens, 4 to 65536; where a prompt is known as text only, a block is four
	// times as many bytes. 0 means the default.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// MaxPrefixBlocksToMatch is the largest number of index entries that one prompt takes: 1 to 1048576, or 0 for the
	// default. Where single blocks would not reach MaxPrefixTokensToMatch with so many, blocks far from the head share
	// entries.
	MaxPrefixBlocksToMatch int `yaml:"maxPrefixBlocksToMatch"`
	// MaxPrefixTokensToMatch is how far into a prompt the index looks, in tokens; hashing stops there. One block to
	// 16777216, or 0 for the default.
	MaxPrefixTokensToMatch int `yaml:"maxPrefixTokensToMatch"`
	// LRUCapacityPerServer is the size of the cache that an endpoint is taken to have, in blocks: 1 to 4194304, or 0 for
	// the default.
	LRUCapacityPerServer int `yaml:"lruCapacityPerServer"`
	// HashSeed is a secret that keys the block hashes; empty means one that is drawn when the process starts.
	HashSeed string `yaml:"hashSeed"`
	// TokenProducerName is the token producer to use; empty means the only one.
	TokenProducerName string `yaml:"tokenProducerName"`
}

// The bounds of the sizes. Below 4 tokens a block costs more to remember than to recompute; the upper bounds keep the
// memory that a typing error can take within reason.
const (
	minBlockTokens   = 4
	maxBlockTokens   = 65536
	maxRuns          = 1 << 20
	maxPrefixTokens  = 1 << 24
	maxCapacity      = 1 << 22
	defaultBlock     = 16
	defaultRuns      = 2048
	defaultTokens    = 131072
	defaultCapacity  = 31250
	maxTunedCapacity = 1 << 20
)

func defaultParameters() Parameters {
	return Parameters{
		AutoTune:               true,
		BlockSizeTokens:        defaultBlock,
		MaxPrefixBlocksToMatch: defaultRuns,
		MaxPrefixTokensToMatch: defaultTokens,
		LRUCapacityPerServer:   defaultCapacity,
	}
}

// complete puts defaults in place of zeros and checks the rest.
func (p *Parameters) complete() error {
	p.BlockSizeTokens = cmp.Or(p.BlockSizeTokens, defaultBlock)
	p.MaxPrefixBlocksToMatch = cmp.Or(p.MaxPrefixBlocksToMatch, defaultRuns)
	p.MaxPrefixTokensToMatch = cmp.Or(p.MaxPrefixTokensToMatch, defaultTokens)
	p.LRUCapacityPerServer = cmp.Or(p.LRUCapacityPerServer, defaultCapacity)
	var errs []error
	for _, b := range []struct {
		name      string
		value     int
		low, high int
		unit      string
	}{
		{"blockSizeTokens", p.BlockSizeTokens, minBlockTokens, maxBlockTokens, "tokens (an entry per fewer tokens outgrows memory)"},
		{"maxPrefixBlocksToMatch", p.MaxPrefixBlocksToMatch, 1, maxRuns, "entries, or 0 for the default"},
		{"maxPrefixTokensToMatch", p.MaxPrefixTokensToMatch, 1, maxPrefixTokens, "tokens, or 0 for the default"},
		{"lruCapacityPerServer", p.LRUCapacityPerServer, 1, maxCapacity, "blocks, or 0 for the default"},
	} {
		if b.value < b.low || b.value > b.high {
			errs = append(errs, fmt.Errorf("parameters.%s: must be %d to %d %s, got %d", b.name, b.low, b.high, b.unit, b.value))
		}
	}
	if len(errs) == 0 && p.MaxPrefixTokensToMatch < p.BlockSizeTokens {
		errs = append(errs, fmt.Errorf("parameters.maxPrefixTokensToMatch: must be at least one block (blockSizeTokens %d), got %d",
			p.BlockSizeTokens, p.MaxPrefixTokensToMatch))
	}
	return errors.Join(errs...)
}

// layout is where prompts are cut at a block size.
func (p *Parameters) layout(blockTokens int) blockhash.Layout {
	return blockhash.NewLayout(blockTokens, p.MaxPrefixBlocksToMatch, p.MaxPrefixTokensToMatch)
}
