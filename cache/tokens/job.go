package tokens

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/tokens/fields"
	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/cache/tokens/render"
	"github.com/sluice-epp/sluice/scheduling"
)

// lateFor is how much longer than a request a job goes on: an answer that comes late serves the next request.
const lateFor = 5 * time.Second

// maxOwned is the length of a body that is copied, for what goes on without its request, at most.
const maxOwned = 1 << 20

// job finds the tokens of one prompt, for one request or several at once.
type job struct {
	x      *exact
	key    memo.Key
	model  string
	call   *render.Call
	ctx    context.Context
	cancel context.CancelFunc
	random scheduling.Rand
	whole  render.Query
	parts  *parts // where the conversation can be joined
	verify bool   // the parts are for comparing; they are the job's own
	keep   bool   // the prompt may be kept in the memo
	plain  bool
	trial  bool // nobody sent the request that it was started for
	wanted bool // a request that somebody sent waits for it; guarded by the lock of x

	overdue atomic.Bool // somebody has waited for it in vain

	done   chan struct{} // closed once what follows is set
	prompt *memo.Prompt
	source string // where it comes from, or why there is none
	err    error  // the same
}

// parts are a conversation in parts.
type parts struct {
	known          *memo.Prompt
	anchor, answer render.Query
	shape          uint64
}

// result is what a job has found by now.
func (j *job) result() *memo.Prompt {
	select {
	case <-j.done:
		return j.prompt
	default:
		return nil
	}
}

// job returns the job for a request: one that is under way for the same prompt already, or a new one (starts). nil once
// the plugin is closed.
func (x *exact) job(rd *reading, r *scheduling.Request, c *scheduling.Cycle, media fields.Media, at *attempt) (j *job, starts bool) {
	if j := x.running(rd.whole, r.Trial); j != nil {
		return j, false
	}
	j = &job{
		x: x, key: rd.whole, model: r.Model, call: x.client.NewCall(), random: c.Rand(x.stream),
		keep: media != fields.MediaRemote, trial: r.Trial, wanted: !r.Trial, done: make(chan struct{}),
	}
	x.plan(j, rd, r, media)
	at.plain = j.plain
	timeout := x.params.Timeout
	if media != fields.MediaNone {
		timeout = x.params.MMTimeout
	}
	return x.start(j, timeout+lateFor)
}

// running is the job that is under way for a prompt, or nil.
func (x *exact) running(key memo.Key, trial bool) *job {
	x.mu.Lock()
	defer x.mu.Unlock()
	j := x.jobs[key]
	if j != nil && !trial {
		j.wanted = true
	}
	return j
}

// start runs a job, unless one for the same prompt is under way.
func (x *exact) start(j *job, timeout time.Duration) (running *job, starts bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if other := x.jobs[j.key]; other != nil || x.closed {
		if other != nil && j.wanted {
			other.wanted = true
		}
		j.release()
		return other, false
	}
	j.ctx, j.cancel = context.WithTimeout(x.ctx, timeout)
	x.jobs[j.key] = j
	x.all.Go(j.run)
	return j, true
}

// plan says what a job asks for.
func (x *exact) plan(j *job, rd *reading, r *scheduling.Request, media fields.Media) {
	asked := x.modelName
	if asked == "" {
		asked = r.Model
	}
	j.whole = rd.query(asked, media)
	if !x.params.prefixMemo() || !rd.listed {
		return
	}
	known, messages := rd.beginning(lookIn(x.known.memo, r))
	j.plain = (known == nil || known.Plain) && rd.plainFrom(messages)
	if known == nil || !j.plain || known.Prompts != 1 {
		return
	}
	c, ok := rd.cutBehind(messages, x.known.seed)
	if !ok || len(r.Body)-(c.dropped.End-c.dropped.Start) > maxOwned {
		return
	}
	decide := x.known.classes.Decide
	if r.Trial {
		decide = x.known.classes.Foresee
	}
	decision := decide(r.Model, c.shape)
	if decision == memo.Render {
		return
	}
	dropped, behind := fields.Edit{At: c.dropped}, fields.Edit{At: c.behind}
	j.parts = &parts{known: known, shape: c.shape, anchor: rd.query(asked, media, dropped, behind), answer: rd.query(asked, media, dropped)}
	if decision == memo.Verify {
		j.own()
	}
}

// own makes a job's parts its own, to be rendered once the request is answered; without a place for that there are none.
func (j *job) own() {
	select {
	case j.x.verifying <- struct{}{}:
	default:
		j.parts = nil
		return
	}
	j.verify = true
	for _, q := range []*render.Query{&j.parts.anchor, &j.parts.answer} {
		q.Render = [][]byte{bytes.Join(q.Render, nil)}
		if q.Tokenize != nil {
			q.Tokenize = [][]byte{bytes.Join(q.Tokenize, nil)}
		}
	}
}

// release gives back what a job holds.
func (j *job) release() {
	if j.verify {
		<-j.x.verifying
	}
}

// sample starts a job for a request that does not wait, to compare. Its body is copied.
func (x *exact) sample(r *scheduling.Request, rd *reading, c *scheduling.Cycle) *job {
	owned := *r
	owned.Body = bytes.Clone(r.Body)
	if !rd.read(&owned, x.known.seed) {
		return nil
	}
	asked := x.modelName
	if asked == "" {
		asked = r.Model
	}
	media := rd.media()
	j := &job{
		x: x, key: rd.whole, model: r.Model, call: x.client.NewCall(), random: c.Rand(x.stream),
		whole: rd.query(asked, media), keep: media != fields.MediaRemote, wanted: true, done: make(chan struct{}),
	}
	j, _ = x.start(j, lateFor)
	return j
}

// run finds the tokens, tells them, and verifies them afterwards.
func (j *job) run() {
	defer j.release()
	defer j.cancel()
	begun := time.Now()
	var answer render.Answer
	var joined bool
	var err error
	if j.parts != nil && !j.verify {
		var refused bool
		answer, refused, err = j.join(j.call)
		joined = err == nil && !refused
	}
	if !joined && err == nil {
		answer, err = j.ask(j.call, &j.whole)
	}
	j.finish(answer, joined, begun, err)
	if j.verify && err == nil {
		j.compare(answer)
	}
}

// finish tells the waiters what was found.
func (j *job) finish(a render.Answer, joined bool, begun time.Time, err error) {
	j.source, j.err = render.ReasonOf(err).String(), err
	if err == nil {
		j.prompt = &memo.Prompt{
			Tokens: a.Tokens, Features: a.Features, Count: a.Count, Prompts: a.Prompts,
			Epoch: memo.EpochOf(begun, time.Now()), Plain: j.plain && len(a.Features) == 0, Joined: joined,
		}
		switch {
		case joined:
			j.source = sourceJoined
		case a.Tokenized:
			j.source = sourceTokenize
		default:
			j.source = sourceRender
		}
	}
	j.x.mu.Lock()
	if j.prompt != nil && j.keep && j.wanted {
		j.x.known.memo.Put(j.key, j.prompt)
	}
	delete(j.x.jobs, j.key)
	j.x.mu.Unlock()
	close(j.done)
}

// ask asks a server, and another one where the first cannot be reached.
func (j *job) ask(call *render.Call, q *render.Query) (a render.Answer, err error) {
	random := j.random
	var first *render.Server
	for {
		s, none := j.x.fleet.Pick(&random, first, time.Now())
		if none != nil {
			if err == nil {
				err = none
			}
			return a, err
		}
		a, err = call.Do(j.ctx, s, q)
		if first != nil || !unreachable(err) {
			return a, err
		}
		first = s
	}
}

// unreachable reports whether another server may do better at once.
func unreachable(err error) bool {
	var f *render.Failure
	if !errors.As(err, &f) {
		return false
	}
	switch f.Reason {
	case render.ReasonConnect, render.ReasonBusy, render.ReasonBreaker, render.ReasonNoRoute, render.ReasonUnfaithful:
		return true
	}
	return f.Reason == render.ReasonStatus && f.Status >= 500
}

// join renders the parts side by side and joins them. refused says that they do not fit together.
func (j *job) join(call *render.Call) (a render.Answer, refused bool, err error) {
	var anchor, answer render.Answer
	var errAnchor, errAnswer error
	var both sync.WaitGroup
	both.Go(func() { anchor, errAnchor = j.ask(call, &j.parts.anchor) })
	answer, errAnswer = j.ask(call, &j.parts.answer)
	both.Wait()
	if err := errors.Join(errAnchor, errAnswer); err != nil {
		return a, false, err
	}
	tokens, ok := memo.Join(j.parts.known.Tokens, anchor.Tokens, answer.Tokens)
	if j.x.known.classes.Disabled(j.model) { // by now
		return a, true, nil
	}
	if !ok || len(anchor.Features)+len(answer.Features) > 0 {
		if !j.trial {
			j.x.counts.joins[joinRefused].Add(1)
			j.x.known.classes.Refused(j.model, j.parts.shape)
		}
		return a, true, nil
	}
	return render.Answer{Tokens: tokens, Count: len(tokens), Prompts: 1, Tokenized: answer.Tokenized}, false, nil
}

// compare holds what joining gives against the whole rendering.
func (j *job) compare(whole render.Answer) {
	epoch := memo.Epoch(time.Now())
	var cancel context.CancelFunc
	j.ctx, cancel = context.WithTimeout(j.x.ctx, lateFor)
	defer cancel()
	joined, refused, err := j.join(j.x.client.NewCall())
	switch {
	case refused:
	case err != nil:
		j.x.counts.joins[joinFailed].Add(1)
	case slices.Equal(joined.Tokens, whole.Tokens):
		j.x.counts.joins[joinVerified].Add(1)
		j.x.known.classes.Agreed(j.model, j.parts.shape)
	case j.prompt.Epoch != epoch || memo.EpochOf(time.Now(), time.Now()) != epoch:
		j.x.counts.joins[joinFailed].Add(1) // the date may have changed in between
	default:
		j.x.counts.joins[joinMismatch].Add(1)
		j.x.disable(j.model)
	}
}
