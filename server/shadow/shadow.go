// Package shadow scores live traffic with a second configuration and tells how often both agree.
//
// A decision is copied once it has been made, and decided again by one goroutine, on the columns that the configuration in force
// filled and with the same seed. Nothing is charged or learnt, no producer runs, and what there is no room for is left out and
// counted: nothing on the way of a request waits, and nothing that picks see changes.
package shadow

import (
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// queueLength is how many decisions wait at most: 2, 9 and 67 KB each at 8, 64 and 512 endpoints.
const queueLength = 256

// lookEvery is how often the queue is looked at. One that is half full is looked at once.
const lookEvery = 5 * time.Millisecond

// sampleStream keeps the sample apart from what decisions, and the decision log's sample, draw from the same seed.
const sampleStream = 0x736861646f77

// Second is a second configuration, beside the one in force.
type Second struct {
	// Bridge decides again with it.
	Bridge *scheduling.Bridge
	// SampleRatio is the share of decisions that are compared, 0 to 1.
	SampleRatio float64
	// Close ends its scheduler, once nothing is decided with it any more; nil for nothing to end.
	Close func() error
}

// Options are what a Shadow is given.
type Options struct {
	// Logger gets what an operator should know; nil for nobody.
	Logger *slog.Logger
	// Registerer collects the metrics; nil for nobody.
	Registerer prometheus.Registerer
}

// Shadow is an extproc.Observer. It is safe for concurrent use.
type Shadow struct {
	options  Options
	queue    chan waiting
	current  atomic.Pointer[pairing]
	stats    stats
	deciding sync.Mutex    // one decision, or the end of a second configuration
	begun    chan struct{} // there is a second configuration
	half     chan struct{} // the queue is half full
	closing  chan struct{}
	done     chan struct{}
	once     sync.Once
	said     atomic.Bool // that a panic came
}

// pairing is a second configuration in use.
type pairing struct {
	Second
	threshold uint64 // a decision is compared where its draw is below, or
	everyone  bool   // always
	over      bool   // under Shadow.deciding
}

// waiting is a copy of a decision.
type waiting struct {
	cycle *scheduling.Cycle
	with  *pairing
}

// New returns a Shadow that compares nothing until Use is called.
func New(o Options) (*Shadow, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Shadow{options: o, queue: make(chan waiting, queueLength), begun: make(chan struct{}, 1), half: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
	s.stats.begin()
	if o.Registerer != nil {
		if err := s.register(o.Registerer); err != nil {
			return nil, fmt.Errorf("metrics of the shadow: %w", err)
		}
	}
	go s.run()
	return s, nil
}

// Use compares with another second configuration from now on, or with none where it is nil. The one before is closed when Use
// returns.
func (s *Shadow) Use(next *Second) error {
	var p *pairing
	if next != nil {
		p = &pairing{Second: *next, everyone: next.SampleRatio >= 1, threshold: uint64(max(0, min(next.SampleRatio, 1)) * (1 << 63) * 2)}
		if p.everyone {
			p.threshold = math.MaxUint64
		}
	}
	s.deciding.Lock()
	defer s.deciding.Unlock()
	before := s.current.Swap(p)
	s.stats.begin()
	if p != nil {
		select {
		case s.begun <- struct{}{}:
		default: // it is told already
		}
	}
	if before == nil {
		return nil
	}
	before.over = true
	if before.Close != nil {
		return before.Close()
	}
	return nil
}

// Picked copies a decision to be made again.
func (s *Shadow) Picked(c *scheduling.Cycle, _ *scheduling.Flight, _ time.Duration) {
	p := s.current.Load()
	if p == nil || c.Scheduler() != p.Bridge.From() {
		return // another one has come into force between the two
	}
	if !p.everyone && scheduling.Mix64(c.Seed^sampleStream) >= p.threshold {
		return
	}
	if len(s.queue) == cap(s.queue) { // before a copy is made
		s.stats.dropped[droppedFull].Add(1)
		return
	}
	w := waiting{cycle: c.Scheduler().Keep(c), with: p}
	select {
	case s.queue <- w:
	default:
		s.stats.dropped[droppedFull].Add(1)
		w.free()
		return
	}
	if len(s.queue) == queueLength/2 {
		select {
		case s.half <- struct{}{}:
		default:
		}
	}
}

func (w waiting) free() { w.cycle.Scheduler().End(w.cycle) }

// Ended is not of interest here.
func (*Shadow) Ended(*scheduling.Flight, scheduling.Outcome, time.Duration, time.Duration) {}

// Noted is not of interest here.
func (*Shadow) Noted(string) {}

// run decides again until Close. It looks at the queue by the clock: a pick that woke it would wait for that.
func (s *Shadow) run() {
	defer close(s.done)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if s.current.Load() == nil { // nobody picks into the queue
			look.Stop()
			select {
			case <-s.begun:
			case <-s.closing:
			}
			look.Reset(lookEvery)
		}
		select {
		case <-look.C:
		case <-s.half:
		case <-s.closing:
			s.empty(waiting.free)
			return
		}
		s.empty(s.compare)
	}
}

// empty has something done with each decision that waits.
func (s *Shadow) empty(do func(waiting)) {
	for {
		select {
		case w := <-s.queue:
			do(w)
			runtime.Gosched() // requests first
		default:
			return
		}
	}
}

// compare decides one decision again and counts what came of it. What goes wrong in the second configuration ends here.
func (s *Shadow) compare(w waiting) {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	defer w.free()
	if w.with.over {
		s.stats.dropped[droppedReload].Add(1)
		return
	}
	defer func() {
		if v := recover(); v != nil {
			s.stats.dropped[droppedPanic].Add(1)
			if !s.said.Swap(true) { // once: it may come with every request
				s.options.Logger.Error("the shadow's configuration panics; live picks are not touched", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}
	}()
	again := w.with.Bridge.Decide(w.cycle)
	s.stats.count(explain.CompareCycles(w.cycle, again))
	again.Scheduler().End(again)
}

// Close ends the comparison; what waits is left out.
func (s *Shadow) Close() error {
	s.once.Do(func() { close(s.closing) })
	<-s.done
	return s.Use(nil)
}
