package latency

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/load/steps"
)

// work is what one endpoint has before it, as far as this process has sent it. It is guarded by knowledge.mu, but for the step
// clock.
type work struct {
	queue    []prompt      // requests before their first token, in the order of their picks
	tokens   float64       // uncached tokens of the queue
	pairs    float64       // of the queue; see prompt.pairs
	decoding int           // requests after it
	context  float64       // their prompts' tokens
	held     float64       // the queue's prompts' tokens, cached ones too
	unseen   int           // how many of the queue have a first token that will not be seen
	since    time.Duration // the engine is busy with the first of the queue
	passed   time.Duration // what those should have taken that were settled behind that one
	answer   float64       // tokens of an answer, on average
	length   length
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
	// unseen says that its first token will not be seen.
	unseen bool
}

func pairsOf(input, uncached float64) float64 {
	return uncached * (max(0, input-uncached) + uncached/2)
}

// begin adds a request.
func (w *work) begin(now time.Duration, p prompt) {
	w.flow.add(now, p.tokens)
	if len(w.queue) == 0 {
		w.busy(now)
		if w.decoding > 0 { // it waits for the end of the step
			w.busy(now + time.Duration(w.steps.left(now)*float64(time.Millisecond)))
		}
	}
	w.queue = append(w.queue, p)
	w.tokens += p.tokens
	w.pairs += p.pairs
	w.held += p.input
	if p.unseen {
		w.unseen++
	}
}

// first notes a request's first token: from then on the engine is busy with the next one.
func (w *work) first(now time.Duration, id uint64) {
	if p, ok := w.remove(now, id, true); ok {
		w.decode(p.input, 1)
	}
}

func (w *work) decode(input float64, requests int) {
	w.decoding += requests
	w.context += input * float64(requests)
	if w.decoding == 0 {
		w.context = 0 // what rounding left
	}
}

// end takes a request out, whose prompt has so many tokens.
func (w *work) end(now time.Duration, id uint64, input float64) {
	if _, ok := w.remove(now, id, false); !ok {
		w.decode(input, -1)
	}
}

// move takes a request to another endpoint.
func (w *work) move(to *work, now time.Duration, id uint64, input float64) {
	if p, ok := w.remove(now, id, false); ok {
		to.begin(now, p)
		return
	}
	w.decode(input, -1)
	to.decode(input, 1)
}

// remove takes a request out of the queue, if it is there.
func (w *work) remove(now time.Duration, id uint64, served bool) (p prompt, ok bool) {
	i := slices.IndexFunc(w.queue, func(p prompt) bool { return p.id == id })
	if i < 0 {
		return p, false
	}
	if served || i == 0 {
		w.busy(now)
	}
	return w.take(i), true
}

// take takes the request at a place out of the queue.
func (w *work) take(i int) prompt {
	p := w.queue[i]
	w.queue = slices.Delete(w.queue, i, i+1)
	w.leave(p)
	w.round()
	return p
}

// leave takes what has left the queue out of its sums.
func (w *work) leave(p prompt) {
	w.tokens -= p.tokens
	w.pairs -= p.pairs
	w.held -= p.input
	if p.unseen {
		w.unseen--
	}
}

func (w *work) round() {
	if len(w.queue) == 0 {
		w.tokens, w.pairs, w.held = 0, 0, 0 // what rounding left
	}
}

// settle takes those out of the queue whose first token will not be seen, and should have come. Behind others whose own is overdue
// (the engine may have lost one of them) they get twice the time. After a pause that may be thousands at once: each is moved at most once.
func (w *work) settle(now time.Duration, msPerToken float64) {
	took := time.Duration(0)
	all, i, left := w.queue, 0, w.queue[:0]
	for ; w.unseen > 0 && i < len(all); i++ {
		p := all[i]
		own := time.Duration(p.tokens * msPerToken * float64(time.Millisecond))
		due := took + own
		if len(left) > 0 {
			due = 2 * (w.passed + due)
		}
		if now-w.since < due {
			break
		}
		if !p.unseen {
			took += own
			left = append(left, p)
			continue
		}
		w.leave(p)
		w.decode(p.input, 1)
		if len(left) == 0 { // the engine went on to the next one then
			w.busy(w.since + own)
		} else {
			w.passed += own
		}
	}
	if n := len(left); n < i {
		w.queue = slices.Delete(all, n, i)
		w.round()
	}
}

// busy notes that the engine has been busy with the first of the queue since then.
func (w *work) busy(since time.Duration) {
	if since > w.since {
		w.since, w.passed = since, 0
	}
}

// ahead is what of the queue is still to be computed, given how many ms an endpoint takes for a token: how long it has been
// busy with the first one counts as done, but never for more than that one. overdue is by how many ms that took longer.
func (w *work) ahead(now time.Duration, msPerToken float64) (tokens, pairs, overdue float64) {
	if len(w.queue) == 0 {
		return 0, 0, 0
	}
	busy := max(0, ms(now-w.since))
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
	gap  atomic.Uint64 // bits of the median time between two steps, in ms
}

const (
	// stillSteps is what a pause may last at most between two steps of an engine that is at work.
	stillSteps = time.Second
	// stepShare is by what part of it the median moves at a step. Steps that only decode are by far the most.
	stepShare = 1. / 32
)

// tick takes a piece in.
func (s *stepClock) tick(now time.Duration) {
	last := s.last.Load()
	d := now - time.Duration(last)
	if last != 0 && d < steps.Same {
		return
	}
	if !s.last.CompareAndSwap(last, int64(now)) || last == 0 || d > stillSteps {
		return
	}
	usual := math.Float64frombits(s.gap.Load())
	switch gap := ms(d); {
	case usual == 0:
		usual = gap
	case gap > usual:
		usual *= 1 + stepShare
	case gap < usual:
		usual *= 1 - stepShare
	}
	s.gap.Store(math.Float64bits(usual))
}

// left is how much of the current step is still to come, in ms, where the endpoint only decodes.
func (s *stepClock) left(now time.Duration) float64 {
	gap := math.Float64frombits(s.gap.Load())
	last := s.last.Load()
	if last == 0 {
		return gap / 2
	}
	passed := ms(now - time.Duration(last))
	return max(gap/8, gap-max(0, passed)) // late: any moment
}

// contextTokens is what the requests that decode attend to: their prompts and, on average, half of their answers.
func (w *work) contextTokens() float64 { return w.context + float64(w.decoding)*w.answer/2 }

// answered takes the length of an answer in.
func (w *work) answered(tokens float64) {
	if w.answer == 0 {
		w.answer = tokens
	}
	w.answer += (tokens - w.answer) * answerShare
}

// length is how long answers get that nothing cuts off, learnt from all: those that reach their limit say only that they would have been
// longer.
type length struct {
	tokens float64 // of answers, faded
	ended  float64 // answers that ended by themselves, faded
}

const (
	// usualAnswer is how many tokens an answer has where nothing is known of any; it counts as much as one that was seen.
	usualAnswer = 128
	// lengthFade is what an answer's weight falls to with one more.
	lengthFade = 1 - 1./64
)

// add takes an answer in; limit is what it was allowed to have, 0 for any number.
func (l *length) add(tokens, limit float64) {
	l.tokens, l.ended = l.tokens*lengthFade+tokens, l.ended*lengthFade
	if limit == 0 || tokens < limit {
		l.ended++
	}
}

// expected is how many tokens an answer with a limit has on average, where lengths are exponentially distributed:
//
//	μ · (1 − exp(−limit/μ))    μ: tokens of all answers by the number of those that ended by themselves
//
// which is the estimate of greatest likelihood for samples of which some are cut off.
func (l *length) expected(limit float64) float64 {
	mean := (l.tokens + usualAnswer) / (l.ended + 1)
	if limit == 0 {
		return mean
	}
	return -mean * math.Expm1(-limit/mean)
}

// answerShare is how much of the mean length an answer makes.
const answerShare = 1. / 32

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
