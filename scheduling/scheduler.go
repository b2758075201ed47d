package scheduling

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Scheduler runs one configuration: its producers, its profile and its followers. Build makes one.
//
// A request goes Begin, (Cycle.Restrict), Produce, Commit, and End once the caller has read what it wants of the cycle.
type Scheduler struct {
	profile   profile
	maxPicks  int
	plugins   []*instance // in dependency order
	producers []namedProducer
	fillers   []Filler
	chargers  []Charger
	followers []Follower
	chunkers  []ChunkFollower
	movers    []Mover
	answerers []Answerer
	watchers  []Watcher
	slots     []*slot // columns and values
	states    []*slot // per-flight state
	hash      string  // of the configuration

	// mu is the critical section of a pick: fill, decide, charge. It is the only lock that all picks share.
	mu      sync.Mutex
	cycles  sync.Pool
	flights sync.Pool
}

type namedProducer struct {
	name string
	Producer
}

// ErrNoCandidate is returned by Commit when no endpoint may be picked.
var ErrNoCandidate = errors.New("no endpoint can serve the request")

// Begin takes a cycle for a request. The request and its buffers must stay untouched until End.
func (s *Scheduler) Begin(snapshot *Snapshot, r *Request, now time.Duration) *Cycle {
	c, _ := s.cycles.Get().(*Cycle)
	if c == nil {
		c = s.newCycle()
	}
	c.MaxPicks = s.maxPicks
	c.prepare(snapshot, r, now)
	return c
}

func (s *Scheduler) newCycle() *Cycle {
	c := &Cycle{scheduler: s, storage: make([]storage, len(s.slots))}
	for i, sl := range s.slots {
		c.storage[i] = sl.make()
	}
	for _, f := range s.profile.filters {
		c.Steps = append(c.Steps, FilterStep{Filter: f.name})
	}
	for _, sc := range s.profile.scorers {
		c.Scores = append(c.Scores, ScorerScores{Scorer: sc.name, Weight: sc.weight})
	}
	return c
}

// Produce runs the producers in dependency order. One that fails is noted in the cycle's Faults and costs nothing else;
// once ctx is over the rest are skipped in the same way, and their fault is ctx's cause.
func (s *Scheduler) Produce(ctx context.Context, c *Cycle) {
	c.enter(PhaseProduce)
	for i := range s.producers {
		p := &s.producers[i]
		if c.Observer != nil {
			c.Observer.EnterProducer(p.name)
		}
		var err error
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = p.Produce(ctx, c)
		}
		if err != nil {
			c.Faults = append(c.Faults, Fault{Producer: p.name, Err: err})
		}
	}
}

// Commit decides and charges the pick in one critical section, then tells the followers. The flight is the caller's to
// end: exactly one call of Done. It returns ErrNoCandidate where nothing could be picked.
func (s *Scheduler) Commit(c *Cycle) (*Flight, error) {
	f := s.decideAndCharge(c)
	if f == nil {
		return nil, ErrNoCandidate
	}
	defer f.releaseUnless(&f.committed)
	f.Predicted, _ = ColumnOf[LatencyPrediction](c).Get(f.Endpoint.Ordinal)
	c.enter(PhaseCommitted)
	for _, follower := range s.followers {
		follower.Committed(c, f)
	}
	f.committed = true
	return f, nil
}

func (s *Scheduler) decideAndCharge(c *Cycle) *Flight {
	c.enter(PhaseWait)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillAndDecide(c)
	if len(c.Picks) == 0 {
		return nil
	}
	f := s.newFlight(c)
	charged := false
	defer f.releaseUnless(&charged)
	for _, ch := range s.chargers {
		ch.Charge(c, f)
	}
	charged = true
	return f
}

// Preview decides without charging: what Commit would pick now. Nothing is learnt from it.
func (s *Scheduler) Preview(c *Cycle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillAndDecide(c)
}

func (s *Scheduler) fillAndDecide(c *Cycle) {
	c.enter(PhaseFill)
	for _, f := range s.fillers {
		f.Fill(c)
	}
	s.profile.decide(c)
}

// Decide runs only the pure step over a cycle whose columns are filled: filters, scorers, picker. It touches nothing
// but the cycle.
func (s *Scheduler) Decide(c *Cycle) { s.profile.decide(c) }

// End gives a cycle's memory back. The cycle must not be used afterwards.
func (s *Scheduler) End(c *Cycle) {
	c.Snapshot, c.Request, c.Observer = nil, nil, nil
	clear(c.Faults)
	s.cycles.Put(c)
}

func (s *Scheduler) newFlight(c *Cycle) *Flight {
	f, _ := s.flights.Get().(*Flight)
	if f == nil {
		f = &Flight{scheduler: s, states: make([]storage, len(s.states))}
		for i, sl := range s.states {
			f.states[i] = sl.make()
		}
	}
	for _, st := range f.states {
		st.resize(0)
	}
	r := c.Request
	f.ID, f.Profile, f.Model, f.Operation, f.Stream, f.TraceID = r.ID, s.profile.name, r.Model, r.Operation, r.Stream, r.TraceID
	f.PickedAt, f.Outcome, f.phase = c.Now, Outcome{Usage: UnknownUsage}, flightCommitted
	f.committed = false
	f.Picks = f.Picks[:0]
	for _, o := range c.Picks {
		f.Picks = append(f.Picks, c.Snapshot.Endpoints[o])
	}
	f.Endpoint = f.Picks[0]
	return f
}

func (s *Scheduler) recycle(f *Flight) {
	clear(f.Picks)
	f.Endpoint, f.Model, f.TraceID, f.Outcome = nil, "", "", Outcome{}
	s.flights.Put(f)
}

// SnapshotChanged tells the plugins of a new set of endpoints.
func (s *Scheduler) SnapshotChanged(snapshot *Snapshot) {
	for _, w := range s.watchers {
		w.SnapshotChanged(snapshot)
	}
}

// Plugin returns a plugin of this configuration by name, or nil.
func (s *Scheduler) Plugin(name string) any {
	for _, p := range s.plugins {
		if p.spec.Name == name {
			return p.plugin
		}
	}
	return nil
}

// Close ends the plugins' goroutines and connections, last built first.
func (s *Scheduler) Close() error {
	var errs []error
	for _, p := range slices.Backward(s.plugins) {
		if closer, ok := p.plugin.(Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	return errors.Join(errs...)
}
