package precise

import "sync/atomic"

// stats counts what became of the blocks of events, over all sources. Gauges go up and down.
type stats struct {
	applied         atomic.Int64 // stores and removals that changed or confirmed something
	cleared         atomic.Int64 // events that cleared a cache
	joined          atomic.Int64 // stores by name only that were joined
	unjoined        atomic.Int64 // ... that were not
	orphans         atomic.Int64 // blocks whose parent was unknown
	orphansDropped  atomic.Int64 // ... that were dropped to make room
	unknownRemovals atomic.Int64 // removals of blocks that were not known
	uneven          atomic.Int64 // blocks of events whose tokens do not fill them
	partial         atomic.Int64 // blocks that are not full
	otherGroup      atomic.Int64 // blocks of groups that are not of full attention
	refused         atomic.Int64 // blocks that the index had no room for
	evicted         atomic.Int64 // blocks lost to the limit of a source
	reported        atomic.Int64 // stores that only repeated what is there
	resized         atomic.Int64 // changes of a tier's block size
	contradictions  atomic.Int64 // requests of which less was cached than was believed
	doubted         atomic.Int64 // blocks not believed any more after one
	blocks          atomic.Int64 // gauge: blocks in all tables
	parked          atomic.Int64 // gauge: blocks that wait for their parent
}
