package latency

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// work is what one endpoint has before it, as far as this process has sent it. It is guarded by knowledge.mu, but for the step
// clock.
type work struct {
	queue    []prompt // requests before their first token, in the order of their picks
	tokens   float64  // uncached tokens of the queue
	pairs    float64  // of the queue; see prompt.pairs
	decoding int      // requests after it
	context  float64  // their prompts' tokens
	held     float64  // the queue's prompts' tokens, cached ones too
	since    time.Duration
	flow     flow
	steps    stepClock
}

// prompt is a request before its first token.
type prompt struct {
	id     uint64
	input  float64 // tokens
	tokens float64 // uncached
	// pairs are those of uncached tokens and tokens that they attend to: u·(c + u/2) after c cached ones.
	pairs float64
}

func pairsOf(input, uncached float64) float64 {
	return uncached * (max(0, input-uncached) + uncached/2)
}

// begin adds a request.
func (w *work) begin(now time.Duration, p prompt) {
	if len(w.queue) == 0 {
		w.since = now
	}
	w.queue = append(w.queue, p)
	w.tokens += p.tokens
	w.pairs += p.pairs
	w.held += p.input
	w.flow.add(now, p.tokens)
}

// leave takes a request out of the queue. Where its first token came the engine is busy with the next one from then on.
func (w *work) leave(now time.Duration, id uint64, first bool) {
	i := slices.IndexFunc(w.queue, func(p prompt) bool { return p.id == id })
	if i < 0 {
		return
	}
	w.tokens -= w.queue[i].tokens
	w.pairs -= w.queue[i].pairs
	w.held -= w.queue[i].input
	w.queue = slices.Delete(w.queue, i, i+1)
	if first || i == 0 {
		w.since = max(w.since, now)
	}
	if len(w.queue) == 0 {
		w.tokens, w.pairs, w.held = 0, 0, 0 // what rounding left
	}
}

// ahead is what of the queue is still to be computed, given how many ms an endpoint takes for a token: how long it has been
// busy with the first one counts as done, but never for more than that one. overdue is by how many ms that took longer.
func (w *work) ahead(now time.Duration, msPerToken float64) (tokens, pairs, overdue float64) {
	if len(w.queue) == 0 {
		return 0, 0, 0
	}
	busy := ms(now - w.since)
	first := w.queue[0].tokens
	done := min(first, busy/msPerToken)
	tokens = max(0, w.tokens-done)
	if w.tokens > 0 {
		pairs = max(0, w.pairs) * tokens / w.tokens
	}
	return tokens, pairs, max(0, busy-first*msPerToken)
}

// stepClock follows an engine's steps by the pieces of its answers, which come as a step ends.
type stepClock struct {
	last atomic.Int64  // ns; 0: none was seen
	gap  atomic.Uint64 // bits of the mean time between two steps, in ms
}

const (
	// sameStep is how far apart pieces of one step's answers may come.
	sameStep = time.Millisecond
	// stillSteps is what a pause may last at most between two steps of an engine that is at work.
	stillSteps = time.Second
	// stepShare is how much of the mean a step makes.
	stepShare = 1. / 8
)

// tick takes a piece in.
func (s *stepClock) tick(now time.Duration) {
	last := s.last.Load()
	d := now - time.Duration(last)
	if last != 0 && d < sameStep {
		return
	}
	if !s.last.CompareAndSwap(last, int64(now)) || last == 0 || d > stillSteps {
		return
	}
	mean := math.Float64frombits(s.gap.Load())
	if mean == 0 {
		mean = ms(d)
	}
	s.gap.Store(math.Float64bits(mean + (ms(d)-mean)*stepShare))
}

// left is how much of the current step is still to come, in ms, where the endpoint only decodes.
func (s *stepClock) left(now time.Duration) float64 {
	gap := math.Float64frombits(s.gap.Load())
	last := s.last.Load()
	if last == 0 {
		return gap / 2
	}
	passed := ms(now - time.Duration(last))
	if passed >= gap { // late: any moment
		return gap / 8
	}
	return gap - max(0, passed)
}

// flow is how many tokens come in a ms, over some seconds.
type flow struct {
	at    time.Duration
	perMs float64
}

// flowWindowMs is about over how many ms the flow is taken.
const flowWindowMs = 10_000

func (f *flow) now(now time.Duration) float64 {
	return f.perMs * flowWindowMs / (flowWindowMs + max(0, ms(now-f.at)))
}

func (f *flow) add(now time.Duration, tokens float64) {
	f.perMs, f.at = f.now(now)+tokens/flowWindowMs, max(f.at, now)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
