package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/sim"
)

// maxLag is how far (wall time) the model may fall behind before it skips the time it missed
// rather than running steps without pause to catch up.
const maxLag = 200 * time.Millisecond

var errClosed = errors.New("engine is closed")

// loop is the one goroutine that owns the model: it waits for the end of the current step, hands
// out the tokens, and forms the next step.
type loop struct {
	model   *sim.Engine
	speed   float64
	origin  time.Time
	metrics *metrics
	events  *events // nil when none are published

	cmds chan func()
	done chan struct{} // closed when the goroutine has ended

	now, end time.Duration // model time: start and end of the current step
	busy     bool          // a step is in progress
	owners   map[*sim.Job]owner
	promised int // sequences that have a place in the queue and are being written
	answers  int // tokens of all answers that are being written, made or sent,
	room     int // of at most so many

	paused bool     // no step begins
	asleep int      // level of sleep; 0 is none
	idle   []func() // to do at the end of a step
}

// owner is the sequence of a generation that a job computes.
type owner struct {
	gen *generation
	seq int
}

func newLoop(model *sim.Engine, speed float64, m *metrics, e *events) *loop {
	return &loop{
		model: model, speed: speed, origin: time.Now(), metrics: m, events: e,
		cmds: make(chan func()), done: make(chan struct{}), owners: make(map[*sim.Job]owner), room: maxAnswerTokens,
	}
}

// wall is the model time that corresponds to this moment.
func (l *loop) wall() time.Duration {
	return time.Duration(float64(time.Since(l.origin)) * l.speed)
}

func (l *loop) toWall(d time.Duration) time.Duration {
	return time.Duration(float64(d) / l.speed)
}

func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		if !l.busy && !l.paused {
			if end, ok := l.model.Begin(l.now); ok {
				l.end, l.busy = end, true
				timer.Reset(l.toWall(end - l.wall()))
			}
		}
		select {
		case <-ctx.Done():
			return
		case f := <-l.cmds:
			if !l.busy {
				l.now = max(l.now, l.wall())
			}
			f()
		case <-timer.C:
			l.complete()
		}
	}
}

// complete ends the step: its events are published, then its tokens handed out. The next step
// starts where it ended, so that late timers do not slow the model down.
func (l *loop) complete() {
	step := l.model.Complete()
	l.busy, l.now = false, step.End
	if w := l.wall(); l.toWall(w-l.now) > maxLag {
		l.now = w
	}
	if l.events != nil {
		l.events.flush(time.Now())
	}
	for _, ev := range step.Events {
		o, ok := l.owners[ev.Job]
		if !ok {
			continue
		}
		l.metrics.observe(ev, l.toWall)
		o.gen.update(o.seq, ev)
		if ev.Kind == sim.Finished {
			delete(l.owners, ev.Job)
		}
	}
	due := l.idle
	l.idle = nil
	for _, f := range due {
		f()
	}
}

// whenIdle runs f now, or at the end of the step in progress. It is called on the loop's goroutine.
func (l *loop) whenIdle(f func()) {
	if !l.busy {
		f()
		return
	}
	l.afterStep(f)
}

// afterStep runs f at the end of the step in progress, or of the next one.
func (l *loop) afterStep(f func()) { l.idle = append(l.idle, f) }

// do runs f on the loop's goroutine and waits for it.
func (l *loop) do(f func()) error {
	ran := make(chan struct{})
	select {
	case l.cmds <- func() { f(); close(ran) }:
		<-ran
		return nil
	case <-l.done:
		return errClosed
	}
}

// maxAnswerTokens bounds the answers that are held in memory together, 256 MiB: a full queue of the
// longest ones would take a few GB.
const maxAnswerTokens = 1 << 26

// reserve gives a generation its places in the queue, before its answers are written; submit has to
// follow. The error is [sim.ErrQueueFull] where there is no room.
func (l *loop) reserve(g *generation) error {
	var err error
	closed := l.do(func() {
		most, waiting := l.model.Params().MaxWaiting, l.model.Stats().Waiting+l.promised
		switch {
		case waiting+g.size > most:
			err = fmt.Errorf("%w: %d more than %d waiting, maxWaiting is %d", sim.ErrQueueFull, g.size, waiting, most)
		case l.answers+g.tokens > l.room:
			err = fmt.Errorf("%w: %d tokens of answers more than %d under way, at most %d", sim.ErrQueueFull, g.tokens, l.answers, l.room)
		default:
			l.promised += g.size
			l.answers += g.tokens
			g.held = true
		}
	})
	return errors.Join(closed, err)
}

// submit hands all sequences of a generation to the model, or none.
func (l *loop) submit(g *generation) error {
	var err error
	closed := l.do(func() {
		l.promised -= g.size
		at := min(max(l.wall(), l.now), max(l.now, l.end))
		for i, j := range g.jobs {
			if err = l.model.Submit(at, j); err != nil {
				l.drop(g)
				return
			}
			l.owners[j] = owner{g, i}
		}
	})
	return errors.Join(closed, err)
}

// abort takes what is left of a generation out of the model.
func (l *loop) abort(g *generation) {
	// A closed loop has nothing left to abort.
	_ = l.do(func() { l.drop(g) })
}

// abortAll ends every generation where it is.
func (l *loop) abortAll() {
	for j, o := range l.owners {
		l.model.Abort(j)
		o.gen.cut(o.seq)
	}
	clear(l.owners)
}

func (l *loop) drop(g *generation) {
	for _, j := range g.jobs {
		if _, ok := l.owners[j]; ok {
			l.model.Abort(j)
			delete(l.owners, j)
		}
	}
	if g.held {
		l.answers -= g.tokens
		g.held = false
	}
}

// generation is the sequences of one request on their way through the model. The loop counts what
// was made; the request's handler, woken by notify, sends it.
type generation struct {
	jobs   []*sim.Job
	size   int  // number of jobs
	tokens int  // of their outputs
	held   bool // tokens count; of the loop's goroutine
	loop   *loop
	notify chan struct{} // holds one wake-up

	mu       sync.Mutex
	made     []int    // output tokens by sequence
	finished []string // why each sequence ended; empty while it goes on
	progress []sim.Progress
}

// Why a sequence ended, in OpenAI's words.
const (
	reasonLength = "length"
	reasonAbort  = "abort"
)

// newGeneration makes the generation of so many sequences with outputs of so many tokens together;
// the jobs are yet to be added.
func newGeneration(l *loop, size, tokens int) *generation {
	return &generation{
		jobs: make([]*sim.Job, 0, size), size: size, tokens: tokens, loop: l, notify: make(chan struct{}, 1),
		made: make([]int, size), finished: make([]string, size), progress: make([]sim.Progress, size),
	}
}

// abort takes what is left out of the model.
func (g *generation) abort() { g.loop.abort(g) }

func (g *generation) update(seq int, ev sim.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch ev.Kind {
	case sim.Preempted:
		return
	case sim.Finished:
		g.finished[seq] = reasonLength
	default:
		g.made[seq] = ev.Index + 1
	}
	g.progress[seq] = ev.Job.Progress()
	g.wake()
}

// cut ends a sequence before its time.
func (g *generation) cut(seq int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finished[seq] = reasonAbort
	g.progress[seq] = g.jobs[seq].Progress()
	g.wake()
}

func (g *generation) wake() {
	select {
	case g.notify <- struct{}{}:
	default:
	}
}

// next reports how many tokens of a sequence there are, and why it ended if it has.
func (g *generation) next(seq int) (made int, finished string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made[seq], g.finished[seq]
}

// at is the progress of a sequence as of its latest token.
func (g *generation) at(seq int) sim.Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.progress[seq]
}

// output is the tokens of a sequence so far.
func (g *generation) output(seq int) []uint32 {
	made, _ := g.next(seq)
	return g.jobs[seq].Output[:made]
}

// aborted reports whether a sequence was ended before its time.
func (g *generation) aborted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.finished, reasonAbort)
}
