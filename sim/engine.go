package sim

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
)

// Errors of [Engine.Submit].
var (
	ErrQueueFull = errors.New("waiting queue is full")
	ErrTooLong   = errors.New("prompt and output exceed the model length")
	ErrNoPrompt  = errors.New("prompt is empty")
	ErrReused    = errors.New("job was submitted before")
)

// Stats are an engine's gauges and counters. Token counters are as vLLM's of the same names.
type Stats struct {
	Waiting, Running  int
	FreeBlocks        int // unreferenced blocks, cached or not
	CachedBlocks      int // physical blocks with a hash, referenced or not
	TotalBlocks       int
	OffloadedBlocks   int // blocks of the offload tier that can be loaded
	Steps             int
	PrefixQueries     int // prompt tokens looked up
	PrefixHits        int // prompt tokens found on the GPU
	OffloadQueries    int // of those not found, tokens looked up in the offload tier
	OffloadHits       int // tokens found there
	PromptTokens      int // prompt tokens of jobs whose prefill ended, cached ones included
	GeneratedTokens   int
	Preemptions       int
	Finished, Aborted int
}

// Engine is one inference engine. It is not safe for concurrent use.
type Engine struct {
	params  Params
	pool    *pool
	tier    *tier  // nil without an offload tier
	waiting []*Job // head first
	running []*Job // in order of admission
	batch   []*Job // of the current step
	load    load
	now     time.Duration // of the latest Begin or Complete
	end     time.Duration
	inStep  bool
	held    bool // nothing is admitted
	events  []Event
	stats   Stats
	buf     []byte
	span    []uint32

	offers        []offer   // of the current step
	copies, spare []copying // under way to the offload tier; memory for the next ones
}

// New makes an engine with an empty cache. The observer may be nil.
func New(p Params, obs Observer) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("engine parameters: %w", err)
	}
	e := &Engine{params: p, pool: newPool(p.NumBlocks, obs)}
	if p.OffloadBlocks > 0 {
		e.tier = newTier(p.OffloadBlocks)
	}
	return e, nil
}

// Params returns what the engine was made with.
func (e *Engine) Params() Params { return e.params }

// Stats returns the state as of now.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Waiting, s.Running = len(e.waiting), len(e.running)
	s.FreeBlocks, s.CachedBlocks, s.TotalBlocks = e.pool.nfree, e.pool.hashed, e.pool.total()
	if e.tier != nil {
		s.OffloadedBlocks = e.tier.ready
	}
	return s
}

// Cached yields the hash of each block that can be reused from a medium, in no order; on the GPU a
// hash comes once for each physical block.
func (e *Engine) Cached(m Medium) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		if m == GPU {
			e.pool.each(yield)
		} else if e.tier != nil {
			e.tier.each(yield)
		}
	}
}

// Waiting yields the jobs that wait, head of the queue first.
func (e *Engine) Waiting() iter.Seq[*Job] { return slices.Values(e.waiting) }

// Running yields the admitted jobs in order of admission.
func (e *Engine) Running() iter.Seq[*Job] { return slices.Values(e.running) }

// Submit puts a job at the end of the waiting queue. A job refused with an error is left untouched
// and may be submitted again.
func (e *Engine) Submit(now time.Duration, j *Job) error {
	switch {
	case j.state != stateNew:
		return ErrReused
	case len(j.Prompt) == 0:
		return ErrNoPrompt
	case len(j.Prompt)+len(j.Output) > e.params.MaxModelLen:
		return fmt.Errorf("%w: %d + %d tokens, maxModelLen is %d",
			ErrTooLong, len(j.Prompt), len(j.Output), e.params.MaxModelLen)
	case len(e.waiting) >= e.params.MaxWaiting:
		return fmt.Errorf("%w: maxWaiting is %d", ErrQueueFull, e.params.MaxWaiting)
	}
	j.hashes = make([]uint64, 0, (len(j.Prompt)+len(j.Output))/e.params.BlockSize)
	e.extendHashes(j)
	j.state = stateWaiting
	j.progress.Submitted = now
	e.waiting = append(e.waiting, j)
	return nil
}

// Abort takes a job out wherever it is, also in the middle of a step, and frees its blocks. It
// reports whether the job was waiting or running.
func (e *Engine) Abort(j *Job) bool {
	switch j.state {
	case stateWaiting:
		e.waiting = drop(e.waiting, j)
	case stateRunning:
		e.running = drop(e.running, j)
		e.release(j)
	default:
		return false
	}
	j.retire()
	e.stats.Aborted++
	return true
}

// ResetCache forgets all blocks cached on the GPU. It does nothing and returns false while a job
// is running.
func (e *Engine) ResetCache() bool { return e.pool.reset() }

// Hold keeps waiting jobs from being admitted, or lets them in again. Running ones go on.
func (e *Engine) Hold(on bool) { e.held = on }

// PreemptAll sends all running jobs back to the head of the queue, also in the middle of a step.
func (e *Engine) PreemptAll() {
	for len(e.running) > 0 {
		e.preempt(e.running[len(e.running)-1])
	}
}

// Begin forms the next step and returns when it ends; ok is false when there is nothing to run.
// While a step runs it changes nothing and returns that step's end. A time before the latest one
// counts as the latest one.
func (e *Engine) Begin(now time.Duration) (end time.Duration, ok bool) {
	if e.inStep {
		return e.end, true
	}
	e.now = max(e.now, now)
	e.events, e.batch, e.load = e.events[:0], e.batch[:0], load{}

	budget := e.params.MaxBatchedTokens
	preempted := e.scheduleDecodes(&budget)
	e.schedulePrefills(&budget)
	if !preempted && !e.held {
		e.admit(&budget)
	}
	if len(e.batch) == 0 {
		return e.now, false
	}
	e.inStep = true
	e.end = e.now + e.params.Cost.duration(e.load)
	return e.end, true
}

// scheduleDecodes gives one token to each decoding sequence and preempts from the end of the
// running list when blocks run out. The oldest sequence always gets its block: Validate makes sure
// that one sequence of any permitted length fits alone.
func (e *Engine) scheduleDecodes(budget *int) (preempted bool) {
	for i := 0; i < len(e.running); i++ {
		j := e.running[i]
		if !j.decoding() {
			continue
		}
		if j.computed == len(j.blocks)*e.params.BlockSize {
			for e.pool.nfree == 0 && j.state == stateRunning {
				e.preempt(e.running[len(e.running)-1])
				preempted = true
			}
			if j.state != stateRunning {
				break
			}
			j.blocks = append(j.blocks, e.pool.take())
		}
		e.schedule(j, 1)
		e.load.addDecode(j.known())
		*budget--
	}
	return preempted
}

func (e *Engine) schedulePrefills(budget *int) {
	for _, j := range e.running {
		if *budget <= 0 {
			return
		}
		if j.chunk == 0 {
			e.schedulePrefill(j, budget)
		}
	}
}

func (e *Engine) schedulePrefill(j *Job, budget *int) {
	n := min(*budget, j.known()-j.computed)
	e.schedule(j, n)
	e.load.addPrefill(j.computed, n)
	*budget -= n
}

func (e *Engine) schedule(j *Job, n int) {
	j.chunk = n
	e.batch = append(e.batch, j)
	e.storeBlocks(j)
}

// preempt sends the sequence that was admitted last back to the head of the queue.
func (e *Engine) preempt(j *Job) {
	e.running = e.running[:len(e.running)-1]
	e.release(j)
	j.state = stateWaiting
	j.progress.Preemptions++
	e.stats.Preemptions++
	e.waiting = slices.Insert(e.waiting, 0, j)
	e.events = append(e.events, Event{Kind: Preempted, Job: j})
}

func (e *Engine) release(j *Job) {
	e.pool.release(j.blocks)
	j.blocks = j.blocks[:0]
	j.computed, j.stored, j.reused, j.loaded, j.chunk = 0, 0, 0, 0, 0
}

// Complete ends the current step: each sequence whose text is wholly computed samples a token. Without a step it returns the zero result.
func (e *Engine) Complete() StepResult {
	if !e.inStep {
		return StepResult{}
	}
	start := e.now
	e.inStep, e.now = false, e.end
	e.stats.Steps++
	for _, j := range e.batch {
		if j.state != stateRunning { // aborted meanwhile
			continue
		}
		j.computed += j.chunk
		j.chunk = 0
		if full := j.computed / e.params.BlockSize; e.tier != nil && full > j.offered {
			e.offers = append(e.offers, offer{job: j, hashes: j.hashes[:full]})
		}
		if j.computed == j.known() {
			e.sample(j)
		}
	}
	e.offload()
	return StepResult{
		Start: start, End: e.end,
		PrefillTokens: e.load.prefill, Decodes: e.load.decodes, ContextTokens: e.load.context, LoadedTokens: e.load.loaded,
		Events: e.events,
	}
}

func (e *Engine) sample(j *Job) {
	if j.generated == 0 {
		j.progress.FirstToken = e.now
		e.stats.PromptTokens += len(j.Prompt)
	}
	if len(j.Output) > 0 {
		kind := Token
		if j.generated == 0 {
			kind = FirstToken
		}
		e.events = append(e.events, Event{Kind: kind, Job: j, Index: j.generated})
		j.generated++
		j.progress.Generated = j.generated
		e.stats.GeneratedTokens++
		e.extendHashes(j)
	}
	if j.generated == len(j.Output) {
		e.running = drop(e.running, j)
		e.release(j)
		j.retire()
		j.progress.Finished = e.now
		e.stats.Finished++
		e.events = append(e.events, Event{Kind: Finished, Job: j})
	}
}

// storeBlocks makes the blocks known that the step completes: first those that it loads, then those
// that it computes. What is scheduled after them in the same step can reuse them.
func (e *Engine) storeBlocks(j *Job) {
	if j.reused > 0 {
		e.announce(Stored{Job: j, Reused: true}, j.hashes[:j.reused])
		j.reused = 0
	}
	full := (j.computed + j.chunk) / e.params.BlockSize
	e.store(j, min(j.loaded, full))
	e.store(j, full)
}

// store makes a job's blocks up to the given one known.
func (e *Engine) store(j *Job, to int) {
	first := j.stored
	if first >= to {
		return
	}
	for ; j.stored < to; j.stored++ {
		e.pool.store(j.blocks[j.stored], j.hashes[j.stored])
	}
	s := Stored{Job: j, First: first}
	if first > 0 {
		s.Parent = j.hashes[first-1]
	}
	e.announce(s, j.hashes[first:to])
}

// announce tells the observer of stored blocks, filling in their hashes and tokens.
func (e *Engine) announce(s Stored, hashes []uint64) {
	if e.pool.obs == nil {
		return
	}
	s.Hashes = hashes
	s.Tokens = e.text(s.Job, s.First*e.params.BlockSize, (s.First+len(hashes))*e.params.BlockSize)
	e.pool.obs.BlocksStored(s)
}

// extendHashes hashes the full blocks of the known text that have no hash yet.
func (e *Engine) extendHashes(j *Job) {
	size := e.params.BlockSize
	for n := len(j.hashes); (n+1)*size <= j.known(); n++ {
		var parent, h uint64
		if n == 0 {
			parent = rootHash(e.params.HashSeed, j.Adapter, j.Salt)
		} else {
			parent = j.hashes[n-1]
		}
		h, e.buf = chainHash(parent, e.text(j, n*size, (n+1)*size), e.buf)
		j.hashes = append(j.hashes, h)
	}
}

// text returns the tokens in [from, to) of prompt and output; valid until the next call.
func (e *Engine) text(j *Job, from, to int) []uint32 {
	p := len(j.Prompt)
	switch {
	case to <= p:
		return j.Prompt[from:to]
	case from >= p:
		return j.Output[from-p : to-p]
	}
	e.span = append(e.span[:0], j.Prompt[from:]...)
	e.span = append(e.span, j.Output[:to-p]...)
	return e.span
}

func drop(jobs []*Job, j *Job) []*Job {
	i := slices.Index(jobs, j)
	return slices.Delete(jobs, i, i+1)
}
