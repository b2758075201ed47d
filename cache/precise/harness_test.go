package precise

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/tokens"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/scheduling"
)

// stubFeed is a feed whose engine the test plays.
type stubFeed struct {
	endpoint *scheduling.Endpoint
	config   kvevents.Config
	open     func(rank int) kvevents.Sink
	ready    chan struct{}

	mu        sync.Mutex
	sinks     map[int]kvevents.Sink
	restarted int
	closed    bool
}

func (f *stubFeed) Restarted() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restarted++
}
func (f *stubFeed) Ready() <-chan struct{} { return f.ready }
func (f *stubFeed) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errors.New("closed twice")
	}
	f.closed = true
	return nil
}

// rank is the sink of a rank.
func (f *stubFeed) rank(number int) kvevents.Sink {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sinks == nil {
		f.sinks = map[int]kvevents.Sink{}
	}
	if f.sinks[number] == nil {
		f.sinks[number] = f.open(number)
	}
	return f.sinks[number]
}

// hear takes in a payload of rank 0, or of the rank that it names.
func (f *stubFeed) hear(t testing.TB, payload []byte) {
	t.Helper()
	var d wire.Decoder
	b, err := d.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	f.rank(b.Rank).Apply(b)
}

func (f *stubFeed) say(t testing.TB, events ...wire.Event) {
	t.Helper()
	f.hear(t, wire.AppendBatch(nil, &wire.Batch{Events: events}))
}

// live makes the source of rank 0 one whose events are complete.
func (f *stubFeed) live() { f.rank(0).State(cursor.Live) }

// site are the engines behind a harness, as their feeds and their HTTP servers show them.
type site struct {
	mu     sync.Mutex
	feeds  map[string][]*stubFeed // by address, the latest last
	models map[string]string      // by address: what /v1/models says
	starts int
}

func (s *site) follow(e *scheduling.Endpoint, c kvevents.Config, _ kvevents.Options, open func(int) kvevents.Sink) Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &stubFeed{endpoint: e, config: c, open: open, ready: make(chan struct{})}
	s.feeds[e.Address] = append(s.feeds[e.Address], f)
	s.starts++
	return f
}

// at is the latest feed of an address.
func (s *site) at(address string) *stubFeed {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.feeds[address]
	return all[len(all)-1]
}

// RoundTrip answers the questions about models.
func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, ok := s.models[r.URL.Host]
	if !ok || r.URL.Path != "/v1/models" {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// stubPicker picks the address that a request's "pick" header names, or else the first candidate.
type stubPicker struct{}

func (stubPicker) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	if want, ok := c.Request.Header("pick"); ok {
		if e := c.Snapshot.ByAddress(string(want)); e != nil && candidates.Has(e.Ordinal) {
			return append(picks, e.Ordinal)
		}
	}
	return append(picks, candidates.Next(0))
}

// probe exposes what the profile would read.
type probe struct {
	stubPicker
	info     scheduling.Key[scheduling.PrefixCacheMatchInfo]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
}

// harness is a scheduler with the plugin, a real token producer, a real ledger and a pool, in which time stands still
// unless the test says otherwise.
type harness struct {
	t         testing.TB
	pool      *scheduling.Pool
	site      *site
	registry  *prometheus.Registry
	types     []scheduling.PluginType
	scheduler *scheduling.Scheduler
	clock     atomic.Int64
	id        atomic.Uint64
}

func newHarness(t testing.TB, change func(*Parameters)) *harness {
	return newHarnessWith(t, nil, change)
}

func newHarnessWith(t testing.TB, config CacheConfig, change func(*Parameters)) *harness {
	t.Helper()
	h := &harness{
		t: t, pool: scheduling.NewPool(), registry: prometheus.NewRegistry(),
		site: &site{feeds: map[string][]*stubFeed{}, models: map[string]string{}},
	}
	seed := blockhash.SeedOf("test")
	audits := audit.NewCollector(h.registry)
	family := approx.NewFamily(approx.Options{CacheConfig: config, Audits: audits, Seed: seed, Registerer: h.registry})
	h.types = []scheduling.PluginType{
		Type(Options{
			Now: h.now, CacheConfig: config, Approximate: family, Audits: audits, Seed: seed, Transport: h.site, Registerer: h.registry,
			Follow: h.site.follow,
		}),
		family.Type(), tokens.Type(tokens.Options{}), ledger.Type(),
		{Type: "probe", New: func(b *scheduling.Builder) (any, error) {
			return &probe{
				info:     scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "", ""),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "", ""),
			}, nil
		}},
	}
	h.pool.Watch(func(s *scheduling.Snapshot) {
		if h.scheduler != nil {
			h.scheduler.SnapshotChanged(s)
		}
	})
	h.reload(change)
	t.Cleanup(func() {
		if err := h.scheduler.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *harness) build(change func(*Parameters)) (*scheduling.Scheduler, error) {
	spec := scheduling.Spec{Name: "p", Type: TypeName, Decode: func(into any) error {
		if p, ok := into.(*Parameters); ok && change != nil {
			change(p)
		}
		return nil
	}}
	return scheduling.Build(h.types, scheduling.Config{
		Plugins: []scheduling.Spec{spec}, Profile: []scheduling.Ref{{Name: "probe"}},
	}, h.scheduler)
}

// reload swaps the configuration.
func (h *harness) reload(change func(*Parameters)) {
	h.t.Helper()
	next, err := h.build(change)
	if err != nil {
		h.t.Fatal(err)
	}
	old := h.scheduler
	h.scheduler = next
	next.SnapshotChanged(h.pool.Snapshot())
	if old != nil {
		if err := old.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *harness) now() time.Duration       { return time.Duration(h.clock.Load()) }
func (h *harness) advance(by time.Duration) { h.clock.Add(int64(by)) }

func (h *harness) producer() *Producer {
	p, _ := h.scheduler.Plugin("p").(*Producer)
	return p
}
func (h *harness) hub() *hub { return h.producer().hub }
func (h *harness) ledger() *ledger.Plugin {
	p, _ := h.scheduler.Plugin(ledger.TypeName).(*ledger.Plugin)
	return p
}

// endpoints makes the pool hold these addresses; "a#2" is address a under uid 2.
func (h *harness) endpoints(names ...string) {
	specs := make([]scheduling.EndpointSpec, len(names))
	for i, n := range names {
		address, uid, _ := strings.Cut(n, "#")
		specs[i] = scheduling.EndpointSpec{Address: address, UID: uid}
	}
	h.pool.Update(specs)
}

func (h *harness) endpoint(address string) *scheduling.Endpoint {
	return h.pool.Snapshot().ByAddress(address)
}

// source is that of an endpoint's rank 0.
func (h *harness) source(address string) *source {
	s, _ := h.site.at(address).rank(0).(*source)
	return s
}

func (h *harness) begin(r *scheduling.Request) *scheduling.Cycle {
	h.t.Helper()
	r.ID = h.id.Add(1)
	c := h.scheduler.Begin(h.pool.Snapshot(), r, h.now())
	h.scheduler.Produce(h.t.Context(), c)
	for _, f := range c.Faults {
		h.t.Fatalf("%s: %v", f.Producer, f.Err)
	}
	return c
}

type infos map[string]scheduling.PrefixCacheMatchInfo

// look returns what is known of a prompt, without a pick.
func (h *harness) look(r *scheduling.Request) infos {
	h.t.Helper()
	c := h.begin(r)
	defer h.scheduler.End(c)
	p, _ := h.scheduler.Plugin("probe").(*probe)
	column := p.info.In(c)
	out := infos{}
	for i, e := range c.Snapshot.Endpoints {
		if v, ok := column.Get(i); ok {
			out[e.Address] = v
		}
	}
	return out
}

// expect checks the literal number of tokens that each endpoint is found to hold.
func (h *harness) expect(when string, r *scheduling.Request, want map[string]int) {
	h.t.Helper()
	got := map[string]int{}
	for address, i := range h.look(r) {
		got[address] = i.CachedBlockCount * i.BlockSizeTokens
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.t.Errorf("%s: found %v, want %v", when, got, want)
	}
}

// send picks an address for a request and returns the flight.
func (h *harness) send(r *scheduling.Request, address string) *scheduling.Flight {
	h.t.Helper()
	r.Headers = append(r.Headers[:0], scheduling.Header{Name: "pick", Value: []byte(address)})
	c := h.begin(r)
	defer h.scheduler.End(c)
	f, err := h.scheduler.Commit(c)
	if err != nil {
		h.t.Fatal(err)
	}
	if f.Endpoint.Address != address {
		h.t.Fatalf("picked %s, want %s", f.Endpoint.Address, address)
	}
	return f
}

// serve sends a request and lets it end well, with cached tokens as the engine reports them; -1 for no report.
func (h *harness) serve(r *scheduling.Request, address string, cached int) {
	h.t.Helper()
	h.end(h.send(r, address), cached)
}

func (h *harness) end(f *scheduling.Flight, cached int) {
	usage := scheduling.UnknownUsage
	usage.CachedTokens = cached
	f.Done(scheduling.Outcome{Status: 200, Usage: usage}, h.now())
}

// ids is a request whose prompt is token ids.
func ids(model string, tokens []uint32) *scheduling.Request {
	return &scheduling.Request{
		Operation: scheduling.OperationCompletions, Model: model, Body: []byte("{}"), Choices: 1,
		Tokens: tokens, TokenCount: len(tokens),
	}
}

// text is a request whose prompt is text.
func text(model, prompt string) *scheduling.Request {
	return &scheduling.Request{
		Operation: scheduling.OperationChat, Model: model, Body: []byte(prompt), Choices: 1,
		Prompt: []scheduling.Span{{Start: 0, End: len(prompt)}}, PromptBytes: len(prompt),
	}
}

// metric is a sample of the harness's registry by name and label values, "sluice_kv_event_blocks_total orphaned".
func (h *harness) metric(name string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			id := f.GetName()
			for _, l := range m.Label {
				if l.GetName() != "producer" {
					id += " " + l.GetValue()
				}
			}
			if id == name {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	h.t.Fatalf("no metric %s", name)
	return 0
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}
