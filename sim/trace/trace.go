// Package trace reads traces of requests to LLM engines, and makes synthetic ones: when requests came, how long their prompts
// and answers were, and which prompts begin alike. It holds no text: prompts are made of blocks with numbers for names.
package trace

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The bounds of a trace.
const (
	// MaxRequests is how many requests a trace may have.
	MaxRequests = 10_000_000
	// MaxPromptTokens is how long a prompt, and an answer, may be.
	MaxPromptTokens = 1 << 24
	// MaxSpan is how long after the first request the last one may come: 10 years.
	MaxSpan = 10 * 365 * 24 * time.Hour
)

// Request is one request of a trace.
type Request struct {
	// At is when it came, since the beginning of the trace.
	At time.Duration
	// Blocks are the names of its prompt's blocks of Trace.BlockTokens tokens each; the last one may be partial. Two prompts
	// that begin with the same names begin with the same text.
	Blocks []uint64
	// PromptTokens is the length of its prompt, and OutputTokens that of its answer, in tokens. Neither is 0.
	PromptTokens, OutputTokens int
	// Session names the conversation or user that it belongs to; 0 where the trace does not tell.
	Session uint64
}

// Trace is a sequence of requests, in the order in which they came.
type Trace struct {
	// Name says where it comes from.
	Name string
	// BlockTokens is the size of a block in tokens.
	BlockTokens int
	// Notes say what whoever simulates it should know: what it does not tell of its requests.
	Notes []string
	// Endpoints is how many endpoints served the requests; 0: that is not known.
	Endpoints int
	// Requests may be shared with other traces; nobody changes them.
	Requests []Request
}

// Validate reports the first request that cannot be.
func (t *Trace) Validate() error {
	if t.BlockTokens < 1 || t.BlockTokens > MaxPromptTokens {
		return fmt.Errorf("trace %s: blocks of %d tokens", t.Name, t.BlockTokens)
	}
	if len(t.Requests) == 0 {
		return fmt.Errorf("trace %s: has no requests", t.Name)
	}
	before := time.Duration(0)
	for i, r := range t.Requests {
		if err := r.validate(t.BlockTokens, before); err != nil {
			return fmt.Errorf("trace %s: request %d: %w", t.Name, i+1, err)
		}
		before = r.At
	}
	return nil
}

// valid is the trace, if it is one.
func (t *Trace) valid() (*Trace, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return t, nil
}

func (r *Request) validate(blockTokens int, before time.Duration) error {
	switch blocks := (r.PromptTokens + blockTokens - 1) / blockTokens; {
	case r.At > MaxSpan:
		return fmt.Errorf("came %s after the beginning; want %s at most", years(r.At), years(MaxSpan))
	case r.At < before:
		return fmt.Errorf("came at %v, before the one before it at %v", r.At, before)
	case r.PromptTokens < 1 || r.PromptTokens > MaxPromptTokens:
		return fmt.Errorf("a prompt of %d tokens; want 1 to %d", r.PromptTokens, MaxPromptTokens)
	case r.OutputTokens < 1 || r.OutputTokens > MaxPromptTokens:
		return fmt.Errorf("an answer of %d tokens; want 1 to %d", r.OutputTokens, MaxPromptTokens)
	case len(r.Blocks) != blocks:
		return fmt.Errorf("%d blocks of %d tokens for a prompt of %d tokens; want %d", len(r.Blocks), blockTokens, r.PromptTokens, blocks)
	}
	return nil
}

// Span is the time from the beginning to the last request.
func (t *Trace) Span() time.Duration {
	if len(t.Requests) == 0 {
		return 0
	}
	return t.Requests[len(t.Requests)-1].At
}

// years writes a long time.
func years(d time.Duration) string { return fmt.Sprintf("%.3g years", d.Hours()/24/365) }

// slowed is a time divided by a rate. One above MaxSpan is no more than just above it.
func slowed(d time.Duration, rate float64) time.Duration {
	return time.Duration(min(float64(d)/rate, float64(MaxSpan+time.Second)))
}

// Faster returns the trace with all times divided by speed, which must be above 0 and leave them within MaxSpan.
func (t *Trace) Faster(speed float64) (*Trace, error) {
	if !(speed > 0) {
		return nil, fmt.Errorf("speed: must be > 0, got %v", speed)
	}
	next := t.changed(func(r *Request) { r.At = slowed(r.At, speed) })
	if next.Span() > MaxSpan {
		return nil, fmt.Errorf("speed: %v makes a span of %v longer than %s", speed, t.Span(), years(MaxSpan))
	}
	return next, nil
}

// Jittered returns the trace with every request later by a time drawn evenly from [0, width): traces whose times are rounded
// have bursts that never were.
func (t *Trace) Jittered(width time.Duration, random *rand.Rand) *Trace {
	if width <= 0 {
		return t
	}
	next := t.changed(func(r *Request) { r.At += time.Duration(random.Int64N(int64(width))) })
	next.sort()
	return next
}

// Between returns the requests that came from the share from to before the share to of the span, 0 to 1, with times since the
// first of them.
func (t *Trace) Between(from, to float64) (*Trace, error) {
	if !(from >= 0 && from < to && to <= 1) {
		return nil, fmt.Errorf("span: want 0 <= from < to <= 1, got %v and %v", from, to)
	}
	begin, end := time.Duration(from*float64(t.Span())), time.Duration(to*float64(t.Span()))
	cut := &Trace{Name: t.Name, BlockTokens: t.BlockTokens}
	for _, r := range t.Requests {
		if r.At >= begin && (r.At < end || to == 1) {
			cut.Requests = append(cut.Requests, r)
		}
	}
	if len(cut.Requests) == 0 {
		return nil, errors.New("span: no request came then")
	}
	first := cut.Requests[0].At
	return cut.changed(func(r *Request) { r.At -= first }), nil
}

// changed is a copy of the trace with changed requests.
func (t *Trace) changed(change func(*Request)) *Trace {
	next := &Trace{Name: t.Name, BlockTokens: t.BlockTokens, Requests: slices.Clone(t.Requests)}
	for i := range next.Requests {
		change(&next.Requests[i])
	}
	return next
}

func (t *Trace) sort() {
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
}

// AppendTokens appends a prompt's tokens. They follow from its blocks' names: a block's tokens are the same wherever it
// stands, and two blocks differ within the first two tokens. Beyond those they are all 0: nobody reads them.
func (t *Trace) AppendTokens(tokens []uint32, r *Request) []uint32 {
	from := len(tokens)
	tokens = slices.Grow(tokens, r.PromptTokens)[:from+r.PromptTokens]
	prompt := tokens[from:]
	clear(prompt)
	for i, name := range r.Blocks {
		block := prompt[min(i*t.BlockTokens, len(prompt)):]
		block = block[:min(t.BlockTokens, len(block))]
		for j := range min(2, len(block)) {
			block[j] = uint32(name >> (32 * j))
		}
	}
	return tokens
}
