package ledger

import (
	"math"
	"math/bits"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxTokens is where every token count saturates. It is far above any prompt, and low enough for the sum of all that
// can be in flight to stay within 64 bits.
const maxTokens = 1 << 40

// fallbackBytesPerToken turns prompt bytes into tokens where not even the token producer has an estimate.
const fallbackBytesPerToken = 4

// Uncached is the number of this request's input tokens that an endpoint has still to compute:
//
//	max(0, TotalBlocks − CachedBlockCount) × BlockSizeTokens + max(0, inputTokens − TotalBlocks × BlockSizeTokens)
//
// It counts the literal blocks, not the tier-weighted ones: a block in a slower tier costs no prefill. The second term
// is what was not looked up: the unfinished last block, a tail beyond the index's reach, the other prompts of a batch.
// Where the blocks say more than the estimate inputTokens, the blocks win. Without info, or with info that cannot be
// (block size ≤ 0, negative counts), nothing is taken to be cached. The result is never negative; it and
// inputTokens saturate at 2⁴⁰.
func Uncached(info *scheduling.PrefixCacheMatchInfo, inputTokens int64) int64 {
	inputTokens = min(max(0, inputTokens), maxTokens)
	if !usable(info) {
		return inputTokens
	}
	missing := times(max(0, info.TotalBlocks-info.CachedBlockCount), info.BlockSizeTokens)
	beyond := max(0, inputTokens-times(info.TotalBlocks, info.BlockSizeTokens))
	return min(missing+beyond, maxTokens)
}

// usable reports whether match info says anything.
func usable(info *scheduling.PrefixCacheMatchInfo) bool {
	return info != nil && info.Valid() && info.TotalBlocks >= 0 && info.CachedBlockCount >= 0
}

// times is a × b for non-negative numbers, saturating at maxTokens.
func times[T int | int64](a, b T) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > maxTokens {
		return maxTokens
	}
	return int64(lo)
}

// inputTokens is the length of the request's input over all its prompts, in tokens. known is false where no producer
// said it and it is a guess from the prompt's bytes: a prompt never counts as nothing.
func (p *Plugin) inputTokens(c *scheduling.Cycle) (tokens int64, known bool) {
	if prompt, ok := p.prompt.In(c).Get(); ok && prompt.Count > 0 {
		return int64(prompt.Count), true
	}
	r := c.Request
	guess := int64(r.PromptBytes+fallbackBytesPerToken-1) / fallbackBytesPerToken
	return int64(r.TokenCount) + guess, guess == 0
}

// estimateOutput is the number of tokens that the request is expected to generate over all its choices:
// min(round(input × ratio), the client's limit, the configured bound) × choices.
func (p Parameters) estimateOutput(r *scheduling.Request, inputTokens int64) int64 {
	if r.Operation == scheduling.OperationEmbeddings {
		return 0
	}
	perChoice := int64(math.Round(min(float64(max(0, inputTokens))*p.OutputRatio, maxTokens)))
	if r.MaxOutputTokens > 0 {
		perChoice = min(perChoice, int64(r.MaxOutputTokens))
	}
	if p.MaxEstimatedOutputTokens > 0 {
		perChoice = min(perChoice, p.MaxEstimatedOutputTokens)
	}
	return times(perChoice, int64(max(1, r.Choices)))
}
