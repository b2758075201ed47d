package approx

import (
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// tuneInterval is how often the engines' cache configuration is looked at. It changes when an engine starts.
const tuneInterval = time.Second

// tuner spreads looking at the engines' configuration over requests: no goroutine, and no request does it twice.
type tuner struct{ due atomic.Int64 } // on the clock of Cycle.Now; 0: never done

// tune follows the engines' cache configuration where that is asked for and due.
func (p *Producer) tune(c *scheduling.Cycle) {
	if !p.params.AutoTune || p.config == nil {
		return
	}
	due := p.tuner.due.Load()
	if due != 0 && int64(c.Now) < due {
		return
	}
	if p.tuner.due.CompareAndSwap(due, int64(c.Now+tuneInterval)) {
		p.tuneBlockSize(c.Snapshot)
		p.tuneCapacities(c.Snapshot)
	}
}

// tuneBlockSize gives the index the pool's most common block size. Hashes of another size mean nothing, so a new size is
// a new, empty index; a size that is as common as any other stays.
func (p *Producer) tuneBlockSize(s *scheduling.Snapshot) {
	current := p.index.Load().layout.BlockTokens()
	votes := make(map[int]int)
	for _, e := range s.Endpoints {
		if e == nil {
			continue
		}
		if size, _, ok := p.config.CacheConfig(e.Ordinal, e.Generation); ok {
			if block := usableBlock(size); block > 0 && block <= p.params.MaxPrefixTokensToMatch {
				votes[block]++
			}
		}
	}
	best := current
	for block, n := range votes {
		if n > votes[best] || (n == votes[best] && best != current && block < best) {
			best = block
		}
	}
	if best == current {
		return
	}
	x := newIndex(p.params.layout(best), p.params.LRUCapacityPerServer)
	x.adopt(s)
	p.index.Store(x)
	p.logger.Info("prefix index cleared: the engines' block size is another", "producer", p.name,
		"block_size_tokens", best, "previous_block_size_tokens", current)
}

// usableBlock is the block size to index an engine's blocks with, 0 for none. Engines that cache in smaller steps than
// the default block (SGLang's page is one token unless told otherwise) are indexed by the smallest multiple that is not
// smaller: an entry per token or two is not worth its memory.
func usableBlock(size int) int {
	switch {
	case size < 1 || size > maxBlockTokens:
		return 0
	case size < defaultBlock:
		return (defaultBlock + size - 1) / size * size
	}
	return size
}

// tuneCapacities gives each endpoint the capacity of its engine, in the index's blocks.
func (p *Producer) tuneCapacities(s *scheduling.Snapshot) {
	x := p.index.Load()
	x.adopt(s)
	for _, e := range s.Endpoints {
		if e == nil {
			continue
		}
		size, blocks, ok := p.config.CacheConfig(e.Ordinal, e.Generation)
		if !ok || size < 1 || size > maxBlockTokens || blocks < 1 {
			continue
		}
		tokens := min(int64(blocks), 1<<40) * int64(size)
		capacity := int(min(maxTunedCapacity, max(1, tokens/int64(x.layout.BlockTokens()))))
		if in := x.instanceOf(e); in != nil && in.capacityNow() != capacity {
			x.resize(in, capacity, true)
		}
	}
}

func (in *instance) capacityNow() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.capacity
}

// setCapacity changes the capacity of instances to come and of those here, except, where keepTuned says so, of those
// whose engine gave one.
func (x *index) setCapacity(capacity int, keepTuned bool) {
	x.adoption.Lock()
	defer x.adoption.Unlock()
	x.capacity = capacity
	for _, in := range x.members.Load().byOrdinal {
		if in != nil && !(keepTuned && in.isTuned()) {
			x.resize(in, capacity, false)
		}
	}
}

func (in *instance) isTuned() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.tuned
}
