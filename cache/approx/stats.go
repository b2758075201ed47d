package approx

import (
	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/scheduling"
)

// Stats is how large the index is.
func (p *Producer) Stats() cache.Stats {
	x := p.index.Load()
	entries, hashes, words, _ := x.size()
	return cache.Stats{Entries: hashes, HolderEntries: entries, Bytes: memory(entries, hashes, words), Evicted: x.evicted.Load()}
}

// Holding is what the index knows of an endpoint's cache; ok is false where it does not know the endpoint.
func (p *Producer) Holding(e *scheduling.Endpoint) (h cache.Holding, ok bool) {
	x := p.index.Load()
	in := x.instanceOf(e)
	if in == nil {
		return h, false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return cache.Holding{Blocks: in.blocks, BlockSizeTokens: x.layout.BlockTokens()}, true
}
