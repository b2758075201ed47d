package fleet

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim"
)

// Sight says how well pickers see the engines.
type Sight struct {
	// EventDelay is how late KV events come: each step's between half of it and one and a half times it, in their order.
	EventDelay time.Duration
	// EventLoss is the share of steps whose KV events never come, 0 to 1.
	EventLoss float64
	// ScrapeInterval is the time between two readings of an engine's metrics; 0 means that nobody reads them but once, at the
	// beginning.
	ScrapeInterval time.Duration
	// Unheard says that nothing is known of an engine until its first KV event, as when it and the pickers start together; else
	// it is known from the beginning that its cache is empty.
	Unheard bool
}

func (s *Sight) validate() error {
	if s.EventDelay < 0 || !(s.EventLoss >= 0 && s.EventLoss <= 1) || s.ScrapeInterval < 0 {
		return fmt.Errorf("sight %+v: times must not be negative, a loss is 0 to 1", *s)
	}
	return nil
}

// View is what one picker sees of the fleet.
type View struct {
	fleet  *fleet
	pool   *scheduling.Pool
	store  *metrics.Store
	sinks  [][]kvevents.Sink // by engine; several where several indices follow it
	behind []time.Duration   // when each engine's last events come
	heard  []bool            // of which engines there was an event, or there was one and it was lost
}

// Address is how an endpoint is called. Nobody listens there.
func Address(number int) string {
	return fmt.Sprintf("127.%d.%d.%d:1", 128+(number>>16), number>>8&255, number&255)
}

func newView(f *fleet) *View {
	n := len(f.engines)
	v := &View{
		fleet: f, pool: scheduling.NewPool(), sinks: make([][]kvevents.Sink, n), behind: make([]time.Duration, n), heard: make([]bool, n),
	}
	v.store = metrics.NewStore(metrics.Options{Now: v.Now, Fed: true})
	specs := make([]scheduling.EndpointSpec, n)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: Address(i), Name: fmt.Sprintf("engine-%d", i)}
	}
	v.pool.Update(specs)
	return v
}

// Now is the virtual time. It may be asked from any goroutine: an index looks after itself in one of its own.
func (v *View) Now() time.Duration { return time.Duration(v.fleet.shown.Load()) }

// Pool has the endpoints, with the engines' numbers for ordinals.
func (v *View) Pool() *scheduling.Pool { return v.pool }

// Engines is what the engines say of themselves.
func (v *View) Engines() *metrics.Store { return v.store }

// Seed is the run's source of random numbers.
func (v *View) Seed() uint64 { return v.fleet.config.Seed }

// BlockTokens is the size of the engines' KV blocks, in tokens: the first one's.
func (v *View) BlockTokens() int { return v.fleet.engines[0].Params().BlockSize }

// Reusable is how many tokens of a request's prompt an engine's cache holds at this moment. No router knows that; it is for
// references to compare routers with.
func (v *View) Reusable(engine int, r *Request) int {
	return v.fleet.engines[engine].Reusable(r.Tokens)
}

// RoundTrip answers no question to an engine: those of a fleet have no sockets. It makes a View an http.RoundTripper, with
// which nothing is dialled.
func (v *View) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s: %w", r.URL.Host, errors.ErrUnsupported)
}

// Follow makes an index hear an engine's KV events. It is a precise.Follower.
func (v *View) Follow(e *scheduling.Endpoint, _ kvevents.Config, _ kvevents.Options, open func(rank int) kvevents.Sink) precise.Feed {
	sink := open(0)
	if !v.fleet.config.Sight.Unheard {
		sink.State(cursor.Live)
	}
	v.sinks[e.Ordinal] = append(v.sinks[e.Ordinal], sink)
	ready := make(chan struct{})
	close(ready)
	return &Feed{view: v, engine: e.Ordinal, sink: sink, ready: ready}
}

// Feed is an index's hearing of an engine.
type Feed struct {
	view   *View
	engine int
	sink   kvevents.Sink
	ready  chan struct{}
}

// Restarted does nothing: engines of a fleet do not.
func (f *Feed) Restarted() {}

// Ready is closed from the beginning.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Close ends the hearing.
func (f *Feed) Close() error {
	sinks := &f.view.sinks[f.engine]
	*sinks = slices.DeleteFunc(*sinks, func(s kvevents.Sink) bool { return s == f.sink })
	return nil
}

// begin reads the engines' metrics for the first time, and from then on.
func (v *View) begin() {
	for _, e := range v.fleet.engines {
		v.scrape(e)
		interval := v.fleet.config.Sight.ScrapeInterval
		if interval == 0 {
			continue
		}
		var again func()
		again = func() {
			v.scrape(e)
			v.fleet.at(v.fleet.now+interval, again)
		}
		// Spread over the interval, as real scrapes are.
		v.fleet.at(interval*time.Duration(e.number+1)/time.Duration(len(v.fleet.engines)), again)
	}
}

func (v *View) scrape(e *engine) {
	stats, params := e.Stats(), e.Params()
	endpoint := v.pool.Snapshot().Endpoints[e.number]
	v.store.Feed(endpoint.Ordinal, endpoint.Generation, metrics.Reading{
		Load: scheduling.EngineMetrics{
			Known:   scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage,
			Waiting: float64(stats.Waiting), Running: float64(stats.Running),
			KVUsage: 1 - float64(stats.FreeBlocks)/float64(stats.TotalBlocks),
		},
		At: v.fleet.now, BlockSizeTokens: params.BlockSize, NumBlocks: params.NumBlocks, PrefixQueries: -1, PrefixHits: -1,
	})
}

// publish tells the indices what a step did to an engine's cache, late or never.
func (v *View) publish(e *engine) {
	sinks := v.sinks[e.number]
	if len(sinks) == 0 || len(e.events.pending) == 0 {
		return
	}
	sight := &v.fleet.config.Sight
	if sight.EventLoss > 0 && v.fleet.random.Float64() < sight.EventLoss {
		v.heard[e.number] = true
		for _, s := range sinks {
			s.State(cursor.Degraded) // a gap in the numbers, which nobody fills
		}
		return
	}
	if sight.EventDelay == 0 {
		v.deliver(e.number, e.events.pending)
		return
	}
	late := v.fleet.now + sight.EventDelay/2 + time.Duration(v.fleet.random.Float64()*float64(sight.EventDelay))
	v.behind[e.number] = max(late, v.behind[e.number])
	batch := e.events.take()
	v.fleet.at(v.behind[e.number], func() { v.deliver(e.number, batch) })
}

func (v *View) deliver(engine int, batch []wire.Event) {
	first := v.fleet.config.Sight.Unheard && !v.heard[engine]
	v.heard[engine] = true
	for _, s := range v.sinks[engine] {
		s.Apply(&wire.Batch{Events: batch})
		if first {
			s.State(cursor.Live)
		}
	}
}

// events collects what a step does to a cache. It implements sim.Observer.
type events struct {
	pending []wire.Event
	hashes  []uint64
	tokens  []uint32
}

// clear forgets the step.
func (e *events) clear() { e.pending, e.hashes, e.tokens = e.pending[:0], e.hashes[:0], e.tokens[:0] }

// take is a copy of the step's events, which outlives it.
func (e *events) take() []wire.Event {
	all := slices.Clone(e.pending)
	for i := range all {
		all[i].Hashes, all[i].Tokens = slices.Clone(all[i].Hashes), slices.Clone(all[i].Tokens)
	}
	return all
}

// BlocksStored implements sim.Observer.
func (e *events) BlocksStored(s sim.Stored) {
	ev := wire.Event{Kind: wire.Stored, Hashes: e.keep(s.Hashes), Medium: medium(s.Medium), HasParent: s.First > 0, Parent: s.Parent}
	if len(s.Tokens) > 0 {
		ev.BlockSize = len(s.Tokens) / len(s.Hashes)
		from := len(e.tokens)
		e.tokens = append(e.tokens, s.Tokens...)
		ev.Tokens = e.tokens[from:len(e.tokens):len(e.tokens)]
	}
	e.pending = append(e.pending, ev)
}

// BlocksRemoved implements sim.Observer.
func (e *events) BlocksRemoved(r sim.Removed) {
	e.pending = append(e.pending, wire.Event{Kind: wire.Removed, Hashes: e.keep(r.Hashes), Medium: medium(r.Medium)})
}

// CacheCleared implements sim.Observer.
func (e *events) CacheCleared() { e.pending = append(e.pending, wire.Event{Kind: wire.Cleared}) }

func (e *events) keep(hashes []uint64) []uint64 {
	from := len(e.hashes)
	e.hashes = append(e.hashes, hashes...)
	return e.hashes[from:len(e.hashes):len(e.hashes)]
}

func medium(m sim.Medium) string {
	if m == sim.CPU {
		return "cpu"
	}
	return "gpu"
}
