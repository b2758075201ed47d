// Package chain is the index behind the precise prefix cache: which holders hold which blocks of which prompts.
//
// A block is named by its chained hash (package blockhash), which stands for all tokens up to its end, so one name means
// one prefix. Blocks that follow one another lie side by side in a chain, shared by all holders: an array of hashes and
// beside it, per position, a bit set of the holders that have the block. A prompt that leaves a chain continues in a child
// chain; a map knows the chains by the hash of their first block, and nothing else is looked up by hash. A look-up is one
// probe per chain it passes, a comparison of two arrays and an AND over bit sets, whatever the number of holders; holes
// inside a chain cost it nothing, since presence is kept per position.
//
// A holder is one (endpoint instance, data-parallel rank, tier). Its bit in a chain is a local one, given at its first
// block there, so that a chain that one endpoint has costs one word a block, whatever the size of the pool.
//
// Memory, in bytes: per chain about 250; per position 8 for the hash and 8 for every 64 holders of the chain. The
// holders' own tables, which map their engine's names to positions here, are theirs (package precise).
package chain

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-epp/sluice/cache/precise/table"
)

const (
	shardBits  = 8
	shardCount = 1 << shardBits
	indexBits  = 32 - shardBits
	// maxChains is the number of chains in a shard.
	maxChains = 1 << indexBits
)

// Holder names one set of blocks, from Register on until Release.
type Holder uint32

// NoSource is the source of a holder whose blocks count for nothing: they keep their places only.
const NoSource = ^uint32(0)

// info is what a look-up needs of a holder.
type info struct {
	source uint32
	weight int32 // thousandths of a block
}

// Store is the index. All its methods may be called from any goroutine; those that change what one holder holds must
// not be called for the same holder by several at a time.
type Store struct {
	shards [shardCount]shard
	infos  atomic.Pointer[[]info] // by holder; immutable

	mu   sync.Mutex // guards what follows, and the replacement of infos
	free []Holder
}

// shard holds the chains whose first hash falls to it, under one lock. No two shards are ever locked at once.
type shard struct {
	mu     sync.RWMutex
	heads  table.Table // first hash → index in chains
	chains []*chain    // nil: unused
	unused []uint32    // indices of unused places
	spare  []*chain    // empty chains to use again
	sizes  Sizes
}

// Sizes counts what the index holds.
type Sizes struct {
	// Chains is the number of chains.
	Chains int
	// Positions is the number of distinct blocks.
	Positions int
	// Bits is the number of (block, holder) pairs.
	Bits int
	// Bytes is the memory of all chains with their spare capacity.
	Bytes int
}

// New returns an empty index.
func New() *Store {
	s := &Store{}
	s.infos.Store(&[]info{})
	return s
}

// Register makes a holder whose blocks count for a source, at a weight in thousandths of a block each. Several holders of
// one source are its tiers: of each block the best one counts.
func (s *Store) Register(source uint32, weight int) Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	var h Holder
	if n := len(s.free); n > 0 {
		h = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		h = Holder(len(*s.infos.Load()))
	}
	s.put(h, info{source: source, weight: int32(weight)})
	return h
}

// Disown makes what a holder holds count for nothing, at once.
func (s *Store) Disown(h Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(h, info{source: NoSource})
}

// Release gives a holder's name away; it must hold nothing any more.
func (s *Store) Release(h Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(h, info{source: NoSource})
	s.free = append(s.free, h)
}

// put replaces the table of holders by one in which h is i.
func (s *Store) put(h Holder, i info) {
	old := *s.infos.Load()
	next := make([]info, max(len(old), int(h)+1))
	copy(next, old)
	next[h] = i
	s.infos.Store(&next)
}

// Sizes counts what the index holds, all shards together.
func (s *Store) Sizes() Sizes {
	var all Sizes
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.RLock()
		all.Chains += sh.sizes.Chains
		all.Positions += sh.sizes.Positions
		all.Bits += sh.sizes.Bits
		all.Bytes += sh.sizes.Bytes + sh.heads.Bytes() + 12*cap(sh.chains)
		sh.mu.RUnlock()
	}
	return all
}

// Hollow counts the places that nobody holds, which stay for those that follow them. It reads the whole index.
func (s *Store) Hollow() (places int) {
	for i := range s.shards {
		places += s.shards[i].hollow()
	}
	return places
}

func (sh *shard) hollow() (places int) {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	for _, c := range sh.chains {
		if c == nil {
			continue
		}
		for pos := range c.hashes {
			if !c.held(pos) {
				places++
			}
		}
	}
	return places
}

// shardOf is the shard of the chains that begin with a hash; the hash's top bits are not those that the map uses first.
func (s *Store) shardOf(head uint64) *shard { return &s.shards[head>>(64-shardBits)] }

// Ref is the place of a block in the index, and of a holder's bit there: chain (32 bits), position (12), local holder
// (12), 56 bits in all, and above them what Insert tells. It is good as long as the holder, or another one of the same
// owner, has the block.
type Ref uint64

const (
	localBits  = 12
	posBits    = 12
	maxLength  = 1 << posBits
	maxHolders = 1 << localBits

	refBits = 32 + posBits + localBits
	held    = Ref(1) << refBits
	owned   = Ref(2) << refBits
)

// NoRef is the place before the first block.
const NoRef = ^Ref(0)

func newRef(chain uint32, pos, local int) Ref {
	return Ref(chain)<<(posBits+localBits) | Ref(pos)<<localBits | Ref(local)
}

// Bare is the place without what Insert tells.
func (r Ref) Bare() Ref { return r & (1<<refBits - 1) }

// Place names the block's place whoever holds it: equal for all holders.
func (r Ref) Place() Ref { return r.Bare() &^ (maxHolders - 1) }

// Held reports, of a place that Insert or Set returned, whether the holder had the block before.
func (r Ref) Held() bool { return r&held != 0 }

// Owned reports, of a place that Insert returned, whether the holder or another one of its owner had the block before.
func (r Ref) Owned() bool { return r&owned != 0 }

func (r Ref) chain() uint32 { return uint32(r.Bare() >> (posBits + localBits)) }
func (r Ref) pos() int      { return int(r>>localBits) & (maxLength - 1) }
func (r Ref) local() int    { return int(r) & (maxHolders - 1) }

// at is the shard and the index of a chain by its id.
func (s *Store) at(id uint32) (*shard, uint32) {
	return &s.shards[id>>indexBits], id & (maxChains - 1)
}
