package precise

import (
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/precise/chain"
)

// Index is the precise prefix index by itself, without endpoints, connections and speculation: for whoever has events and
// prompts from elsewhere.
type Index struct{ hub *hub }

// NewIndex returns an empty index with the default weights of tiers.
func NewIndex(seed blockhash.Seed) *Index {
	tiers, err := newTierWeights(defaultTiers, defaultOtherTier)
	if err != nil { // the defaults are good
		return nil
	}
	return &Index{newHub(seed, tiers, maxCapacity)}
}

// Open adds an engine. Its number is its place in Query.Matches, and what the sink is told is what the engine holds.
func (x *Index) Open() (number int, sink kvevents.Sink) {
	s := x.hub.newSource()
	return int(s.index), s
}

// Query is the memory of look-ups, for one goroutine at a time.
type Query struct {
	// Hashes are the prompt's block hashes, Matches what each engine holds.
	Hashes []uint64
	// Lookup holds the matches, by number.
	chain.Lookup
}

// Hash cuts a prompt into blocks.
func (x *Index) Hash(q *Query, blockSize int, tokens []uint32) {
	q.Hashes = x.hub.keys.appendPrompt(q.Hashes[:0], blockSize, 0, "", tokens, nil)
}

// Match looks a prompt up that Hash has cut.
func (x *Index) Match(q *Query) { q.Run(x.hub.store, q.Hashes, int(x.hub.sources.Load())) }

// Bytes is the index's memory: that of the blocks, which engines share, and that of the engines' tables.
func (x *Index) Bytes(sinks []kvevents.Sink) (blocks, tables int) {
	for _, sink := range sinks {
		if s, ok := sink.(*source); ok {
			tables += s.bytes()
		}
	}
	return x.hub.store.Sizes().Bytes, tables
}
