// Package cache says what is known of the engines' prefix caches, in terms that hold for every index. The indices are its
// subpackages.
package cache

// Stats is how large an index is.
type Stats struct {
	// Entries are the distinct blocks in it, or runs of blocks. An index that follows events counts the places as well that it
	// keeps for a while, within bounds, although nobody is believed to hold them: of blocks that an engine removed and may still
	// announce a copy of, of blocks that turned out not to be cached, and of blocks before one that is held.
	Entries int
	// HolderEntries are the blocks, or runs, that endpoints are believed to hold, counted once for every one of them: by the
	// engine's word, and because a prompt was sent there.
	HolderEntries int
	// Bytes is its memory; where it is not counted, an estimate.
	Bytes int
	// Evicted counts the entries that were pushed out to make room, since the start.
	Evicted int64
	// Sources are the engines whose events are followed, by how far each can be trusted; nil for an index that guesses.
	Sources map[string]int
}

// Holding is what an index knows of one endpoint's prefix cache.
type Holding struct {
	// Blocks are what the endpoint is believed to hold, counted once for every kind of memory that has each.
	Blocks int
	// BlockSizeTokens is the size of a block in tokens; 0 where it is not known.
	BlockSizeTokens int
	// Events says how far the endpoint's events can be trusted: the state of the worst of its data-parallel ranks. Empty for
	// an index that guesses.
	Events string
}
