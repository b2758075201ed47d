package sim

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// What fits into memory: the most blocks of a medium, which take 40 bytes each, and the most tokens of a block, and of a
// prompt and its output together.
const (
	MaxBlocks      = 1 << 24
	MaxBlockTokens = 1 << 20
	MaxModelTokens = 1 << 24
)

// Params describe an engine. [DefaultParams] gives values that can be used as they are.
type Params struct {
	BlockSize        int      // tokens in a KV block
	NumBlocks        int      // KV blocks in the cache
	OffloadBlocks    int      // KV blocks in the CPU's memory, to which full blocks are copied; 0: none
	MaxModelLen      int      // tokens of prompt and output together; must fit into the cache
	MaxBatchedTokens int      // tokens computed in one step, at most
	MaxSeqs          int      // sequences in one step, at most
	MaxWaiting       int      // jobs that wait for admission, at most; see [ErrQueueFull]
	HashSeed         uint64   // seeds the root of every hash chain; hashes compare only under one seed
	Cost             StepCost // how long a step takes
}

// StepCost is the linear model of a step's duration:
//
//	Base + PrefillToken·Σn + Attention·Σ n·(p+n/2) + DecodeSeq·d + DecodeContext·Σctx + LoadToken·l
//
// with l tokens loaded from the offload tier and, per prefill chunk, n tokens computed after p tokens of context, and d decoding sequences
// of ctx tokens of context each. All fields are seconds per unit.
type StepCost struct {
	Base          float64 // per step
	PrefillToken  float64 // per prefill token
	Attention     float64 // per pair of prefill token and token it attends to
	DecodeSeq     float64 // per decoding sequence
	DecodeContext float64 // per token of context of a decoding sequence
	LoadToken     float64 // per token copied back from the offload tier; copies to it cost nothing
}

// DefaultParams models Qwen3-32B in bfloat16 on two H100 with tensor parallelism. One figure is measured: llm-d publishes a peak
// prefill of 15,928 tokens a second for it, and a cold step of 8,192 tokens takes 0.514 s here. The terms follow from the model's
// shape (32.8 billion parameters, 64 layers of 64 heads of 128, of which 8 hold KV: 262,144 bytes a token) and from what such cards
// reach of their 2 × 3.35 TB/s and 2 × 989 TFLOP/s:
//
//	Base           12 ms    65.6 GB of weights, read once a step at 5.4 TB/s, four fifths of the peak
//	PrefillToken   52.7 µs  65.6 GFLOP at 63 % of the peak; the term that is set so that the published figure comes out
//	Attention      2.1 ns   2.1 MFLOP a pair (4 · 64 · 64 · 128) at half of the peak
//	DecodeSeq      50 µs    the same matrices as for a prefill token, about
//	DecodeContext  48.5 ns  262,144 bytes at 5.4 TB/s
//	LoadToken      6 µs     262,144 bytes at 44 GB/s, from the CPU's memory
//
// The cache of 307,200 tokens, 80.5 GB, is what two cards of 80 GB hold beside the weights. BlockSize, MaxBatchedTokens and MaxSeqs
// are as vLLM's scheduler is usually run on such cards. docs/engine-model.md has what the model leaves out, and how it was checked;
// package fit finds the costs of another engine. There is no offload tier.
func DefaultParams() Params {
	return Params{
		BlockSize:        16,
		NumBlocks:        19_200,
		MaxModelLen:      32_768,
		MaxBatchedTokens: 8_192,
		MaxSeqs:          256,
		MaxWaiting:       8_192,
		Cost: StepCost{
			Base:          12e-3,
			PrefillToken:  52.7e-6,
			Attention:     2.1e-9,
			DecodeSeq:     50e-6,
			DecodeContext: 48.5e-9,
			LoadToken:     6e-6,
		},
	}
}

// Validate reports every value that the model cannot run with, joined into one error.
func (p Params) Validate() error {
	var errs []error
	positive := func(name string, v int) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be > 0, got %d", name, v))
		}
	}
	positive("blockSize", p.BlockSize)
	positive("numBlocks", p.NumBlocks)
	positive("maxModelLen", p.MaxModelLen)
	positive("maxBatchedTokens", p.MaxBatchedTokens)
	positive("maxSeqs", p.MaxSeqs)
	positive("maxWaiting", p.MaxWaiting)
	if p.OffloadBlocks < 0 {
		errs = append(errs, fmt.Errorf("offloadBlocks: must be >= 0, got %d", p.OffloadBlocks))
	}
	atMost := func(name string, v, most int) {
		if v > most {
			errs = append(errs, fmt.Errorf("%s: must be <= %d, got %d", name, most, v))
		}
	}
	atMost("blockSize", p.BlockSize, MaxBlockTokens)
	atMost("numBlocks", p.NumBlocks, MaxBlocks)
	atMost("offloadBlocks", p.OffloadBlocks, MaxBlocks)
	atMost("maxModelLen", p.MaxModelLen, MaxModelTokens)
	if p.MaxSeqs > p.MaxBatchedTokens {
		errs = append(errs, fmt.Errorf("maxSeqs: must be <= maxBatchedTokens %d, since each decode takes one token, got %d",
			p.MaxBatchedTokens, p.MaxSeqs))
	}
	if p.BlockSize > 0 && p.MaxModelLen > 0 && p.MaxModelLen <= MaxModelTokens && blocksFor(p.MaxModelLen, p.BlockSize) > p.NumBlocks {
		errs = append(errs, fmt.Errorf("maxModelLen: %d tokens need %d blocks of %d, numBlocks is %d",
			p.MaxModelLen, blocksFor(p.MaxModelLen, p.BlockSize), p.BlockSize, p.NumBlocks))
	}
	for _, c := range []struct {
		name string
		v    float64
	}{
		{"base", p.Cost.Base},
		{"prefillToken", p.Cost.PrefillToken},
		{"attention", p.Cost.Attention},
		{"decodeSeq", p.Cost.DecodeSeq},
		{"decodeContext", p.Cost.DecodeContext},
		{"loadToken", p.Cost.LoadToken},
	} {
		if !(c.v >= 0) || math.IsInf(c.v, 1) {
			errs = append(errs, fmt.Errorf("cost.%s: must be a finite number of seconds >= 0, got %v", c.name, c.v))
		}
	}
	return errors.Join(errs...)
}

// load is what a step computes, in the terms of [StepCost].
type load struct {
	prefill   int     // tokens
	attention float64 // token pairs
	decodes   int     // sequences
	context   int     // tokens
	loaded    int     // tokens
}

func (l *load) addPrefill(past, n int) {
	l.prefill += n
	l.attention += float64(n) * (float64(past) + float64(n)/2)
}

func (l *load) addDecode(context int) {
	l.decodes++
	l.context += context
}

func (c StepCost) duration(l load) time.Duration {
	s := c.Base + c.PrefillToken*float64(l.prefill) + c.Attention*l.attention +
		c.DecodeSeq*float64(l.decodes) + c.DecodeContext*float64(l.context) + c.LoadToken*float64(l.loaded)
	return time.Duration(math.Round(s * float64(time.Second)))
}

// blocksFor is the number of blocks that hold the given tokens, the last one possibly partial.
func blocksFor(tokens, blockSize int) int {
	n := tokens / blockSize
	if tokens%blockSize > 0 {
		n++
	}
	return n
}
