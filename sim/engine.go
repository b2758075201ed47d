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
	Steps             int
	PrefixQueries     int // prompt tokens looked up
	PrefixHits        int // prompt tokens found
	PromptTokens      int // prompt tokens of jobs whose prefill ended, cached ones included
	GeneratedTokens   int
	Preemptions       int
	Finished, Aborted int
}

// Engine is one inference engine. It is not safe for concurrent use.
type Engine struct {
	params  Params
	pool    *pool
	waiting []*Job // head first
	running []*Job // in order of admission
	batch   []*Job // of the current step
	load    load
	now     time.Duration // of the latest Begin or Complete
	end     time.Duration
	inStep  bool
	events  []Event
	stats   Stats
	buf     []byte
	span    []uint32
}

// New makes an engine with an empty cache. The observer may be nil.
func New(p Params, obs Observer) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("engine parameters: %w", err)
	}
	return &Engine{params: p, pool: newPool(p.NumBlocks, obs)}, nil
}

// Params returns what the engine was made with.
func (e *Engine) Params() Params { return e.params }

// Stats returns the state as of now.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Waiting, s.Running = len(e.waiting), len(e.running)
	s.FreeBlocks, s.CachedBlocks, s.TotalBlocks = e.pool.nfree, e.pool.hashed, e.pool.total()
	return s
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

// ResetCache forgets all cached blocks. It does nothing and returns false while a job is running.
func (e *Engine) ResetCache() bool { return e.pool.reset() }

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
	if !preempted {
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
}

// admit serves the waiting queue in order until its head does not fit.
func (e *Engine) admit(budget *int) {
	for len(e.waiting) > 0 && *budget > 0 && len(e.running) < e.params.MaxSeqs {
		j := e.waiting[0]
		size := e.params.BlockSize
		reusable := j.hashes[:(j.known()-1)/size]
		cached, fromFree := e.pool.match(reusable)
		fresh := blocksFor(j.known(), size) - cached
		if fresh+fromFree > e.pool.nfree {
			return
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		for _, h := range reusable[:cached] {
			j.blocks = append(j.blocks, e.pool.share(h))
		}
		for range fresh {
			j.blocks = append(j.blocks, e.pool.take())
		}
		j.computed, j.stored = cached*size, cached
		j.state = stateRunning
		e.running = append(e.running, j)
		if j.progress.Preemptions == 0 {
			j.progress.Scheduled = e.now
			j.progress.Cached = j.computed
			j.progress.Created = max(0, len(j.Prompt)/size*size-j.computed)
			e.stats.PrefixQueries += len(j.Prompt)
			e.stats.PrefixHits += j.computed
		}
		e.schedulePrefill(j, budget)
	}
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
	j.computed, j.stored, j.chunk = 0, 0, 0
}

// Complete ends the current step: computed blocks become reusable, and each sequence whose text is
// wholly computed samples a token. Without a step it returns the zero result.
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
		e.storeBlocks(j)
		if j.computed == j.known() {
			e.sample(j)
		}
	}
	return StepResult{
		Start: start, End: e.end,
		PrefillTokens: e.load.prefill, Decodes: e.load.decodes, ContextTokens: e.load.context,
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

// storeBlocks makes the blocks known that the step completed.
func (e *Engine) storeBlocks(j *Job) {
	size, first := e.params.BlockSize, j.stored
	for ; j.stored < j.computed/size; j.stored++ {
		e.pool.store(j.blocks[j.stored], j.hashes[j.stored])
	}
	if e.pool.obs == nil || first == j.stored {
		return
	}
	s := Stored{
		Job: j, First: first,
		Hashes: j.hashes[first:j.stored],
		Tokens: e.text(j, first*size, j.stored*size),
	}
	if first > 0 {
		s.Parent = j.hashes[first-1]
	}
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
