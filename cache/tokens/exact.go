package tokens

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/tokens/fields"
	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/cache/tokens/render"
	"github.com/sluice-epp/sluice/scheduling"
)

// knowledge is what is known of prompts and models; it outlives reloads.
type knowledge struct {
	seed    uint64 // of the memo's keys
	memo    *memo.Store
	classes *memo.Classes
	trust   *trust
}

// exact counts by an engine.
type exact struct {
	params    *VLLM
	modelName string
	stream    uint64
	known     *knowledge
	counts    *counts
	logger    *slog.Logger
	client    *render.Client
	fleet     *render.Fleet
	version   atomic.Uint64 // of the snapshot that the fleet is made of
	readings  sync.Pool
	verifying chan struct{} // holds a place for each verification under way

	ctx    context.Context // of every call
	cancel context.CancelFunc
	mu     sync.Mutex // guards what follows
	closed bool
	jobs   map[memo.Key]*job // under way
	all    sync.WaitGroup
}

// maxVerifying is the number of verifications under way at most; what is beyond is not verified.
const maxVerifying = 4

func newExact(p *Parameters, o *Options, b *scheduling.Builder, previous *Producer, observe func(string, time.Duration)) *exact {
	x := &exact{
		params: p.VLLM, modelName: p.ModelName, stream: b.Stream(), logger: o.Logger,
		fleet: render.NewFleet(), verifying: make(chan struct{}, maxVerifying), jobs: map[memo.Key]*job{},
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	authorization := ""
	if p.VLLM.APIKey != "" {
		authorization = "Bearer " + p.VLLM.APIKey
	}
	x.client = render.NewClient(render.Options{
		Transport: o.Transport, Authorization: authorization, Concurrency: p.VLLM.Concurrency,
		MaxBodyBytes: int(p.VLLM.MaxBodyBytes), Observe: observe, Logger: o.Logger,
	})
	if !p.VLLM.Endpoints {
		x.fleet.Set([]string{p.VLLM.URL})
	}
	x.counts = newCounts()
	if previous != nil && previous.exact != nil {
		x.counts = previous.exact.counts
		if p.same(&previous.params) {
			x.known = previous.exact.known
		}
	}
	if x.known == nil {
		x.known = &knowledge{
			seed: rand.Uint64(), memo: memo.NewStore(int(p.VLLM.MemoBytes)), classes: memo.NewClasses(),
			trust: newTrust(maxModels, o.Logger),
		}
	}
	return x
}

// close calls off what is under way and waits for its end.
func (x *exact) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.cancel()
	x.all.Wait()
	x.client.Close()
}

// adopt makes the fleet of a snapshot's endpoints, where it is made of these.
func (x *exact) adopt(s *scheduling.Snapshot) {
	if !x.params.Endpoints || s.Version <= x.version.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.Version <= x.version.Load() {
		return
	}
	var urls []string
	for _, e := range s.Endpoints {
		if e != nil && e.State == scheduling.EndpointReady && (e.Engine == "" || e.Engine == backendVLLM) {
			urls = append(urls, "http://"+e.Address)
		}
	}
	x.fleet.Set(urls)
	x.version.Store(s.Version)
}

// attempt is what a flight keeps of the finding of its tokens, to compare with what its engine says.
type attempt struct {
	own   *memo.Prompt // as they were found
	job   *job         // or the job that may find them still
	key   memo.Key     // names the request, where keyed is set
	keyed bool
	text  bool // the prompt is nothing but text
	plain bool // it is a conversation of plain messages
	begun time.Time
}

// prompt finds the tokens of a request; nil where they are not known, and then the counts say why. The error is what kept
// them from being known, where that is not the request itself.
func (x *exact) prompt(ctx context.Context, c *scheduling.Cycle, at *attempt) (*memo.Prompt, error) {
	p, source, err := x.find(ctx, c, at)
	switch {
	case c.Request.Trial:
	case p == nil:
		x.counts.inexact[source].Add(1)
	default:
		x.counts.exact[source].Add(1)
	}
	return p, err
}

// find returns a request's tokens and where they come from, or nil and why there are none.
func (x *exact) find(ctx context.Context, c *scheduling.Cycle, at *attempt) (p *memo.Prompt, source string, err error) {
	r := c.Request
	x.adopt(c.Snapshot)
	if !render.Renders(r.Operation) || len(r.Model) > maxModelName {
		return nil, reasonUnsupported, nil
	}
	rd := x.takeReading()
	defer x.readings.Put(rd)
	if !rd.read(r, x.known.seed) {
		return nil, reasonUnreadable, nil
	}
	if _, stored := rd.doc.Last("previous_response_id"); stored {
		return nil, reasonUnsupported, nil
	}
	at.key, at.keyed, at.begun = rd.whole, true, time.Now()
	demoted, sample := x.known.trust.demoted(r.Model, r.Trial)
	p = x.remembered(rd, r, at)
	x.lookedUp(r, p != nil)
	if p != nil {
		if demoted {
			return nil, reasonDemoted, nil
		}
		return p, sourceMemo, nil
	}
	media := rd.media()
	at.text = media == fields.MediaNone
	if demoted {
		if sample && len(r.Body) <= maxOwned {
			at.job = x.sample(r, rd, c)
		}
		return nil, reasonDemoted, nil
	}
	return x.askFor(ctx, rd, c, media, at)
}

// lookedUp counts a look into the memo.
func (x *exact) lookedUp(r *scheduling.Request, hit bool) {
	switch {
	case r.Trial:
	case hit:
		x.counts.hits.Add(1)
	default:
		x.counts.misses.Add(1)
	}
}

// askFor asks an engine for a request's tokens.
func (x *exact) askFor(ctx context.Context, rd *reading, c *scheduling.Cycle, media fields.Media, at *attempt) (p *memo.Prompt, source string, err error) {
	r, budget := c.Request, x.params.Timeout
	if media != fields.MediaNone {
		budget = x.params.MMTimeout
	}
	limit := budget
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, left(time.Until(deadline)))
	}
	w := wait{until: at.begun.Add(limit), limit: limit, blame: limit >= budget/2 && !r.Trial}
	for {
		w.job, w.starts = x.job(rd, r, c, media, at)
		if w.job == nil {
			return nil, render.ReasonCanceled.String(), nil
		}
		p, source, err = w.wait(ctx, at)
		if p != nil || w.starts || source != render.ReasonCanceled.String() || ctx.Err() != nil {
			return p, source, err
		}
		// The request that the job was started for has left: another job is needed, or there was one already.
		if again := x.remembered(rd, r, at); again != nil {
			return again, sourceMemo, nil
		}
	}
}

// remembered is a prompt that was rendered before and would be rendered the same now, or nil.
func (x *exact) remembered(rd *reading, r *scheduling.Request, at *attempt) *memo.Prompt {
	p := lookIn(x.known.memo, r)(rd.whole)
	if p == nil || p.Epoch != memo.Epoch(at.begun) {
		return nil
	}
	at.own, at.job, at.text, at.plain = p, nil, len(p.Features) == 0, p.Plain
	return p
}

// lookIn is how a request looks into the memo: one that is only tried leaves no trace in it.
func lookIn(m *memo.Store, r *scheduling.Request) func(memo.Key) *memo.Prompt {
	if r.Trial {
		return m.Peek
	}
	return m.Get
}

func (x *exact) takeReading() *reading {
	if rd, ok := x.readings.Get().(*reading); ok {
		return rd
	}
	return &reading{}
}

// check compares what was found with what the engine says of the prompt.
func (x *exact) check(f *scheduling.Flight, at *attempt) {
	o := f.Outcome
	if !at.keyed || o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299 {
		return
	}
	own := at.own
	if own == nil && at.job != nil {
		own = at.job.result()
	}
	match := false
	if own != nil && own.Prompts == 1 {
		var known bool
		if match, known = compare(own, o); known {
			x.known.trust.check(f.Model, match)
			if !match {
				x.distrust(f.Model, own, at.key)
			}
		}
	}
	if !match {
		x.learn(f, at)
	}
}

// compare holds a prompt against what its engine says of it; known is false where it says nothing.
func compare(own *memo.Prompt, o scheduling.Outcome) (match, known bool) {
	switch {
	case len(o.PromptTokens) > 0:
		return slices.Equal(own.Tokens, o.PromptTokens), true
	case o.Usage.PromptTokens > 0:
		return own.Count == o.Usage.PromptTokens, true
	}
	return false, false
}

// distrust forgets what led to a prompt that its engine counts otherwise.
func (x *exact) distrust(model string, own *memo.Prompt, key memo.Key) {
	x.known.memo.Remove(key)
	if own.Joined {
		x.disable(model)
	}
}

// disable ends the joining of a model's conversations, and forgets whatever came of it.
func (x *exact) disable(model string) {
	if x.known.classes.Disable(model) {
		x.logger.Warn("a conversation was not rendered as the joining of its parts: the model's are rendered as a whole from now on", "model", clip(model))
	}
	x.known.memo.Purge()
}

// learn keeps the tokens that an engine gave with its answer. Whether they are a whole prompt is seen by the API, or by
// their number; of a prompt that is not only text the features are missing.
func (x *exact) learn(f *scheduling.Flight, at *attempt) {
	given, count := f.Outcome.PromptTokens, f.Outcome.Usage.PromptTokens
	single := f.Operation != scheduling.OperationCompletions && count < 0 || count == len(given)
	if len(given) == 0 || !at.text || !single {
		return
	}
	x.known.memo.Put(at.key, &memo.Prompt{
		Tokens: slices.Clone(given), Count: len(given), Prompts: 1,
		Epoch: memo.EpochOf(at.begun, at.begun), Plain: at.plain,
	})
	x.counts.learned.Add(1)
}
