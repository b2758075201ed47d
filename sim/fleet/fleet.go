package fleet

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Config is one run.
type Config struct {
	// Trace are the requests.
	Trace *trace.Trace
	// Engines are the endpoints' engines. Their block size may be any; Trace.BlockTokens makes runs fast.
	Engines []sim.Params
	// Pickers are how many replicas of the picker there are; each request comes to one of them, drawn evenly. 0 means 1.
	Pickers int
	// NewPicker makes a replica that sees the fleet through view.
	NewPicker func(view *View) (Picker, error)
	// Sight says how well the pickers see the engines.
	Sight Sight
	// Seed is the source of every random number of the run.
	Seed uint64
	// Shifts change engines in the middle of the run.
	Shifts []Shift
	// Noise is the standard deviation of the logarithm of what the time of each step is multiplied by, 0 to 1: real engines' steps
	// do not take the same time twice.
	Noise float64
	// Stop ends the run early, with [ErrStopped], once it is closed. nil: nothing does.
	Stop <-chan struct{}
	// Pooled makes the engines share one KV cache of all their memory (see sim.NewPooled): a reference for what routing could
	// gain. No KV events come then.
	Pooled bool
}

// ErrStopped says that a run was stopped before its end.
var ErrStopped = errors.New("stopped")

// Picker decides where requests go, and is told what becomes of them: of each that it has sent somewhere the first token and
// the end, in this order. One that is a TokenFollower hears of tokens between the two.
type Picker interface {
	// Pick returns the number of an endpoint, negative where none can be picked.
	Pick(now time.Duration, r *Request) int
	// FirstToken tells that a request's first token has come.
	FirstToken(now time.Duration, r *Request)
	// Done tells that a request has ended.
	Done(now time.Duration, r *Request)
}

// TokenFollower is a Picker that is told that an engine's step brought a further token of a request. Of a
// step it hears about one request at least.
type TokenFollower interface {
	Token(now time.Duration, r *Request)
}

// Shift changes an engine's speed.
type Shift struct {
	// At is when; 0 is before the first request.
	At time.Duration
	// Engine is the engine's number.
	Engine int
	// Slower is by what every step takes longer from then on than the engine's parameters say; above 0.
	Slower float64
}

// Request is a request of the trace on its way. Only what is exported may be looked at by pickers, and nothing changed.
type Request struct {
	*trace.Request
	// Number counts the requests of the run from 0.
	Number int
	// Tokens are the prompt's. They are valid until the end.
	Tokens []uint32
	// Endpoint is where it was sent; negative: nowhere.
	Endpoint int
	// Cached are the prompt tokens that the engine found in its cache, known from the first token on.
	Cached int

	job    *sim.Job
	picker Picker
	first  time.Duration
	end    time.Duration
}

// fleet is a run.
type fleet struct {
	clock
	config  Config
	random  *rand.Rand
	engines []*engine
	pickers []Picker
	views   []*View
	byJob   map[*sim.Job]*Request
	all     []*Request
	left    int        // requests that have not ended
	spare   [][]uint32 // memory for prompts
	answers [][]uint32 // memory for answers
	refused int        // by engines
	nowhere int        // had no pick
}

// engine is an endpoint's.
type engine struct {
	*sim.Engine
	number  int
	slower  float64
	running bool // a step is under way
	step    func()
	events  events
	prefill int // tokens computed in prefill
}

// Run plays the trace to its end, when the last request has ended.
func Run(c Config) (*Result, error) {
	f := &fleet{config: c, random: rand.New(rand.NewPCG(c.Seed, 0x5105ce)), byJob: map[*sim.Job]*Request{}}
	if err := f.assemble(); err != nil {
		return nil, err
	}
	defer f.close()
	for _, s := range c.Shifts {
		f.at(s.At, func() { f.engines[s.Engine].slower = s.Slower })
	}
	f.arrivals()
	for steps := 1; f.left > 0 && f.clock.step(); steps++ {
		if steps%stopEvery == 0 && f.stopped() {
			return nil, ErrStopped
		}
	}
	if f.left > 0 {
		return nil, fmt.Errorf("%d requests never end", f.left)
	}
	return f.result(), nil
}

// stopEvery is after how many steps of the clock a run looks whether it is to stop.
const stopEvery = 4096

func (f *fleet) stopped() bool {
	select {
	case <-f.config.Stop:
		return true
	default:
		return false
	}
}

func (f *fleet) assemble() error {
	c := &f.config
	if len(c.Engines) == 0 || c.NewPicker == nil || c.Trace == nil || len(c.Trace.Requests) == 0 {
		return errors.New("a run needs engines, a picker and a trace with requests")
	}
	if err := c.Sight.validate(); err != nil {
		return err
	}
	if !(c.Noise >= 0 && c.Noise <= 1) {
		return fmt.Errorf("noise: must be from 0 to 1, got %v", c.Noise)
	}
	for _, s := range c.Shifts {
		if s.Engine < 0 || s.Engine >= len(c.Engines) || !(s.Slower > 0) {
			return fmt.Errorf("shift %+v: want an engine from 0 to %d, and a factor above 0", s, len(c.Engines)-1)
		}
	}
	var pooled []*sim.Engine
	if c.Pooled {
		var err error
		if pooled, err = sim.NewPooled(c.Engines); err != nil {
			return err
		}
	}
	for i, p := range c.Engines {
		e := &engine{number: i, slower: 1}
		if c.Pooled {
			e.Engine = pooled[i]
		} else if made, err := sim.New(p, &e.events); err != nil {
			return fmt.Errorf("engine %d: %w", i, err)
		} else {
			e.Engine = made
		}
		e.step = func() { f.complete(e) }
		f.engines = append(f.engines, e)
	}
	for range max(1, c.Pickers) {
		view := newView(f)
		p, err := c.NewPicker(view)
		if err != nil {
			return fmt.Errorf("making the picker: %w", err)
		}
		f.pickers, f.views = append(f.pickers, p), append(f.views, view)
		view.begin()
	}
	return nil
}

func (f *fleet) close() {
	for _, p := range f.pickers {
		if c, ok := p.(interface{ Close() error }); ok {
			_ = c.Close() // what a run leaves behind is garbage
		}
	}
}

// arrivals asks for the requests' arrivals, one after the other: the queue stays short.
func (f *fleet) arrivals() {
	requests := f.config.Trace.Requests
	f.left = len(requests)
	f.all = make([]*Request, 0, len(requests))
	next := 0
	var arrive func()
	arrive = func() {
		r := &Request{Request: &requests[next], Number: next}
		if next++; next < len(requests) {
			f.at(requests[next].At, arrive)
		}
		f.send(r)
	}
	f.at(requests[0].At, arrive)
}

// send asks a picker, and gives the request to the engine that it picks.
func (f *fleet) send(r *Request) {
	f.all = append(f.all, r)
	r.Tokens = f.config.Trace.AppendTokens(last(&f.spare), r.Request)
	r.picker = f.pickers[0]
	if len(f.pickers) > 1 {
		r.picker = f.pickers[f.random.IntN(len(f.pickers))]
	}
	r.Endpoint = r.picker.Pick(f.now, r)
	if r.Endpoint < 0 || r.Endpoint >= len(f.engines) {
		f.nowhere++
		r.Endpoint = -1
		f.over(r)
		return
	}
	e := f.engines[r.Endpoint]
	r.job = &sim.Job{Prompt: r.Tokens, Output: f.answer(r)}
	if err := e.Submit(f.now, r.job); err != nil {
		f.refused++
		r.picker.Done(f.now, r)
		r.job = nil
		f.over(r)
		return
	}
	f.byJob[r.job] = r
	f.run(e)
}

// answer is what the engine generates: it is nobody else's prompt.
func (f *fleet) answer(r *Request) []uint32 {
	out := slices.Grow(last(&f.answers), r.OutputTokens)[:r.OutputTokens]
	for i := range out {
		out[i] = uint32(r.Number)<<8 ^ uint32(i) | 1<<31
	}
	return out
}

// run starts an engine's next step, unless one is under way or there is nothing to do.
func (f *fleet) run(e *engine) {
	if e.running {
		return
	}
	end, ok := e.Begin(f.now)
	if !ok {
		return
	}
	e.running = true
	took := float64(end-f.now) * e.slower
	if f.config.Noise > 0 {
		took *= math.Exp(f.config.Noise * f.random.NormFloat64())
	}
	f.at(f.now+time.Duration(took), e.step)
}

// complete ends an engine's step.
func (f *fleet) complete(e *engine) {
	e.running = false
	step := e.Complete()
	e.prefill += step.PrefillTokens
	for _, v := range f.views {
		v.publish(e)
	}
	e.events.clear()
	var told Picker // of a token of this step
	for _, ev := range step.Events {
		r := f.byJob[ev.Job]
		switch ev.Kind {
		case sim.FirstToken:
			r.first, r.Cached = f.now, ev.Job.Progress().Cached
			r.picker.FirstToken(f.now, r)
		case sim.Finished:
			if r.first == 0 { // embeddings
				r.first, r.Cached = f.now, ev.Job.Progress().Cached
			}
			r.end = f.now
			r.picker.Done(f.now, r)
			delete(f.byJob, ev.Job)
			f.over(r)
		case sim.Token:
			if t, ok := r.picker.(TokenFollower); ok && r.picker != told {
				told = r.picker
				t.Token(f.now, r)
			}
		case sim.Preempted:
		}
	}
	f.run(e)
	if f.config.Pooled { // there may be room for others now
		for _, other := range f.engines {
			f.run(other)
		}
	}
}

// over gives a request's memory back.
func (f *fleet) over(r *Request) {
	f.left--
	f.spare = append(f.spare, r.Tokens[:0])
	if r.job != nil {
		f.answers = append(f.answers, r.job.Output[:0])
	}
	r.Tokens, r.job = nil, nil
}

// last takes the last one out; nil where there is none.
func last(all *[][]uint32) []uint32 {
	n := len(*all)
	if n == 0 {
		return nil
	}
	m := (*all)[n-1]
	*all = (*all)[:n-1]
	return m
}
