package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/extproc"
	"github.com/sluice-epp/sluice/server/operator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a page over decisions that a test makes, and endpoints of which it says what is known.
type stage struct {
	page      *Page
	table     *schedtest.Table
	scheduler *scheduling.Scheduler
	pool      *scheduling.Pool
	ring      *decisions.Ring
	registry  *prometheus.Registry
	id        uint64

	mu      sync.Mutex // guards what follows
	process Process
	known   []*schedulerv1.Endpoint
	indices []*schedulerv1.IndexStats
	version string
	renders int
}

func newStage(t testing.TB, endpoints int) *stage {
	t.Helper()
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, endpoints)}
	for i := range table.Endpoints {
		e := &table.Endpoints[i]
		cached := max(0, 90-40*i)
		e.Load = &scheduling.InFlightLoad{Requests: 1, Tokens: 100}
		e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, 100, 16))
		e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - cached)))
	}
	types := append(append(scorer.Types(), picker.Types()...), gate.Type())
	s := &stage{table: table, registry: prometheus.NewRegistry(), version: "v1.2.3", process: Process{State: "ready", Uptime: time.Hour, OpenStreams: 7}}
	s.scheduler = table.Build(t, types, []scheduling.Spec{
		{Name: schedtest.LatencyType, Type: schedtest.LatencyType},
		{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0, penaltyMode: matchedTokens}")},
	},
		"gate", "prefill-cost-scorer", "max-score-picker")
	s.scheduler.SetConfigHash("abc")
	s.pool = table.Pool()
	s.ring = decisions.NewRing(decisions.Options{MaxBytes: 64 << 20, Now: time.Now})
	server := extproc.New(extproc.Config{
		Pool: s.pool, Scheduler: func() *scheduling.Scheduler { return s.scheduler }, Now: func() time.Duration { return 0 }, MaxRequestBodyBytes: 2 * MaxTrialBytes,
	})
	t.Cleanup(server.Close)
	service := operator.New(operator.Config{Decisions: s.ring, DryRun: server.DryRun})
	t.Cleanup(service.Close)
	for i := range endpoints {
		s.known = append(s.known, &schedulerv1.Endpoint{
			Address: s.pool.Snapshot().Endpoints[i].Address, Ordinal: uint32(i), State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
			InFlight: &decisionv1.InFlightLoad{Requests: 2, Tokens: int64(1000 * (i % 10)), Decoding: 1},
			EngineMetrics: &decisionv1.EngineMetrics{
				Waiting: ref(float64(i % 3)), Running: ref(4.0), KvUsage: ref(0.42),
			},
			Caches: []*schedulerv1.CacheKnowledge{{Producer: "approx", Blocks: uint64(100 + i), BlockSizeTokens: 16}},
		})
	}
	s.indices = []*schedulerv1.IndexStats{{Producer: "approx", Type: "approx-prefix-cache-producer", Entries: 1234, HolderEntries: 2345, Bytes: 3 << 20, Evicted: 17}}
	s.page = New(Config{Explainer: service, Knowledge: s, Decisions: s.ring, Process: s.now, Registerer: s.registry})
	t.Cleanup(s.page.Close)
	return s
}

func ref[T any](v T) *T { return &v }

func (s *stage) now() Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// change changes what the stage knows.
func (s *stage) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// ListEndpoints implements Knowledge.
func (s *stage) ListEndpoints(context.Context, *schedulerv1.ListEndpointsRequest) (*schedulerv1.ListEndpointsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renders++
	return &schedulerv1.ListEndpointsResponse{Endpoints: s.known}, nil
}

// GetIndexStats implements Knowledge.
func (s *stage) GetIndexStats(context.Context, *schedulerv1.GetIndexStatsRequest) (*schedulerv1.GetIndexStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &schedulerv1.GetIndexStatsResponse{Indices: s.indices}, nil
}

// GetConfig implements Knowledge.
func (s *stage) GetConfig(context.Context, *schedulerv1.GetConfigRequest) (*schedulerv1.GetConfigResponse, error) {
	return &schedulerv1.GetConfigResponse{Hash: "abc", Version: s.version, Since: timestamppb.New(time.Unix(1_700_000_000, 0))}, nil
}

// decide decides about a request and returns the decision's id.
func (s *stage) decide(t testing.TB, model, requestID string, ends bool) uint64 {
	t.Helper()
	s.id++
	c := s.scheduler.Begin(s.pool.Snapshot(), &scheduling.Request{
		ID: s.id, Model: model, Choices: 1, Headers: []scheduling.Header{{Name: "x-request-id", Value: []byte(requestID)}},
	}, 0)
	s.scheduler.Produce(context.Background(), c)
	f, err := s.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	s.ring.Picked(c, nil, 0)
	s.scheduler.End(c)
	o := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 1600, CachedTokens: 1440, CompletionTokens: 9}}
	if ends {
		s.ring.Ended(f, o, 20*time.Millisecond, time.Second)
	}
	f.Done(o, 0)
	return s.id
}

// get asks the page as a browser on the same machine does.
func (s *stage) get(t testing.TB, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	return s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:9090"+path, nil), headers...)
}

func (s *stage) post(t testing.TB, path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:9090"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.do(r, headers...)
}

func (s *stage) do(r *http.Request, headers ...string) *httptest.ResponseRecorder {
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	return w
}

// BenchmarkState measures a state of which every endpoint's load and every shown decision is new, and what a reader is sent
// of it.
func BenchmarkState(b *testing.B) {
	for _, endpoints := range []int{8, 512} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			s := newStage(b, endpoints)
			before := s.page.look(nil)
			before.steps = map[uint64][]byte{}
			sent, n := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				n++
				for range shownDecisions {
					s.decide(b, "model", "request", true)
				}
				for i, e := range s.known {
					e.InFlight.Tokens = int64((i*7919 + n*104729) % 10_000)
				}
				b.StartTimer()
				after := s.page.look(before)
				after.seq, after.steps = before.seq+1, map[uint64][]byte{}
				update, err := after.step(before)
				if err != nil {
					b.Fatal(err)
				}
				sent += len(update)
				before = after
			}
			b.ReportMetric(float64(sent)/float64(n), "bytes/update")
			whole, err := before.step(nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(whole)), "bytes/whole")
		})
	}
}
