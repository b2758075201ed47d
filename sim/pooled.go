package sim

import "fmt"

// NewPooled makes engines that share one KV cache with the blocks of all: what one of them has computed every other one finds,
// with no time for moving it, and the text of a sequence takes room in the pool alone. No engines are built like that; it is
// a reference for those that are. The block sizes and hash seeds must be the same. Nobody is told what happens to the cache.
//
// An engine with nothing to run may have something once another one's step has ended.
func NewPooled(params []Params) ([]*Engine, error) {
	blocks := 0
	for i, p := range params {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("engine %d: %w", i, err)
		}
		if p.BlockSize != params[0].BlockSize || p.HashSeed != params[0].HashSeed {
			return nil, fmt.Errorf("engine %d: blockSize %d and hashSeed %d, where engine 0 has %d and %d: their blocks cannot be shared",
				i, p.BlockSize, p.HashSeed, params[0].BlockSize, params[0].HashSeed)
		}
		if blocks += p.NumBlocks; blocks > MaxBlocks {
			return nil, fmt.Errorf("engine %d: numBlocks of all until here must be <= %d, got %d", i, MaxBlocks, blocks)
		}
		if p.OffloadBlocks > 0 {
			return nil, fmt.Errorf("engine %d: offloadBlocks: must be 0 where the cache is shared, got %d", i, p.OffloadBlocks)
		}
	}
	shared := newPool(blocks, nil)
	engines := make([]*Engine, len(params))
	for i, p := range params {
		engines[i] = &Engine{params: p, pool: shared}
	}
	return engines, nil
}

// Reusable is how many tokens of a prompt the engine's cache holds now: what a job with it would not compute, were it admitted
// at once. It is the truth, which no router knows.
func (e *Engine) Reusable(prompt []uint32) int {
	j := &Job{Prompt: prompt}
	e.extendHashes(j)
	cached, _ := e.pool.match(j.hashes[:max(0, len(prompt)-1)/e.params.BlockSize])
	return cached * e.params.BlockSize
}
