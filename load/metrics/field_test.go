package metrics_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/tokens"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// pages answers for every engine; nil hangs, and a host without an entry refuses connections.
type pages struct {
	mu     sync.Mutex
	byHost map[string]*string
}

func (p *pages) set(host string, page *string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byHost[host] = page
}

func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	page, ok := p.byHost[r.URL.Host]
	p.mu.Unlock()
	switch {
	case !ok:
		return nil, fmt.Errorf("dial %s: connection refused", r.URL.Host)
	case page == nil:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, ContentLength: int64(len(*page)), Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(*page))}, nil
}

// process is Sluice without its sockets: the queue, the cache usage and the ledger decide.
type process struct {
	*testing.T
	*pages
	now       func() time.Duration
	pool      *scheduling.Pool
	store     *metrics.Store
	scheduler *scheduling.Scheduler
	requests  uint64
}

func run(t *testing.T, f func(p *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := &process{T: t, pages: &pages{byHost: map[string]*string{}}, pool: scheduling.NewPool(),
			now: func() time.Duration { return time.Since(start) }}
		p.store = metrics.NewStore(metrics.Options{Now: p.now, Transport: p.pages})
		types := append(p.store.Types(), tokens.Type(tokens.Options{}), ledger.Type(),
			approx.NewFamily(approx.Options{CacheConfig: p.store, Needs: p.store.Need, Seed: blockhash.SeedOf("test")}).Type())
		types = append(append(types, scorer.Types()...), picker.Types()...)
		cfg := scheduling.Config{ProfileName: "test", MaxPicks: 1}
		for _, name := range []string{"queue-scorer", "kv-cache-utilization-scorer", "token-load-scorer", "max-score-picker"} {
			cfg.Profile = append(cfg.Profile, scheduling.Ref{Name: name, Weight: 1, Path: name})
		}
		s, err := scheduling.Build(types, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.scheduler = s
		unwatch := p.pool.Watch(s.SnapshotChanged)
		f(p)
		unwatch()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (p *process) endpoints(hosts ...string) {
	specs := make([]scheduling.EndpointSpec, len(hosts))
	for i, h := range hosts {
		specs[i].Address = h
	}
	p.pool.Update(specs)
}

// send picks for n requests of 250 tokens each, all in flight at once, and returns how many each endpoint got; then it
// ends them.
func (p *process) send(n int) map[string]int {
	p.Helper()
	shares := map[string]int{}
	flights := make([]*scheduling.Flight, 0, n)
	for range n {
		p.requests++
		body := fmt.Appendf(nil, "%d %s", p.requests, strings.Repeat("x", 1000))
		c := p.scheduler.Begin(p.pool.Snapshot(), &scheduling.Request{
			ID: p.requests, Choices: 1, Body: body, Prompt: []scheduling.Span{{Start: 0, End: len(body)}}, PromptBytes: len(body),
		}, p.now())
		p.scheduler.Produce(p.Context(), c)
		for _, fault := range c.Faults {
			p.Errorf("%s: %v", fault.Producer, fault.Err)
		}
		f, err := p.scheduler.Commit(c)
		if err != nil {
			p.Fatal(err)
		}
		p.scheduler.End(c)
		shares[f.Endpoint.Address]++
		flights = append(flights, f)
	}
	for _, f := range flights {
		f.Done(scheduling.Outcome{Status: http.StatusOK}, p.now())
	}
	return shares
}

func (p *process) wantFair(shares map[string]int, hosts ...string) {
	p.Helper()
	n := 0
	for _, k := range shares {
		n += k
	}
	for _, h := range hosts {
		if fair := float64(n) / float64(len(hosts)); float64(shares[h]) < 0.8*fair || float64(shares[h]) > 1.2*fair {
			p.Errorf("%s got %d of %d: %v", h, shares[h], n, shares)
		}
	}
}

const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"

const (
	queue    = "vllm:num_requests_waiting 2\n"
	others   = "vllm:num_requests_running 5\nvllm:kv_cache_usage_perc 0.4\n"
	adapters = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"sql\",waiting_lora_adapters=\"\"} 17\n"
)

var busy = queue + others + adapters

// TestC10_UnknownIsNeitherIdleNorBusy has A report its load, C hang, and B join this moment.
func TestC10_UnknownIsNeitherIdleNorBusy(t *testing.T) {
	t.Parallel()
	run(t, func(p *process) {
		p.set(a, &busy)
		p.set(b, &busy)
		p.set(c, nil)
		p.endpoints(a, c)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		p.endpoints(a, c, b)
		if m, ok := p.store.Reading(0, 1); !ok || m.Load.Waiting != 2 {
			t.Fatalf("A is read as %+v, %v", m, ok)
		}
		for ordinal, generation := range map[int]uint64{1: 2, 2: 3} {
			if m, ok := p.store.Reading(ordinal, generation); ok {
				t.Fatalf("endpoint %d is read as %+v", ordinal, m)
			}
		}
		p.wantFair(p.send(100), a, b, c)
	})
}

func TestC10_AllUnknownFallBackToTheLedger(t *testing.T) {
	t.Parallel()
	run(t, func(p *process) {
		p.set(a, nil)
		p.set(b, nil)
		p.endpoints(a, b, c)
		time.Sleep(10 * time.Second)
		p.wantFair(p.send(99), a, b, c)
	})
}

func TestC10_PoolOfOneIsServedOnAnOldScrape(t *testing.T) {
	t.Parallel()
	run(t, func(p *process) {
		p.set(a, &busy)
		p.endpoints(a)
		time.Sleep(time.Second)
		synctest.Wait()
		p.set(a, nil)
		for _, age := range []time.Duration{3 * time.Second, time.Minute} {
			time.Sleep(age)
			if got := p.send(10)[a]; got != 10 {
				t.Errorf("%v later: %d of 10 served", age, got)
			}
		}
	})
}

// TestC10_MissingMetricCostsNothingElse takes the adapters, then the queue, off A's page.
func TestC10_MissingMetricCostsNothingElse(t *testing.T) {
	t.Parallel()
	run(t, func(p *process) {
		p.endpoints(a)
		for _, tc := range []struct {
			page string
			want scheduling.EngineMetrics
		}{
			{busy, scheduling.EngineMetrics{Known: 15, Waiting: 2, Running: 5, KVUsage: 0.4, Adapters: 1, MaxAdapters: 2}},
			{queue + others, scheduling.EngineMetrics{Known: 7, Waiting: 2, Running: 5, KVUsage: 0.4}},
			{others + adapters, scheduling.EngineMetrics{Known: 14, Running: 5, KVUsage: 0.4, Adapters: 1, MaxAdapters: 2}},
		} {
			p.set(a, &tc.page)
			time.Sleep(time.Second)
			synctest.Wait()
			r, ok := p.store.Reading(0, 1)
			if diff := cmp.Diff(tc.want, r.Load); diff != "" || !ok {
				t.Errorf("%s(-want +got):\n%s", tc.page, diff)
			}
			if got := p.send(10)[a]; got != 10 {
				t.Errorf("%d of 10 served", got)
			}
		}
	})
}

// TestC10_HTMLChangesNothing has one of two engines answer with a page of HTML and status 200.
func TestC10_HTMLChangesNothing(t *testing.T) {
	t.Parallel()
	html := "<!DOCTYPE html>\n<html><head><title>vllm:num_requests_waiting 0</title></head>\n<body>\nIt works\n</body></html>\n"
	run(t, func(p *process) {
		p.set(a, &busy)
		p.set(b, &busy)
		p.endpoints(a, b)
		time.Sleep(time.Second)
		synctest.Wait()
		p.set(b, &html)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		before, _ := p.store.Reading(0, 1)
		after, ok := p.store.Reading(1, 2)
		if diff := cmp.Diff(before.Load, after.Load); diff != "" || !ok {
			t.Errorf("B's load, which was A's (-A +B):\n%s", diff)
		}
		if p.store.Scrapes(metrics.ResultUnknownPage) == 0 {
			t.Error("the HTML pages were not counted")
		}
		p.wantFair(p.send(100), a, b)
		time.Sleep(30 * time.Second) // B is stale now
		p.wantFair(p.send(100), a, b)
	})
}

// TestAutoTuneLearnsFromThePages has the prefix index take its block size from what the engines say.
func TestAutoTuneLearnsFromThePages(t *testing.T) {
	t.Parallel()
	page := busy + "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"1000\"} 1\n"
	run(t, func(p *process) {
		p.set(a, &page)
		p.endpoints(a)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		body := []byte(strings.Repeat("x", 1280))
		cycle := p.scheduler.Begin(p.pool.Snapshot(), &scheduling.Request{
			ID: 1, Choices: 1, Body: body, Prompt: []scheduling.Span{{Start: 0, End: len(body)}}, PromptBytes: len(body)}, p.now())
		defer p.scheduler.End(cycle)
		p.scheduler.Produce(t.Context(), cycle)
		info, ok := scheduling.ColumnOf[scheduling.PrefixCacheMatchInfo](cycle).Get(0)
		if !ok || info.BlockSizeTokens != 32 || info.TotalBlocks != 10 {
			t.Errorf("match info %+v, %v; want 10 blocks of 32 tokens", info, ok)
		}
	})
}
