package fit

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-epp/sluice/sim"
)

// Sample is a request that was measured.
type Sample struct {
	// PromptTokens is its prompt's length, of which CachedTokens came out of the prefix cache.
	PromptTokens, CachedTokens int
	// OutputTokens is its answer's length; 0 where it is not known.
	OutputTokens int
	// TTFT is the time to its first token, TPOT that to each further one, both in seconds; 0 where it was not measured.
	TTFT, TPOT float64
	// Decoding is how many other sequences the engine decoded meanwhile, and ContextTokens their context in tokens together when
	// the request came.
	Decoding, ContextTokens int
}

// Validate reports what cannot be.
func (s *Sample) Validate() error {
	time := func(v float64) bool { return v >= 0 && v <= 1e5 }
	switch {
	case s.PromptTokens < 1 || s.PromptTokens > sim.MaxModelTokens:
		return fmt.Errorf("prompt_tokens: must be from 1 to %d, got %d", sim.MaxModelTokens, s.PromptTokens)
	case s.CachedTokens < 0 || s.CachedTokens >= s.PromptTokens:
		return fmt.Errorf("cached_tokens: must be from 0 to below prompt_tokens %d, got %d", s.PromptTokens, s.CachedTokens)
	case s.OutputTokens < 0 || s.OutputTokens > sim.MaxModelTokens:
		return fmt.Errorf("output_tokens: must be from 0 to %d, got %d", sim.MaxModelTokens, s.OutputTokens)
	case s.Decoding < 0 || s.Decoding > 1<<20:
		return fmt.Errorf("decoding: must be from 0 to %d, got %d", 1<<20, s.Decoding)
	case s.ContextTokens < 0 || s.ContextTokens > 1<<40:
		return fmt.Errorf("context_tokens: must be >= 0, got %d", s.ContextTokens)
	case !time(s.TTFT) || !time(s.TPOT) || s.TTFT+s.TPOT == 0:
		return fmt.Errorf("ttft_ms, tpot_ms: must be times above 0, got %v and %v s", s.TTFT, s.TPOT)
	}
	return nil
}

// Options say how to fit.
type Options struct {
	// Budget is how many tokens the engine computes in one step, at most: vLLM's --max-num-batched-tokens.
	Budget int
	// Default are the costs that are kept where the samples do not tell them.
	Default sim.StepCost
	// Resamples is how many times the samples are drawn anew for the intervals; Seed draws them.
	Resamples int
	Seed      uint64
}

// Params are the costs in their order. They are those of [sim.StepCost] without LoadToken, which no sample tells.
var Params = []string{"base", "prefillToken", "attention", "decodeSeq", "decodeContext"}

const count = 5

func values(c sim.StepCost) [count]float64 {
	return [count]float64{c.Base, c.PrefillToken, c.Attention, c.DecodeSeq, c.DecodeContext}
}

// Estimate is what the samples say of one cost, in seconds per unit.
type Estimate struct {
	Name string
	// Value is the fitted cost, and Low and High the interval that holds the true one with a confidence of 95 %. Where it is not
	// identified, all are the default.
	Value, Low, High float64
	Identified       bool
	// Why says why it is not identified.
	Why string
}

// Result is a fit.
type Result struct {
	// Cost are the fitted costs, the default's where nothing was found.
	Cost sim.StepCost
	// Estimates are what Cost is made of, in the order of Params.
	Estimates []Estimate
	// TTFTs and TPOTs are the numbers of measured times; Outliers how many of them all had no say, having weight below 0.1.
	TTFTs, TPOTs, Outliers int
	// R2 is the share of the variance of TTFT that the fit explains, and MAPE the mean error relative to the measured times,
	// both without the outliers.
	R2, MAPE float64
	// Peak is the throughput of a cold prefill of a full step, in tokens per second.
	Peak float64
	// Points are the measured times in the order of the samples, TTFTs first.
	Points []Point
}

// Point is a measured time and what the fit says of it, in seconds.
type Point struct {
	Measured, Fitted float64
	TPOT, Outlier    bool
}

// MinSamples is how many measured times a fit needs.
const MinSamples = 8

// row is one measured time, divided by itself: errors are relative.
type row struct {
	x      [count]float64
	y      float64 // seconds
	weight float64
	tpot   bool
}

// Fit fits samples. It fails where there are too few.
func Fit(samples []Sample, o Options) (*Result, error) {
	if o.Budget < 1 || o.Resamples < 0 {
		return nil, fmt.Errorf("budget: must be > 0, got %d", o.Budget)
	}
	rows := rowsOf(samples, o.Budget)
	if len(rows) < MinSamples {
		return nil, fmt.Errorf("too few measured times: %d, and a fit needs %d", len(rows), MinSamples)
	}
	f := &fit{rows: rows, options: o, defaults: values(o.Default)}
	for i := range f.free {
		f.free[i] = true
	}
	f.run()
	if !slices.Contains(f.free[:], true) {
		return nil, errors.New("the samples tell none of the costs: measure prompts of many lengths, one at a time")
	}
	return f.result(), nil
}

func rowsOf(samples []Sample, budget int) []row {
	var rows []row
	for _, s := range samples {
		if s.TTFT > 0 {
			p, u, d := float64(s.PromptTokens), s.PromptTokens-s.CachedTokens, float64(s.Decoding)
			steps := math.Ceil(float64(u) / float64(max(1, budget-s.Decoding)))
			spent := steps
			if s.Decoding > 0 {
				spent += 0.5
			}
			c := float64(s.CachedTokens)
			rows = append(rows, row{x: [count]float64{spent, float64(u), (p*p - c*c) / 2, spent * d, spent * float64(s.ContextTokens)}, y: s.TTFT})
		}
	}
	for _, s := range samples {
		if s.TPOT > 0 {
			all := float64(s.Decoding) + 1
			context := float64(s.ContextTokens+s.PromptTokens) + all*float64(s.OutputTokens)/2
			rows = append(rows, row{x: [count]float64{1, 0, 0, all, context}, y: s.TPOT, tpot: true})
		}
	}
	for i := range rows {
		rows[i].weight = 1
		for j := range rows[i].x {
			rows[i].x[j] /= rows[i].y
		}
	}
	return rows
}
