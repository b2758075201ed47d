package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/credentials/insecure"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/config"
)

const enginePage = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 21.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1000"} 1.0
`

// What is known of an endpoint, the engine's own word, the ledger's and the index's, is listed; what is not known is absent, and
// what is too old says so.
func TestEndpointsOverTheAdminPort(t *testing.T) {
	var gone, asleep atomic.Bool
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if gone.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, enginePage)
		if asleep.Load() {
			_, _ = io.WriteString(w, "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n")
		}
	}))
	defer engine.Close()
	address := strings.TrimPrefix(engine.URL, "http://")
	p := launch(t, `plugins:
  - type: engine-metrics-producer
    parameters: {scrapeInterval: 50ms, stalenessThreshold: 100ms}
  - type: approx-prefix-cache-producer
  - type: inflight-load-producer
  - type: queue-scorer
  - type: prefix-cache-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: queue-scorer
      - pluginRef: prefix-cache-scorer
      - pluginRef: max-score-picker
`, func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) {
			c.Endpoints = []string{address + ",name=warm,label.zone=a", "127.0.0.1:1"}
			before(c)
		}
	})
	o := p.operator(t, insecure.NewCredentials())
	list := func() []*schedulerv1.Endpoint {
		a, err := o.ListEndpoints(t.Context(), &schedulerv1.ListEndpointsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return a.GetEndpoints()
	}
	waitFor(t, func() bool { return list()[0].GetEngineMetrics() != nil })
	open := p.duplex(t)
	sendTo(t, open, requestBody(chatAbout("hello"), true))
	if _, err := open.Recv(); err != nil {
		t.Fatal(err)
	}
	all := list()
	warm, other := all[0], all[1]
	if len(all) != 2 || warm.GetAddress() != address || warm.GetName() != "warm" || warm.GetLabels()["zone"] != "a" ||
		warm.GetState() != decisionv1.EndpointState_ENDPOINT_STATE_READY || warm.GetOrdinal() != 0 || warm.GetGeneration() == 0 {
		t.Errorf("%v", all)
	}
	m := warm.GetEngineMetrics()
	if m.GetWaiting() != 4 || m.GetRunning() != 21 || m.GetKvUsage() != 0.25 || m.GetAgeMs() < 0 || warm.GetAsleep() {
		t.Errorf("%v", m)
	}
	if other.GetEngineMetrics() != nil || other.GetRates() != nil || warm.GetRates() != nil {
		t.Errorf("what is not known is told: %v", all)
	}
	if n := warm.GetInFlight().GetRequests() + other.GetInFlight().GetRequests(); n != 1 {
		t.Errorf("%d requests are in flight", n)
	}
	blocks := uint64(0)
	for _, e := range all {
		c := e.GetCaches()
		if len(c) != 1 || c[0].GetProducer() != "approx-prefix-cache-producer" || c[0].GetBlockSizeTokens() != 32 {
			t.Fatalf("caches: %v", c)
		}
		blocks += c[0].GetBlocks()
	}
	s, err := o.GetIndexStats(t.Context(), &schedulerv1.GetIndexStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if x := s.GetIndices(); len(x) != 1 || x[0].GetType() != "approx-prefix-cache-producer" || x[0].GetEntries() == 0 || x[0].GetBytes() == 0 || blocks < 10 {
		t.Errorf("%v; %d blocks", x, blocks)
	}
	// The engine says how much was cached of what was sent to it twice.
	for i, cached := range []int{0, 32} {
		s := p.duplex(t)
		sendTo(t, s, requestBody(chatAbout("rivers"), true))
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		answer(t, s, cached)
		waitFor(t, func() bool {
			s, err := o.GetIndexStats(t.Context(), &schedulerv1.GetIndexStatsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return s.GetIndices()[0].GetAudited() == uint64(i)+1
		})
	}
	audited := uint64(0)
	for _, e := range list() {
		c := e.GetCaches()[0]
		if audited += c.GetAudited(); (c.FalseHitRate == nil) != (c.GetAudited() == 0) {
			t.Errorf("%v", c)
		}
		if c.GetAudited() == 2 && c.GetFalseHitRate() != 0.5 { // less than the whole prompt
			t.Errorf("%v", c)
		}
	}
	if audited != 2 {
		t.Errorf("%d answers were audited", audited)
	}
	asleep.Store(true)
	waitFor(t, func() bool { e := list(); return e[0].GetAsleep() && !e[1].GetAsleep() })
	gone.Store(true)
	waitFor(t, func() bool { e := list()[0]; return e.GetMetricsStale() && e.GetEngineMetrics().GetAgeMs() > 100 })
	if err := open.CloseSend(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return list()[0].GetInFlight().GetRequests()+list()[1].GetInFlight().GetRequests() == 0 })
}

func chatAbout(word string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(word+" ", 400) + `"}]}`
}

// answer plays the rest of a request: an answer of which the engine counts so many prompt tokens as cached.
func answer(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient, cached int) {
	t.Helper()
	sendTo(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(":status", "200", "content-type", "application/json")}}})
	sendTo(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
		EndOfStream: true, Body: fmt.Appendf(nil, `{"usage":{"prompt_tokens":700,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, cached)}}})
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}
