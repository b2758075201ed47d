package scheduling

import "math"

// PrefixCacheMatchInfo says how much of this request's prompt one endpoint's prefix cache holds. It carries two counts
// that are not the same: MatchBlocks ranks endpoints, CachedBlockCount says what need not be computed.
type PrefixCacheMatchInfo struct {
	// MatchBlocks is the tier-weighted match in blocks: the sum over matched blocks of the weight of their best tier,
	// rounded down.
	MatchBlocks int
	// CachedBlockCount is the literal number of contiguous cached blocks from the prompt's head, whatever their tier.
	CachedBlockCount int
	// TotalBlocks is the number of blocks of the prompt that were looked up.
	TotalBlocks int
	// BlockSizeTokens is the size of these blocks in tokens.
	BlockSizeTokens int
}

// NewPrefixCacheMatchInfo returns match info whose literal count equals the weighted one: all that a producer without
// cache tiers knows.
func NewPrefixCacheMatchInfo(matchBlocks, totalBlocks, blockSizeTokens int) PrefixCacheMatchInfo {
	return PrefixCacheMatchInfo{
		MatchBlocks: matchBlocks, CachedBlockCount: matchBlocks,
		TotalBlocks: totalBlocks, BlockSizeTokens: blockSizeTokens,
	}
}

// Valid reports whether the info can be used at all: block counts mean nothing without a positive block size.
func (i PrefixCacheMatchInfo) Valid() bool { return i.BlockSizeTokens > 0 }

// Score is prefix_cache_score, MatchBlocks / TotalBlocks in [0, 1]; a prompt shorter than one block scores 0.
func (i PrefixCacheMatchInfo) Score() float64 {
	if !i.Valid() || i.TotalBlocks <= 0 {
		return 0
	}
	return min(1, max(0, float64(i.MatchBlocks)/float64(i.TotalBlocks)))
}

// MatchedTokens is the weighted match in tokens, MatchBlocks × BlockSizeTokens; 0 for invalid info.
func (i PrefixCacheMatchInfo) MatchedTokens() int {
	if !i.Valid() {
		return 0
	}
	return max(0, i.MatchBlocks) * i.BlockSizeTokens
}

// InFlightLoad is what this process has sent to an endpoint and not yet seen the end of.
type InFlightLoad struct {
	// Requests is the number of requests in flight.
	Requests int64
	// Tokens is the number of uncached prompt tokens not yet prefilled, plus estimated output where configured.
	Tokens int64
	// Decoding is the number of requests past their first token.
	Decoding int64
}

// UncachedRequestTokens is what this request would cost on one endpoint: the tokens that its cache does not hold.
type UncachedRequestTokens int64

// TokenizedPrompt is what is known of the prompt's length and, where an exact tokenizer or the body itself gave them,
// its token ids. One value a request.
type TokenizedPrompt struct {
	// Tokens are the first prompt's token ids; empty when only the length is known. They alias the cycle's memory.
	Tokens []uint32
	// Count is the number of input tokens over all prompts of the request.
	Count int
	// Exact says that Count is what the engine will count, not an estimate.
	Exact bool
	// BytesPerToken is the ratio that estimates use for this request's model.
	BytesPerToken float64
	// Features are the images, recordings and the like in the first prompt, by offset. They alias the cycle's memory.
	Features []PromptFeature
}

// Detach lets go of the cycle's memory: the length stays.
func (p *TokenizedPrompt) Detach() { p.Tokens, p.Features = nil, nil }

// PromptFeature is a piece of a prompt that is no text: what an engine's prefix cache knows by its identifier, since the
// tokens that stand for it are placeholders.
type PromptFeature struct {
	// ID is the engine's name of the content, a hash of it.
	ID string
	// Offset and Length are the range of its placeholders in the prompt, in tokens.
	Offset, Length int
}

// MetricsField is a set of the fields that an engine's metrics page had.
type MetricsField uint8

// The fields of EngineMetrics.
const (
	MetricsWaiting MetricsField = 1 << iota
	MetricsRunning
	MetricsKVUsage
	MetricsAdapters
)

// AdapterUse is what an engine does with one adapter.
type AdapterUse uint8

// The uses of an adapter.
const (
	AdapterUnknown AdapterUse = iota
	AdapterUnused             // no request on the engine names it
	AdapterWaiting            // requests that name it wait, and none is computed
	AdapterRunning            // a request that names it is computed
)

// EngineMetrics is what an engine last said of itself. A field that is not in Known was not on its page: unknown, which
// is neither idle nor busy. An endpoint that was never read, or not for longer than the staleness limit, has no value.
type EngineMetrics struct {
	// Known says which of the fields below hold a value.
	Known MetricsField
	// Waiting is the number of requests in the engine's queue.
	Waiting float64
	// Running is the number of requests being computed.
	Running float64
	// KVUsage is the used share of the KV cache, 0 to 1.
	KVUsage float64
	// Adapter is what the engine does with the adapter that the request names; like Adapters and MaxAdapters it holds a
	// value where Known has MetricsAdapters.
	Adapter AdapterUse
	// Adapters is how many different adapters its requests use, of those that are computed and those that wait.
	Adapters int
	// MaxAdapters is how many adapters it computes with at once; 0 is unknown.
	MaxAdapters int
	// AgeMs is the time since the page was read, in ms.
	AgeMs float64
}

// Has reports whether every field in f is known.
func (m EngineMetrics) Has(f MetricsField) bool { return m.Known&f == f }

// Finite reports whether a value read or computed elsewhere can be compared at all: not NaN, not infinite, not
// negative. Anything else counts as unknown.
func Finite(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }
