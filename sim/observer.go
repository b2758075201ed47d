package sim

// Observer is told what happens to the prefix cache, in order, from within the engine's methods.
// It must not call the engine. What a step did to the GPU's cache comes before what it did to the
// offload tier.
type Observer interface {
	// BlocksStored reports blocks that can be reused from now on.
	BlocksStored(Stored)
	// BlocksRemoved reports evictions.
	BlocksRemoved(Removed)
	// CacheCleared reports that the GPU holds no cached block any more. The offload tier keeps what
	// it has, and nothing reports that it was emptied, as in vLLM.
	CacheCleared()
}

// Medium is where a cached block is.
type Medium uint8

// The media.
const (
	GPU Medium = iota
	CPU        // the offload tier
)

// String is the medium's name as vLLM writes it.
func (m Medium) String() string {
	if m == CPU {
		return "CPU"
	}
	return "GPU"
}

// Stored are consecutive blocks of one job. On the GPU they are the blocks that one step computed,
// or those that it loaded from the offload tier; in the offload tier each block comes by itself, a
// child possibly before its parent. Hashes and Tokens are valid during the call only.
type Stored struct {
	Medium Medium
	Job    *Job
	First  int      // index of the first of these blocks in the text
	Parent uint64   // hash of the block before; meaningless when First is 0
	Hashes []uint64 // one per block
	Tokens []uint32 // of all these blocks
	// Reused says that these blocks were stored before and are announced again for [Job.Report]: no
	// further copy exists, and no removal of one will come.
	Reused bool
}

// Removed are hashes of evicted blocks, one block each. On the GPU a hash stored n times stays
// cached until it was removed n times, and blocks come one by one; the offload tier holds a hash
// once, and makes room for a job's blocks in one go. Hashes are valid during the call only.
type Removed struct {
	Medium Medium
	Hashes []uint64
}
