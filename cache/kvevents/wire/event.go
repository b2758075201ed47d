package wire

// Kind says what happened to blocks of an engine's cache.
type Kind uint8

// The kinds of event, with their tags on the wire.
const (
	Stored  Kind = iota + 1 // "BlockStored"
	Removed                 // "BlockRemoved"
	Cleared                 // "AllBlocksCleared"
)

const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)

// String is the kind's tag on the wire.
func (k Kind) String() string {
	switch k {
	case Stored:
		return tagStored
	case Removed:
		return tagRemoved
	case Cleared:
		return tagCleared
	}
	return "unknown"
}

// Batch is what one message holds: the events of one scheduler step of one data-parallel rank.
type Batch struct {
	// Time is the publisher's clock, seconds since 1970.
	Time float64
	// Rank is the data-parallel rank; without HasRank the message does not tell it.
	Rank    int
	HasRank bool
	// Events are in the order in which they happened.
	Events []Event
	// Unknown is the number of events left out because their kind is not known.
	Unknown int
	// Bad is the number of events left out because they are malformed or exceed what a batch may hold.
	Bad int
}

// Clears reports whether the batch holds an event that empties the engine's cache.
func (b *Batch) Clears() bool {
	for i := range b.Events {
		if b.Events[i].Kind == Cleared {
			return true
		}
	}
	return false
}

// Event is one change. A Cleared event has no fields; a Removed one has Hashes, Medium and Group.
type Event struct {
	Kind Kind
	// HasParent and HasGroup say whether Parent and Group are told.
	HasParent, HasGroup bool
	// Pairs says that the engine keys its cache by pairs of neighbouring tokens (EAGLE). Tokens holds the first of each,
	// so a block's last key also depends on the token that follows the block.
	Pairs bool

	// Hashes are the engine's names of the blocks, opaque and valid inside one source only: an integer by its 64 bits,
	// bytes by a fixed 64-bit hash of them (XXH3).
	Hashes []uint64
	// Parent names the block before the first; without HasParent the first block begins a prompt.
	Parent uint64
	// Tokens are the token ids of all blocks. There are none where an offloaded block is named by its hash only, and there
	// may be more than Hashes×BlockSize in a group with sliding windows.
	Tokens []uint32
	// BlockSize is the number of tokens in a block; 0 where no tokens are told.
	BlockSize int
	// Medium is the tier in lower case: "gpu", "cpu", "storage", "cpu_pinned", "disk", "external", …; empty where none is
	// told, OtherName where the engine has used too many or too long names.
	Medium string
	// LoRA is the adapter's name, nil for the base model. An adapter told only by its id has the name that AdapterByID
	// recognises, which no request can ask for.
	LoRA []byte
	// LoRAID is the adapter's number in the engine; 0 where there is none.
	LoRAID int64
	// Group is the KV cache group of a model that has several.
	Group int
	// Spec is the group's kind of attention, "full_attention", "sliding_window", …; empty where none is told.
	Spec string
	// Window is the sliding window in tokens; 0 where none is told.
	Window int

	// Extra are the extra keys of the blocks, one block's after the other's: what a block's hash depends on beyond its
	// tokens and the adapter, whose name is not among them. The keys of block i are Extra[ExtraEnd[i-1]:ExtraEnd[i]], from
	// 0 for the first. ExtraEnd is nil where the event tells of no extra keys; Extra is empty where no block has any.
	Extra    []Item
	ExtraEnd []int
	// Salt is the cache salt where it is a field of its own (SGLang); vLLM's is an Item of the first block.
	Salt []byte
	// Session is the session that the request belongs to, nil where none is told.
	Session []byte
}

// Keys are the extra keys of block i, which may be none.
func (e *Event) Keys(i int) []Item {
	if i >= len(e.ExtraEnd) {
		return nil
	}
	from := 0
	if i > 0 {
		from = e.ExtraEnd[i-1]
	}
	return e.Extra[from:e.ExtraEnd[i]]
}

// ItemKind says what an extra key is.
type ItemKind uint8

// The kinds of extra key.
const (
	// ItemString is a string: a cache salt, or the id of an image or the like as vLLM 0.18 wrote it. The wire does not
	// tell which.
	ItemString ItemKind = iota + 1
	// ItemFeature is an image or the like: a pair of its id, which is the Value, and an offset, which is left out since
	// the tokens tell it.
	ItemFeature
	// ItemOpaque is anything else: Value is its msgpack.
	ItemOpaque
)

// Item is one extra key of a block.
type Item struct {
	Kind  ItemKind
	Value []byte
}
