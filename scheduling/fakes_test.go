package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// The data types of the graph tests.
type (
	alpha int
	beta  int
	gamma int
)

// declare is one declaration of a fake plugin.
type declare func(b *scheduling.Builder)

func makes[T any]() declare {
	return func(b *scheduling.Builder) { scheduling.ProduceColumn[T](b) }
}

func makesValue[T any]() declare {
	return func(b *scheduling.Builder) { scheduling.ProduceValue[T](b) }
}

func needs[T any](producer string) declare {
	return func(b *scheduling.Builder) {
		scheduling.ConsumeColumn[T](b, "producerName", producer)
	}
}

func needsValue[T any](producer string) declare {
	return func(b *scheduling.Builder) {
		scheduling.ConsumeValue[T](b, "producerName", producer)
	}
}

func wants[T any](producer string) declare {
	return func(b *scheduling.Builder) {
		scheduling.ConsumeOptionalColumn[T](b, "producerName", producer)
	}
}

// fake is a plugin type that declares things and does nothing.
func fake(typ string, plugin any, declarations ...declare) scheduling.PluginType {
	return scheduling.PluginType{Type: typ, New: func(b *scheduling.Builder) (any, error) {
		for _, d := range declarations {
			d(b)
		}
		return plugin, nil
	}}
}

// defaultFor makes a type the default producer of a data type.
func defaultFor[T any](t scheduling.PluginType) scheduling.PluginType {
	t.DefaultFor = append(t.DefaultFor, scheduling.DataTypeOf[T]())
	return t
}

type (
	idleProducer struct{}
	idleFiller   struct{}
	idleFilter   struct{}
	idleScorer   struct{}
)

func (idleProducer) Produce(context.Context, *scheduling.Cycle) error       { return nil }
func (idleFiller) Fill(*scheduling.Cycle)                                   {}
func (idleFilter) Filter(*scheduling.Cycle, scheduling.Set)                 {}
func (idleScorer) Score(_ *scheduling.Cycle, _ scheduling.Set, _ []float64) {}

// filterFunc, scorerFunc and producerFunc are plugins in one function; preference is a filter that only prefers.
type (
	filterFunc   func(c *scheduling.Cycle, candidates scheduling.Set)
	scorerFunc   func(c *scheduling.Cycle, candidates scheduling.Set, scores []float64)
	producerFunc func(ctx context.Context, c *scheduling.Cycle) error
	preference   struct{ filterFunc }
)

func (f filterFunc) Filter(c *scheduling.Cycle, candidates scheduling.Set) { f(c, candidates) }

func (f scorerFunc) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	f(c, candidates, scores)
}

func (f producerFunc) Produce(ctx context.Context, c *scheduling.Cycle) error { return f(ctx, c) }

func (preference) Preference() {}

// keep is a filter that leaves only some ordinals.
func keep(ordinals ...int) filterFunc {
	return func(_ *scheduling.Cycle, candidates scheduling.Set) {
		for e := range candidates.All() {
			if !slices.Contains(ordinals, e) {
				candidates.Remove(e)
			}
		}
	}
}

// scores is a scorer that gives every ordinal a fixed score.
func scores(values ...float64) scorerFunc {
	return func(_ *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
		for e := range candidates.All() {
			scores[e] = values[e]
		}
	}
}

// pool is a pool of n ready endpoints without labels.
func pool(n int) *scheduling.Pool {
	return (&schedtest.Table{Endpoints: make([]schedtest.Endpoint, n)}).Pool()
}

func mustBuild(tb testing.TB, types []scheduling.PluginType, cfg scheduling.Config) *scheduling.Scheduler {
	tb.Helper()
	s, err := scheduling.Build(types, cfg, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// counter is a ledger in small: it publishes the requests in flight per ordinal, and charges and releases them. Its
// tests never give an ordinal to a second instance unless they say so.
type counter struct {
	load  scheduling.Key[scheduling.InFlightLoad]
	state scheduling.StateKey[charge]

	mu    sync.Mutex
	count map[instance]int64
}

// instance names one instance of an endpoint.
type instance struct {
	ordinal    int
	generation uint64
}

type charge struct {
	at    instance
	units int64
}

var counterType = scheduling.PluginType{
	Type:       "counter",
	DefaultFor: []string{scheduling.DataTypeOf[scheduling.InFlightLoad]()},
	New: func(b *scheduling.Builder) (any, error) {
		return &counter{
			load:  scheduling.ProduceColumn[scheduling.InFlightLoad](b),
			state: scheduling.KeepState[charge](b),
			count: map[instance]int64{},
		}, nil
	},
}

func instanceOf(e *scheduling.Endpoint) instance { return instance{e.Ordinal, e.Generation} }

func (p *counter) Fill(c *scheduling.Cycle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	load := p.load.In(c)
	for e := range c.Candidates.All() {
		load.Set(e, scheduling.InFlightLoad{Requests: p.count[instanceOf(c.Snapshot.Endpoints[e])]})
	}
}

func (p *counter) Charge(_ *scheduling.Cycle, f *scheduling.Flight) { p.add(f, 1) }

func (p *counter) add(f *scheduling.Flight, units int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.state.Of(f)
	if c.units != 0 {
		panic("the state of a new flight is not zero")
	}
	*c = charge{instanceOf(f.Endpoint), units}
	p.count[c.at] += units
}

func (p *counter) release(f *scheduling.Flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.state.Of(f)
	p.count[c.at] -= c.units
	if p.count[c.at] == 0 {
		delete(p.count, c.at)
	}
	*c = charge{}
}

func (*counter) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (*counter) FirstToken(*scheduling.Flight, time.Duration)    {}
func (p *counter) Done(f *scheduling.Flight, _ time.Duration)    { p.release(f) }
func (p *counter) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	p.release(f)
	p.add(f, 1)
}

func (p *counter) inFlight() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.count {
		n += c
	}
	return n
}

// journal is a follower that writes down what it is told.
type journal struct {
	name  string
	lines *[]string
}

func journalType(typ string, lines *[]string, declarations ...declare) scheduling.PluginType {
	t := fake(typ, nil, declarations...)
	build := t.New
	t.New = func(b *scheduling.Builder) (any, error) {
		if _, err := build(b); err != nil {
			return nil, err
		}
		return &journal{name: b.Name, lines: lines}, nil
	}
	return t
}

func (j *journal) note(format string, args ...any) {
	*j.lines = append(*j.lines, j.name+" "+fmt.Sprintf(format, args...))
}

func (j *journal) Charge(_ *scheduling.Cycle, f *scheduling.Flight) {
	j.note("charge %s", f.Endpoint.Address)
}

func (j *journal) Committed(_ *scheduling.Cycle, f *scheduling.Flight) {
	j.note("committed %s", f.Endpoint.Address)
}

func (j *journal) FirstToken(f *scheduling.Flight, now time.Duration) {
	j.note("first token %s at %v", f.Endpoint.Address, now)
}

func (j *journal) Moved(f *scheduling.Flight, from *scheduling.Endpoint, _ time.Duration) {
	j.note("moved %s to %s", from.Address, f.Endpoint.Address)
}

func (j *journal) Done(f *scheduling.Flight, now time.Duration) {
	j.note("done %s at %v: %v %d", f.Endpoint.Address, now, f.Outcome.Reason, f.Outcome.Status)
}

func (j *journal) SnapshotChanged(s *scheduling.Snapshot) { j.note("snapshot %d", s.Version) }

// closing is a plugin whose Close is counted and may fail.
type closing struct {
	idleProducer
	name   string
	closed *[]string
	err    error
}

func (c *closing) Close() error {
	*c.closed = append(*c.closed, c.name)
	return c.err
}

func closingType(typ string, closed *[]string, err error) scheduling.PluginType {
	return scheduling.PluginType{Type: typ, New: func(b *scheduling.Builder) (any, error) {
		return &closing{name: b.Name, closed: closed, err: err}, nil
	}}
}

var errFake = errors.New("out of order")
