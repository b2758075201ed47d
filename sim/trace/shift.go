package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Prompts makes prompts longer, or shorter, from a moment on. Those that begin alike still do, for as much longer.
type Prompts struct {
	// At is from when on.
	At time.Duration
	// Mean is how long they are on average from then on, in tokens.
	Mean int
	// Most is how long one may become, in tokens; what would be longer is cut.
	Most int
	// Rate is by what the rate of requests changes with it, so that the load need not grow as the prompts do.
	Rate float64
}

// Resized returns the trace with other prompts, and what a time of it has become.
func (t *Trace) Resized(p Prompts) (*Trace, func(time.Duration) time.Duration, error) {
	if p.At < 0 || p.Mean < 1 || p.Most <= p.Mean || p.Most > MaxPromptTokens || !(p.Rate > 0 && p.Rate <= 1e6) {
		return nil, nil, fmt.Errorf("prompts: want 0 < mean < most <= %d, a rate above 0 and no time before 0, got %+v", MaxPromptTokens, p)
	}
	var lengths []int
	for _, r := range t.Requests {
		if r.At >= p.At {
			lengths = append(lengths, r.PromptTokens)
		}
	}
	factor := factorFor(lengths, p.Mean, p.Most)
	moved := func(at time.Duration) time.Duration {
		if at < p.At {
			return at
		}
		return p.At + slowed(at-p.At, p.Rate)
	}
	next := t.changed(func(r *Request) {
		if r.At >= p.At {
			r.At = moved(r.At)
			r.resize(factor, p.Most, t.BlockTokens)
		}
	})
	if next.Span() > MaxSpan {
		return nil, nil, fmt.Errorf("prompts: rate: %v makes a span of %v longer than %s", p.Rate, t.Span(), years(MaxSpan))
	}
	return next, moved, nil
}

// factorFor is by what lengths must grow for their mean to become another, where none may be longer than most.
func factorFor(lengths []int, mean, most int) float64 {
	low, high := 0.0, float64(most)
	for range 60 {
		middle := (low + high) / 2
		sum := 0.0
		for _, n := range lengths {
			sum += min(float64(most), max(1, middle*float64(n)))
		}
		if sum < float64(mean)*float64(len(lengths)) {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// resize makes a prompt so many times longer. Each block stands for as many more, with names that follow from its own.
func (r *Request) resize(factor float64, most, blockTokens int) {
	r.PromptTokens = min(most, max(1, int(math.Round(factor*float64(r.PromptTokens)))))
	blocks := make([]uint64, (r.PromptTokens+blockTokens-1)/blockTokens)
	before, part := -1, uint64(0)
	for i := range blocks {
		from := min(int(float64(i)/factor), len(r.Blocks)-1)
		if part++; from != before {
			before, part = from, 0
		}
		blocks[i] = r.Blocks[from]
		if part > 0 {
			blocks[i] = mixed(blocks[i] + part*0x9e3779b97f4a7c15)
		}
	}
	r.Blocks = blocks
}

// mixed is a number that looks like no other (the finaliser of SplitMix64).
func mixed(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Burst makes many requests begin with the same long prefix for a while.
type Burst struct {
	// From and To are when, To not included.
	From, To time.Duration
	// Share is how many of the requests then begin so, 0 to 1.
	Share float64
	// Tokens is how long the prefix is. It comes before what the requests ask otherwise, and is rounded up to whole blocks.
	Tokens int
}

// Bursting returns the trace with a burst. random chooses the requests.
func (t *Trace) Bursting(b Burst, random *rand.Rand) (*Trace, error) {
	if b.From < 0 || b.To <= b.From || !(b.Share > 0 && b.Share <= 1) || b.Tokens < 1 || b.Tokens > MaxPromptTokens/2 {
		return nil, fmt.Errorf("burst: want times from 0 on, a share above 0 up to 1, and 1 to %d tokens, got %+v", MaxPromptTokens/2, b)
	}
	prefix := make([]uint64, (b.Tokens+t.BlockTokens-1)/t.BlockTokens)
	for i := range prefix {
		prefix[i] = mixed(uint64(b.From) + uint64(i+1)*0x9e3779b97f4a7c15)
	}
	return t.changed(func(r *Request) {
		if r.At < b.From || r.At >= b.To || random.Float64() >= b.Share || r.PromptTokens > MaxPromptTokens/2 {
			return
		}
		r.Blocks = append(prefix[:len(prefix):len(prefix)], r.Blocks...)
		r.PromptTokens += len(prefix) * t.BlockTokens
	}), nil
}
