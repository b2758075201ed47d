package sim

// none ends every list of blocks.
const none = int32(-1)

// block is one physical KV block. It is in the free queue exactly when refs is 0.
type block struct {
	hash   uint64
	hashed bool // hash is valid and in the index
	refs   int32

	prev, next       int32 // free queue
	twinPrev, twinNx int32 // blocks that hold the same hash, in the order in which they got it
}

// pool is the paged KV cache: reference counts, an index by hash, and a queue of free blocks of
// which the head is evicted first.
type pool struct {
	blocks []block          // the last one is the free queue's sentinel
	index  map[uint64]int32 // hash → the oldest of its twins
	nfree  int
	hashed int
	obs    Observer
	gone   [1]uint64 // what the observer is told
}

func newPool(n int, obs Observer) *pool {
	p := &pool{blocks: make([]block, n+1), index: make(map[uint64]int32), obs: obs}
	s := p.sentinel()
	p.blocks[s] = block{prev: s, next: s}
	for b := int32(n) - 1; b >= 0; b-- {
		p.pushFree(b)
	}
	return p
}

func (p *pool) sentinel() int32 { return int32(len(p.blocks) - 1) }
func (p *pool) total() int      { return len(p.blocks) - 1 }

// pushFree puts a block at the end of the free queue, or at its head where it caches nothing.
func (p *pool) pushFree(b int32) {
	before := p.sentinel()
	if p.blocks[b].hashed {
		before = p.blocks[before].prev
	}
	after := p.blocks[before].next
	p.blocks[b].prev, p.blocks[b].next = before, after
	p.blocks[before].next, p.blocks[after].prev = b, b
	p.nfree++
}

func (p *pool) unlinkFree(b int32) {
	prev, next := p.blocks[b].prev, p.blocks[b].next
	p.blocks[prev].next, p.blocks[next].prev = next, prev
	p.nfree--
}

// match counts the leading hashes that are cached, and how many of their blocks are free: taking
// those makes the free queue shorter too.
func (p *pool) match(hashes []uint64) (cached, free int) {
	for _, h := range hashes {
		b, ok := p.index[h]
		if !ok {
			break
		}
		cached++
		if p.blocks[b].refs == 0 {
			free++
		}
	}
	return cached, free
}

// share takes a reference on a cached block. The hash must be in the index.
func (p *pool) share(hash uint64) int32 {
	b := p.index[hash]
	if p.blocks[b].refs == 0 {
		p.unlinkFree(b)
	}
	p.blocks[b].refs++
	return b
}

// take evicts the head of the free queue and returns it with one reference. The queue must not be
// empty.
func (p *pool) take() int32 {
	b := p.blocks[p.sentinel()].next
	p.unlinkFree(b)
	if p.blocks[b].hashed {
		hash := p.blocks[b].hash
		p.forget(b)
		if p.obs != nil {
			p.gone[0] = hash
			p.obs.BlocksRemoved(Removed{Medium: GPU, Hashes: p.gone[:]})
		}
	}
	p.blocks[b].refs = 1
	return b
}

// release drops one reference on each block, the last block first, so that the tail of a sequence
// is evicted before its head. Blocks that cache nothing, the partial last one above all, are taken
// again before any that does.
func (p *pool) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		p.blocks[b].refs--
		if p.blocks[b].refs == 0 {
			p.pushFree(b)
		}
	}
}

// store makes a computed block known under its hash, behind twins that hold the same.
func (p *pool) store(b int32, hash uint64) {
	bl := &p.blocks[b]
	bl.hash, bl.hashed = hash, true
	bl.twinPrev, bl.twinNx = none, none
	p.hashed++
	first, ok := p.index[hash]
	if !ok {
		p.index[hash] = b
		return
	}
	last := first
	for p.blocks[last].twinNx != none {
		last = p.blocks[last].twinNx
	}
	bl.twinPrev = last
	p.blocks[last].twinNx = b
}

func (p *pool) forget(b int32) {
	bl := &p.blocks[b]
	bl.hashed = false
	p.hashed--
	switch {
	case bl.twinPrev != none:
		p.blocks[bl.twinPrev].twinNx = bl.twinNx
	case bl.twinNx != none:
		p.index[bl.hash] = bl.twinNx
	default:
		delete(p.index, bl.hash)
	}
	if bl.twinNx != none {
		p.blocks[bl.twinNx].twinPrev = bl.twinPrev
	}
}

// reset forgets every cached block. It refuses while a block is referenced.
func (p *pool) reset() bool {
	if p.nfree != p.total() {
		return false
	}
	for b := range p.blocks {
		p.blocks[b].hashed = false
	}
	clear(p.index)
	p.hashed = 0
	if p.obs != nil {
		p.obs.CacheCleared()
	}
	return true
}

// each yields the hash of every physical block that has one.
func (p *pool) each(yield func(uint64) bool) {
	for b := range p.blocks[:p.total()] {
		if p.blocks[b].hashed && !yield(p.blocks[b].hash) {
			return
		}
	}
}
