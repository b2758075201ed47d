package ledger

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// pinPicker picks the endpoint whose ordinal the request's model name says, 'a' being 0: tests say where to go.
var pinPicker = scheduling.PluginType{
	Type: "pin-picker",
	New:  func(*scheduling.Builder) (any, error) { return pin{}, nil },
}

type pin struct{}

func (pin) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	if e := int(c.Request.Model[0] - 'a'); candidates.Has(e) {
		return append(picks, e)
	}
	return picks
}

// bench is a ledger in a real scheduler over a pool, with the columns that a table says.
type bench struct {
	*testing.T
	table     schedtest.Table
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	ledger    *Plugin
	requests  uint64
}

// newBench returns a bench with a ledger of the given parameters (a YAML block) in a profile of the given name. The
// endpoints are to be set with update.
func newBench(t *testing.T, profile, parameters string) *bench {
	t.Helper()
	b := &bench{T: t, pool: scheduling.NewPool()}
	b.configure(profile, parameters)
	stop := b.pool.Watch(func(s *scheduling.Snapshot) { b.scheduler.SnapshotChanged(s) })
	t.Cleanup(stop)
	return b
}

// configure builds the scheduler, in place of the one before.
func (b *bench) configure(profile, parameters string) {
	b.Helper()
	cfg := schedtest.Config([]scheduling.Spec{
		{Name: "ledger", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)},
	}, pinPicker.Type)
	cfg.ProfileName = profile
	types := append(b.table.Types()[:1:1], Type(), pinPicker)
	s, err := scheduling.Build(types, cfg, b.scheduler)
	if err != nil {
		b.Fatal(err)
	}
	b.scheduler = s
	ledger, ok := s.Plugin("ledger").(*Plugin)
	if !ok {
		b.Fatalf("the plugin is a %T", s.Plugin("ledger"))
	}
	b.ledger = ledger
}

// spec is an endpoint spec by letter and uid.
func spec(letter byte, uid string) scheduling.EndpointSpec {
	return scheduling.EndpointSpec{UID: uid, Address: "10.0.0." + string('1'+letter-'a') + ":8000"}
}

// update makes the pool hold the given endpoints and the table as many of them.
func (b *bench) update(specs ...scheduling.EndpointSpec) {
	snapshot := b.pool.Update(specs)
	for len(b.table.Endpoints) < len(snapshot.Endpoints) {
		b.table.Endpoints = append(b.table.Endpoints, schedtest.Endpoint{})
	}
	b.table.Endpoints = b.table.Endpoints[:len(snapshot.Endpoints)]
}

// input says how long the prompt of the next requests is, in tokens.
func (b *bench) input(tokens int) { b.table.Prompt = &scheduling.TokenizedPrompt{Count: tokens} }

// matched says what the table's match info for an endpoint is: so many cached blocks of total, 16 tokens each.
func (b *bench) matched(ordinal, cached, total int) {
	b.table.Endpoints[ordinal].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, total, 16))
}

// begin takes a request for an endpoint as far as its columns outside the critical section.
func (b *bench) begin(letter byte, request scheduling.Request) *scheduling.Cycle {
	b.Helper()
	b.requests++
	request.ID, request.Model = b.requests, string(letter)
	c := b.scheduler.Begin(b.pool.Snapshot(), &request, 0)
	b.scheduler.Produce(b.Context(), c)
	if len(c.Faults) != 0 {
		b.Fatalf("faults: %v", c.Faults)
	}
	return c
}

// send places one request on an endpoint.
func (b *bench) send(letter byte) *scheduling.Flight {
	b.Helper()
	return b.request(letter, scheduling.Request{})
}

// request is send with more to say of the request.
func (b *bench) request(letter byte, request scheduling.Request) *scheduling.Flight {
	b.Helper()
	c := b.begin(letter, request)
	f, err := b.scheduler.Commit(c)
	b.scheduler.End(c)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// expect compares what the ledger says of the endpoint that now has an ordinal.
func (b *bench) expect(when string, ordinal int, want scheduling.InFlightLoad) {
	b.Helper()
	e := b.pool.Snapshot().Endpoints[ordinal]
	got, ok := b.ledger.Load(e.Ordinal, e.Generation)
	if !ok || got != want {
		b.Errorf("%s: endpoint %d has %+v (known: %v), want %+v", when, ordinal, got, ok, want)
	}
}

func complete(f *scheduling.Flight) { f.Done(scheduling.Outcome{Status: 200}, time.Second) }
