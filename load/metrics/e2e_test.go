package metrics_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

// newEngine starts a simulated engine on loopback.
func newEngine(t *testing.T) *engine.Server {
	t.Helper()
	s, err := engine.New(engine.Config{Adapters: []string{"sql"}, Params: sim.Params{BlockSize: 32, NumBlocks: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// eventually waits until ok says so, by real time: there are real sockets in between.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// TestSimulatedEngines reads real servers over real connections: one that answers, one whose page hangs, one that
// answers with HTML, and a port that nobody listens on.
func TestSimulatedEngines(t *testing.T) {
	good, hanging, html := newEngine(t), newEngine(t), newEngine(t)
	if err := hanging.SetFaults(engine.Faults{MetricsDelayMs: 60_000}); err != nil {
		t.Fatal(err)
	}
	if err := html.SetFaults(engine.Faults{MetricsHTML: true}); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	closed, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	closed.Close()

	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	store := metrics.NewStore(metrics.Options{Now: now})
	cfg := schedtest.Config([]scheduling.Spec{{Name: metrics.TypeName, Type: metrics.TypeName,
		Decode: schedtest.YAML("{scrapeInterval: 20ms, scrapeTimeout: 100ms}")}}, schedtest.First.Type)
	s, err := scheduling.Build(append(store.Types(), schedtest.First), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool := scheduling.NewPool()
	t.Cleanup(pool.Watch(s.SnapshotChanged))
	pool.Update([]scheduling.EndpointSpec{
		{Address: good.Addr().String()}, {Address: hanging.Addr().String()}, {Address: html.Addr().String()}, {Address: nobody},
	})

	eventually(t, "every result", func() bool {
		return store.Scrapes(metrics.ResultOK) > 0 && store.Scrapes(metrics.ResultTimeout) > 0 &&
			store.Scrapes(metrics.ResultUnknownPage) > 0 && store.Scrapes(metrics.ResultUnreachable) > 0
	})
	if size, blocks, ok := store.CacheConfig(0, 1); !ok || size != 32 || blocks != 4096 {
		t.Errorf("cache of the good one: %d blocks of %d, %v", blocks, size, ok)
	}
	r, _ := store.Reading(0, 1)
	const all = scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage | scheduling.MetricsAdapters
	if r.Load.Known != all || r.Sleep != metrics.Awake || r.StartTime == 0 || r.PrefixQueries != 0 {
		t.Errorf("reading of the good one: %+v", r)
	}
	for ordinal := 1; ordinal < 4; ordinal++ {
		if r, ok := store.Reading(ordinal, uint64(ordinal+1)); ok {
			t.Errorf("endpoint %d is read as %+v", ordinal, r)
		}
	}

	// What runs on the engine shows.
	body := `{"model":"sql","prompt":"` + strings.Repeat("word ", 400) + `","max_tokens":20000,"stream":true}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, good.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	eventually(t, "the request on the page", func() bool {
		r, _ := store.Reading(0, 1)
		return r.Load.Running == 1 && r.Load.KVUsage > 0 && len(r.Adapters.Running) == 1 && r.Adapters.Running[0] == "sql"
	})

	// And an engine that recovers is known again.
	if err := html.SetFaults(engine.Faults{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the HTML one after it recovered", func() bool { _, ok := store.Reading(2, 3); return ok })
}
