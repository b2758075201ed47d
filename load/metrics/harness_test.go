package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// answer is what an engine does with a request; the zero value refuses the connection.
type answer struct {
	do func(*http.Request) (*http.Response, error)
}

// ask is one request for a page.
type ask struct {
	host string
	path string
	at   time.Duration
}

// engines stands in for the network and the engines behind it. What an engine answers is set per host; one without an
// answer refuses connections.
type engines struct {
	now func() time.Duration

	mu      sync.Mutex
	answers map[string]answer
	asks    []ask
	open    map[string]int // by host
	most    int            // open at once on one host
	total   int            // open now, on all
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	host := r.URL.Host
	e.mu.Lock()
	e.asks = append(e.asks, ask{host, r.URL.Path, e.now()})
	e.open[host]++
	e.total++
	e.most = max(e.most, e.open[host])
	reply := e.answers[host].do
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.open[host]--
		e.total--
	}()
	if reply == nil {
		return nil, fmt.Errorf("dial %s: connection refused", host)
	}
	return reply(r)
}

func (e *engines) set(host string, reply answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[host] = reply
}

// asked are the times at which a host was asked.
func (e *engines) asked(host string) (times []time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.asks {
		if a.host == host {
			times = append(times, a.at)
		}
	}
	return times
}

func (e *engines) all() []ask {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asks)
}

func (e *engines) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asks = nil
}

func response(status int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: status, ContentLength: -1, Body: io.NopCloser(body), Header: http.Header{}}
}

// text answers with a page at once.
func text(page string) answer { return body(http.StatusOK, strings.NewReader(page)) }

// body answers with whatever can be read; with a string again and again.
func body(status int, r io.Reader) answer {
	return answer{func(*http.Request) (*http.Response, error) {
		if s, ok := r.(*strings.Reader); ok {
			return response(status, io.NewSectionReader(s, 0, s.Size())), nil
		}
		return response(status, r), nil
	}}
}

// slow answers with a page after a while.
func slow(page string, after time.Duration) answer {
	return answer{func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(after):
			return response(http.StatusOK, strings.NewReader(page)), nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}}
}

// hang accepts and never answers.
var hang = answer{func(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}}

func load(waiting, running int, usage float64) string {
	return fmt.Sprintf("vllm:num_requests_waiting %d\nvllm:num_requests_running %d\nvllm:kv_cache_usage_perc %v\n", waiting, running, usage)
}

// world is a process in a synctest bubble: engines, a pool, a store and a scheduler.
type world struct {
	*testing.T
	*engines
	pool      *scheduling.Pool
	store     *Store
	registry  *prometheus.Registry
	types     []scheduling.PluginType
	scheduler *scheduling.Scheduler
	unwatch   func()
	requests  uint64
}

// consumer is a plugin that reads the EngineMetrics column, as a scorer does.
type consumer struct {
	key  scheduling.Key[scheduling.EngineMetrics]
	seen map[int]scheduling.EngineMetrics // of the last request
}

const (
	consumerType = "consumer"
	infoUserType = "info-user"
)

func (c *consumer) Score(cycle *scheduling.Cycle, candidates scheduling.Set, _ []float64) {
	c.seen = map[int]scheduling.EngineMetrics{}
	column := c.key.In(cycle)
	for i := range candidates.All() {
		if m, ok := column.Get(i); ok {
			c.seen[i] = m
		}
	}
}

// infoUser is a plugin that needs the store, as the prefix index does.
type infoUser struct{}

func (infoUser) Produce(context.Context, *scheduling.Cycle) error { return nil }

func newWorld(t *testing.T) *world {
	t.Helper()
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	w := &world{T: t, pool: scheduling.NewPool(), registry: prometheus.NewRegistry(), engines: &engines{
		now: now, answers: map[string]answer{}, open: map[string]int{},
	}}
	w.store = NewStore(Options{Now: now, Transport: w.engines, Registerer: w.registry})
	w.types = append(w.store.Types(), schedtest.First,
		scheduling.PluginType{Type: consumerType, New: func(b *scheduling.Builder) (any, error) {
			return &consumer{key: scheduling.ConsumeColumn[scheduling.EngineMetrics](b, "metrics", "")}, nil
		}},
		scheduling.PluginType{Type: infoUserType, New: func(b *scheduling.Builder) (any, error) {
			w.store.Need(b)
			return infoUser{}, nil
		}})
	return w
}

func config(parameters string, withInfo bool) scheduling.Config {
	plugins := []scheduling.Spec{{Name: TypeName, Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}}
	if withInfo {
		plugins = append(plugins, scheduling.Spec{Name: infoUserType, Type: infoUserType})
	}
	return schedtest.Config(plugins, consumerType, schedtest.First.Type)
}

// configure puts a configuration in force, in place of the one before.
func (w *world) configure(cfg scheduling.Config) {
	w.Helper()
	next, err := scheduling.Build(w.types, cfg, w.scheduler)
	if err != nil {
		w.Fatal(err)
	}
	before, unwatch := w.scheduler, w.unwatch
	w.scheduler, w.unwatch = next, w.pool.Watch(next.SnapshotChanged)
	if before != nil {
		unwatch()
		w.close(before)
	}
}

func (w *world) close(s *scheduling.Scheduler) {
	w.Helper()
	if err := s.Close(); err != nil {
		w.Error(err)
	}
}

// end closes the scheduler; a bubble must be left without goroutines.
func (w *world) end() {
	w.Helper()
	w.unwatch()
	w.close(w.scheduler)
}

// endpoints makes n endpoints the pool; the first are 10.0.0.1:8000, 10.0.0.2:8000 and so on.
func (w *world) endpoints(n int) []string {
	hosts := make([]string, n)
	specs := make([]scheduling.EndpointSpec, n)
	for i := range specs {
		hosts[i] = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
		specs[i].Address = hosts[i]
	}
	w.pool.Update(specs)
	return hosts
}

// pick runs one request and leaves it in flight.
func (w *world) pick() *scheduling.Flight {
	w.Helper()
	w.requests++
	c := w.scheduler.Begin(w.pool.Snapshot(), &scheduling.Request{ID: w.requests, Choices: 1, PromptBytes: 400}, w.now())
	w.scheduler.Produce(w.Context(), c)
	f, err := w.scheduler.Commit(c)
	if err != nil {
		w.Fatal(err)
	}
	w.scheduler.End(c)
	return f
}

// see is what a request sees in the EngineMetrics column.
func (w *world) see() map[int]scheduling.EngineMetrics {
	w.Helper()
	w.pick().Done(scheduling.Outcome{}, w.now())
	c, _ := w.scheduler.Plugin(consumerType).(*consumer)
	return c.seen
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f(w)
		w.end()
		synctest.Wait()
		if w.total != 0 {
			t.Errorf("%d requests outlive the plugins", w.total)
		}
	})
}
