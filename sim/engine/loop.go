package engine

import (
	"context"
	"errors"
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

	cmds chan func()
	done chan struct{} // closed when the goroutine has ended

	now, end time.Duration // model time: start and end of the current step
	busy     bool          // a step is in progress
	owners   map[*sim.Job]owner
}

// owner is the sequence of a generation that a job computes.
type owner struct {
	gen *generation
	seq int
}

func newLoop(model *sim.Engine, speed float64, m *metrics) *loop {
	return &loop{
		model: model, speed: speed, origin: time.Now(), metrics: m,
		cmds: make(chan func()), done: make(chan struct{}), owners: make(map[*sim.Job]owner),
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
		if !l.busy {
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

// complete ends the step. The next one starts where it ended, so that late timers do not slow the
// model down.
func (l *loop) complete() {
	step := l.model.Complete()
	l.busy, l.now = false, step.End
	if w := l.wall(); l.toWall(w-l.now) > maxLag {
		l.now = w
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
}

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

// submit hands all sequences of a generation to the model, or none.
func (l *loop) submit(g *generation) error {
	var err error
	closed := l.do(func() {
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

func (l *loop) drop(g *generation) {
	for _, j := range g.jobs {
		if _, ok := l.owners[j]; ok {
			l.model.Abort(j)
			delete(l.owners, j)
		}
	}
}

// generation is the sequences of one request on their way through the model. The loop counts what
// was made; the request's handler, woken by notify, sends it.
type generation struct {
	jobs   []*sim.Job
	notify chan struct{} // holds one wake-up

	mu       sync.Mutex
	made     []int // output tokens by sequence
	finished []bool
	progress []sim.Progress
}

func newGeneration(jobs []*sim.Job) *generation {
	return &generation{
		jobs: jobs, notify: make(chan struct{}, 1),
		made: make([]int, len(jobs)), finished: make([]bool, len(jobs)), progress: make([]sim.Progress, len(jobs)),
	}
}

func (g *generation) update(seq int, ev sim.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch ev.Kind {
	case sim.Preempted:
		return
	case sim.Finished:
		g.finished[seq] = true
	default:
		g.made[seq] = ev.Index + 1
	}
	g.progress[seq] = ev.Job.Progress()
	select {
	case g.notify <- struct{}{}:
	default:
	}
}

// next reports for a sequence of which sent tokens were sent how many there are, and whether it is
// over.
func (g *generation) next(seq int) (made int, finished bool) {
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
