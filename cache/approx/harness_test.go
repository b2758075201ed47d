package approx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/tokens"
	"github.com/sluice-epp/sluice/scheduling"
)

// stubPicker picks the address that a request's "pick" header names, and as many others as are asked for.
type stubPicker struct{}

func (stubPicker) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	if want, ok := c.Request.Header("pick"); ok {
		if e := c.Snapshot.ByAddress(string(want)); e != nil && candidates.Has(e.Ordinal) {
			picks = append(picks, e.Ordinal)
		}
	}
	for i := range candidates.All() {
		if len(picks) < c.MaxPicks && !slices.Contains(picks, i) {
			picks = append(picks, i)
		}
	}
	return picks
}

// probe exposes what the profile would read.
type probe struct {
	stubPicker
	info scheduling.Key[scheduling.PrefixCacheMatchInfo]
}

// harness is a scheduler with the plugin, a real token producer and a pool.
type harness struct {
	t         testing.TB
	pool      *scheduling.Pool
	options   Options
	registry  *prometheus.Registry
	types     []scheduling.PluginType
	scheduler *scheduling.Scheduler
	now       time.Duration
	maxPicks  int // 0: one
	id        atomic.Uint64
}

func newHarness(t testing.TB, config CacheConfig, change func(*Parameters)) *harness {
	h := &harness{t: t, pool: scheduling.NewPool(), registry: prometheus.NewRegistry()}
	h.options = Options{CacheConfig: config, Seed: blockhash.SeedOf("test"), Registerer: h.registry}
	h.types = []scheduling.PluginType{
		NewFamily(h.options).Type(), tokens.Type(tokens.Options{}),
		{Type: "probe", New: func(b *scheduling.Builder) (any, error) {
			return &probe{info: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "", "")}, nil
		}},
	}
	h.pool.Watch(func(s *scheduling.Snapshot) {
		if h.scheduler != nil {
			h.scheduler.SnapshotChanged(s)
		}
	})
	h.reload(change)
	return h
}

func (h *harness) build(change func(*Parameters)) (*scheduling.Scheduler, error) {
	spec := scheduling.Spec{Name: TypeName, Type: TypeName, Decode: func(into any) error {
		if change != nil {
			change(into.(*Parameters))
		}
		return nil
	}}
	return scheduling.Build(h.types, scheduling.Config{
		Plugins: []scheduling.Spec{spec},
		Profile: []scheduling.Ref{{Name: "probe"}}, MaxPicks: h.maxPicks,
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
	if old != nil {
		if err := old.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *harness) producer() *Producer { return h.scheduler.Plugin(TypeName).(*Producer) }

// endpoints makes the pool hold these addresses; "a#2" is address a under uid 2.
func (h *harness) endpoints(names ...string) {
	specs := make([]scheduling.EndpointSpec, len(names))
	for i, n := range names {
		address, uid, _ := strings.Cut(n, "#")
		specs[i] = scheduling.EndpointSpec{Address: address, UID: uid}
	}
	h.pool.Update(specs)
}

type infos map[string]scheduling.PrefixCacheMatchInfo

// look returns what is known of a prompt, without a pick.
func (h *harness) look(r *scheduling.Request) infos {
	h.t.Helper()
	c := h.begin(r)
	defer h.scheduler.End(c)
	return h.read(c)
}

func (h *harness) begin(r *scheduling.Request) *scheduling.Cycle {
	h.t.Helper()
	r.ID = h.id.Add(1)
	c := h.scheduler.Begin(h.pool.Snapshot(), r, h.now)
	h.scheduler.Produce(h.t.Context(), c)
	for _, f := range c.Faults {
		h.t.Fatalf("%s: %v", f.Producer, f.Err)
	}
	return c
}

func (h *harness) read(c *scheduling.Cycle) infos {
	column := h.scheduler.Plugin("probe").(*probe).info.In(c)
	out := infos{}
	for i, e := range c.Snapshot.Endpoints {
		if v, ok := column.Get(i); ok {
			out[e.Address] = v
		}
	}
	return out
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

// serve sends a request and lets it end well.
func (h *harness) serve(r *scheduling.Request, address string) {
	h.t.Helper()
	h.send(r, address).Done(scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, h.now)
}

// text is a request whose prompt is the given text.
func text(model, prompt string) *scheduling.Request {
	return &scheduling.Request{
		Operation: scheduling.OperationChat, Model: model, Body: []byte(prompt), Choices: 1,
		Prompt: []scheduling.Span{{Start: 0, End: len(prompt)}}, PromptBytes: len(prompt),
	}
}

// ids is a request whose prompt is token ids.
func ids(model string, tokens []uint32) *scheduling.Request {
	return &scheduling.Request{
		Operation: scheduling.OperationCompletions, Model: model, Body: []byte("{}"), Choices: 1,
		Tokens: tokens, TokenCount: len(tokens),
	}
}

// words is text of n bytes that differs between seeds from the first block on.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x ", r.Uint32())
	}
	return b.String()[:n]
}

func tokenRun(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 2))
	out := make([]uint32, n)
	for i := range out {
		out[i] = r.Uint32N(150000)
	}
	return out
}
