package server

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

// The size of a decision.
const (
	decisionEndpoints = 512
	decisionBlocks    = 256
)

// precisely is the configuration of the precise index beside what is built in.
const precisely = `plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true}}
  - type: precise-prefix-cache-producer
`

// decider makes decisions about one prompt of 256 blocks over 512 endpoints, with every plugin of the default profile.
type decider struct {
	app     *App
	request scheduling.Request
}

// newDecider returns one whose prompt a number of the endpoints hold, as the approximate or the precise index knows.
func newDecider(tb testing.TB, precise bool, holders int) *decider {
	tb.Helper()
	// One group of prompts is held by every groups-th engine.
	groups := decisionEndpoints / holders
	prompts, err := chat.Set{Bodies: groups, Groups: groups, Size: 17 << 10}.Make()
	if err != nil {
		tb.Fatal(err)
	}
	pool, err := engines.Start(engines.Options{Engines: decisionEndpoints, Prompts: prompts, Groups: groups, Events: precise})
	if err != nil {
		tb.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	path := ""
	if precise {
		path = filepath.Join(tb.TempDir(), "sluice.yaml")
		if err := os.WriteFile(path, []byte(precisely), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	app, err := New(tb.Context(), Options{ConfigPath: path, Registry: registry, Override: func(c *config.Config) {
		c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := app.closeAll(context.Background()); err != nil {
			tb.Error(err)
		}
		if err := pool.Close(); err != nil {
			tb.Error(err)
		}
	})
	specs := make([]scheduling.EndpointSpec, decisionEndpoints)
	for i, address := range pool.Addresses() {
		specs[i] = scheduling.EndpointSpec{Address: address}
	}
	app.pool.Update(specs)
	tokens := engines.Tokens(prompts[0])[:decisionBlocks*engines.BlockTokens]
	d := &decider{app: app, request: scheduling.Request{
		Operation: scheduling.OperationCompletions, Model: "meta-llama/Llama-3.1-8B-Instruct", Tokens: tokens, TokenCount: len(tokens),
		MaxOutputTokens: 256, Choices: 1, Stream: true,
	}}
	if precise {
		d.awaitEvents(tb, registry, pool.HeldBlocks())
	} else {
		d.place(tb, groups)
	}
	if n := d.matched(tb); n != holders {
		tb.Fatalf("%d endpoints hold the whole prompt, want %d", n, holders)
	}
	return d
}

// awaitEvents waits until the precise index has every block of every engine.
func (d *decider) awaitEvents(tb testing.TB, registry *prometheus.Registry, blocks int) {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		families, err := registry.Gather()
		if err != nil {
			tb.Fatal(err)
		}
		held := 0.0
		for _, f := range families {
			if f.GetName() == "sluice_kv_index_holder_blocks" {
				held = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if held >= float64(blocks) {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%.0f of %d blocks are known", held, blocks)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// place sends the prompt to every groups-th endpoint once, so that the approximate index believes it there.
func (d *decider) place(tb testing.TB, groups int) {
	tb.Helper()
	for ordinal := 0; ordinal < decisionEndpoints; ordinal += groups {
		c := d.begin(tb)
		only := scheduling.NewSet(decisionEndpoints)
		only.Add(ordinal)
		c.Restrict(only)
		d.commit(tb, c)
	}
}

// matched is how many endpoints hold the whole prompt.
func (d *decider) matched(tb testing.TB) (n int) {
	c := d.begin(tb)
	s := d.app.current.Load().scheduler
	defer s.End(c)
	for _, info := range s.Columns() {
		if info.DataType != scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]() {
			continue
		}
		column := scheduling.ColumnAt[scheduling.PrefixCacheMatchInfo](c, info)
		for ordinal := range decisionEndpoints {
			if m, ok := column.Get(ordinal); ok && m.CachedBlockCount == decisionBlocks {
				n++
			}
		}
	}
	return n
}

// begin begins a decision and runs its producers.
func (d *decider) begin(tb testing.TB) *scheduling.Cycle {
	d.request.ID++
	s := d.app.current.Load().scheduler
	c := s.Begin(d.app.pool.Snapshot(), &d.request, d.app.now())
	s.Produce(tb.Context(), c)
	return c
}

// commit decides, charges the pick, and ends the request as an engine that had everything cached would.
func (d *decider) commit(tb testing.TB, c *scheduling.Cycle) (decided time.Time) {
	s := d.app.current.Load().scheduler
	f, err := s.Commit(c)
	s.End(c)
	if err != nil {
		tb.Fatal(err)
	}
	decided = time.Now()
	now := d.app.now()
	f.FirstToken(now)
	n := len(d.request.Tokens)
	f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{
		PromptTokens: n, CompletionTokens: 1, CachedTokens: (n - 1) / engines.BlockTokens * engines.BlockTokens,
	}}, now)
	return decided
}

// BenchmarkDecision is a decision over 512 endpoints for a prompt of 256 blocks with every plugin of the default profile.
// ns/op is a whole request: producers, decision, charge, record, release. parts tells it apart: produce-ns are the
// producers' look-ups, commit-ns what fills the ledger's columns, filters, scores, picks, charges and records, end-ns the
// release.
func BenchmarkDecision(b *testing.B) {
	for _, index := range []string{"approx", "precise"} {
		for _, holders := range []int{64, decisionEndpoints} {
			d := newDecider(b, index == "precise", holders)
			name := fmt.Sprintf("index=%s/holders=%d", index, holders)
			b.Run(name+"/request", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					d.commit(b, d.begin(b))
				}
			})
			b.Run(name+"/parts", func(b *testing.B) {
				var produce, commit, end time.Duration
				for b.Loop() {
					begin := time.Now()
					c := d.begin(b)
					produced := time.Now()
					decided := d.commit(b, c)
					end += time.Since(decided)
					produce += produced.Sub(begin)
					commit += decided.Sub(produced)
				}
				for unit, sum := range map[string]time.Duration{"produce-ns": produce, "commit-ns": commit, "end-ns": end} {
					b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), unit)
				}
			})
		}
	}
}

// A decision allocates nothing, and neither does what a pick leaves behind.
func TestAllocationsOfADecision(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random")
	}
	for _, index := range []string{"approx", "precise"} {
		d := newDecider(t, index == "precise", 64)
		run := func() { d.commit(t, d.begin(t)) }
		for range 200 {
			run() // until every pool is filled
		}
		// The engines' pages are read meanwhile, in the same process: one of many short runs is not disturbed by that.
		least := math.Inf(1)
		for try := 0; least > 0 && try < 200; try++ {
			least = min(least, testing.AllocsPerRun(50, run))
		}
		if least > 0 {
			t.Errorf("%s: %g allocations a decision, want none", index, least)
		}
	}
}
