package blockhash

import "math/bits"

// Layout says where a prompt is cut. A prompt consists of blocks of equal size; each hash of a chain ends a run of one or
// more whole blocks. Near the head every run is one block; further in, runs grow with their distance from the head where
// that is needed to reach far with few hashes. Borders depend on the position alone, so a prompt and its continuation
// share them.
type Layout struct {
	blockBytes int
	maxRuns    int
	maxBlocks  int
	fineShift  uint // runs per doubling, as a power of two; see Width
	uniform    bool
}

// BytesPerToken is the number of bytes of text that stand for one token where only text is known; a block of n tokens is
// n × BytesPerToken bytes, the size of n token ids too.
const BytesPerToken = 4

// NewLayout returns the layout of blocks of blockTokens tokens (or 4 × as many bytes of text) with at most maxRuns
// hashes, reaching at most maxTokens tokens into the prompt. All three must be positive. Runs are single blocks as long
// as maxRuns of them reach maxTokens; otherwise the first 2g runs are, and then each g runs reach twice as far, with the
// largest power of two g for which maxRuns are enough. A run is then never longer than 1/g of what lies before it.
func NewLayout(blockTokens, maxRuns, maxTokens int) Layout {
	l := Layout{
		blockBytes: blockTokens * BytesPerToken,
		maxRuns:    max(1, maxRuns),
		maxBlocks:  max(1, maxTokens/blockTokens),
	}
	if l.maxBlocks <= l.maxRuns {
		l.uniform = true
		return l
	}
	for l.runsFor(l.fineShift+1) <= l.maxRuns {
		l.fineShift++
	}
	return l
}

// runsFor is the number of runs that reach maxBlocks with 2^shift runs a doubling.
func (l Layout) runsFor(shift uint) int {
	first := 2 << shift
	if first >= l.maxBlocks {
		return l.maxBlocks
	}
	doublings := bits.Len(uint((l.maxBlocks - 1) >> (shift + 1)))
	return first + doublings<<shift
}

// Width is the number of blocks in run i, counted from 0.
func (l Layout) Width(i int) int {
	if l.uniform || i < 2<<l.fineShift {
		return 1
	}
	return 1 << (i>>l.fineShift - 1)
}

// WidthAfter is the number of blocks in the run that begins after so many blocks, or that they end in.
func (l Layout) WidthAfter(blocks int) int {
	if l.uniform || blocks < 2<<l.fineShift {
		return 1
	}
	return 1 << bits.Len(uint(blocks)>>(l.fineShift+1))
}

// Blocks is the number of blocks in the first n runs.
func (l Layout) Blocks(n int) int {
	if l.uniform || n <= 2<<l.fineShift {
		return n
	}
	doublings := uint(n>>l.fineShift - 2)
	rest := n & (1<<l.fineShift - 1)
	return (2<<l.fineShift)<<doublings + rest<<(doublings+1)
}

// MaxRuns is the largest number of hashes that a prompt can have.
func (l Layout) MaxRuns() int { return min(l.maxRuns, l.maxBlocks) }

// BlockBytes is the size of a block of text in bytes.
func (l Layout) BlockBytes() int { return l.blockBytes }

// BlockTokens is the size of a block in tokens.
func (l Layout) BlockTokens() int { return l.blockBytes / BytesPerToken }

// fits reports whether run i may follow blocks that came before it.
func (l Layout) fits(i, before int) bool { return i < l.maxRuns && before+l.Width(i) <= l.maxBlocks }

// Full reports whether no run can follow the first n: the layout ends there.
func (l Layout) Full(n int) bool { return !l.fits(n, l.Blocks(n)) }
