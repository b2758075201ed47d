package engine

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-epp/sluice/sim"
)

// eventually polls until the condition holds; it is for states that another process brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// scrape reads /metrics with the Prometheus parser, keyed by name and labels.
func scrape(t testing.TB, s *Server) map[string]float64 {
	t.Helper()
	a := get(t, s, "/metrics")
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(a.body)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if h := m.Histogram; h != nil {
				out[key+" count"], out[key+" sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
			}
		}
	}
	return out
}

const vllmLabels = "{engine=0,model_name=m}"

func TestMetrics(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Models: []string{"m", "alias"}, Adapters: []string{"sql", "chat"}, Params: sim.Params{NumBlocks: 4096}})
	prompt := strings.Repeat("1,", 99) + "1"
	for range 2 {
		post(t, s, "/v1/completions", `{"model":"alias","prompt":[`+prompt+`],"max_tokens":11}`)
	}
	m := scrape(t, s)
	want := map[string]float64{
		"vllm:num_requests_running":                            0,
		"vllm:num_requests_waiting":                            0,
		"vllm:kv_cache_usage_perc":                             0,
		"vllm:prefix_cache_queries_total":                      200,
		"vllm:prefix_cache_hits_total":                         96,
		"vllm:num_preemptions_total":                           0,
		"vllm:prompt_tokens_total":                             200,
		"vllm:generation_tokens_total":                         22,
		"vllm:time_to_first_token_seconds count":               2,
		"vllm:request_prefill_time_seconds count":              2,
		"vllm:request_queue_time_seconds count":                2,
		"vllm:request_decode_time_seconds count":               2,
		"vllm:e2e_request_latency_seconds count":               2,
		"vllm:request_time_per_output_token_seconds count":     2,
		"vllm:request_success_total{reason}":                   2,
		"vllm:cache_config_info{block_size,num_gpu_blocks...}": 1,
	}
	got := map[string]float64{}
	for key := range want {
		name, rest, _ := strings.Cut(key, " ")
		got[key] = m[strings.TrimSpace(name+vllmLabels+" "+rest)]
	}
	got["vllm:request_success_total{reason}"] = m["vllm:request_success_total{engine=0,finished_reason=length,model_name=m}"]
	got["vllm:cache_config_info{block_size,num_gpu_blocks...}"] =
		m["vllm:cache_config_info{block_size=16,cache_dtype=auto,enable_prefix_caching=True,engine=0,num_gpu_blocks=4096,prefix_caching_hash_algo=xxh3}"]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if start := m["process_start_time_seconds{}"]; time.Since(time.Unix(int64(start), 0)) > time.Minute {
		t.Errorf("process started at %v", start)
	}
}

// A running request shows on the metrics page with its adapter; a client that goes away takes its
// request with it and frees its blocks.
func TestC01_ClientDisconnectAborts(t *testing.T) {
	s := startServer(t, Config{Speed: 1, Models: []string{"m"}, Adapters: []string{"sql"}, Params: sim.Params{MaxSeqs: 1}})
	body := obj{"model": "sql", "prompt": story, "max_tokens": 20_000, "stream": true}
	ctx, cancel := context.WithCancel(t.Context())
	res, err := http.DefaultClient.Do(request(t, s, http.MethodPost, "/v1/completions", body).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("first line %q, %v", line, err)
	}
	// A second request waits behind the first; its client leaves before it was admitted.
	ctx2, cancel2 := context.WithCancel(t.Context())
	left := make(chan error, 1)
	second := request(t, s, http.MethodPost, "/v1/completions", obj{"prompt": story})
	go func() {
		res, err := http.DefaultClient.Do(second.WithContext(ctx2))
		if err == nil {
			res.Body.Close()
		}
		left <- err
	}()
	eventually(t, "one running, one waiting", func() bool {
		m := scrape(t, s)
		lora := false
		for k, v := range m {
			lora = lora || k == "vllm:lora_requests_info{max_lora=1,running_lora_adapters=sql,waiting_lora_adapters=}" && v > 0
		}
		return lora && m["vllm:num_requests_running"+vllmLabels] == 1 && m["vllm:num_requests_waiting"+vllmLabels] == 1 &&
			m["vllm:kv_cache_usage_perc"+vllmLabels] > 0
	})
	if a := post(t, s, "/reset_prefix_cache", ""); string(a.body) != `{"success":false}` {
		t.Errorf("reset while running answers %s", a.body)
	}
	cancel2()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("second request ended with %v", err)
	}
	cancel()
	eventually(t, "both aborted", func() bool {
		st := s.Stats()
		return st.Aborted == 2 && st.Running+st.Waiting == 0 && st.FreeBlocks == st.TotalBlocks
	})
}

func TestQueueFullAnswers503(t *testing.T) {
	s := startServer(t, Config{Speed: 1, Params: sim.Params{MaxWaiting: 2, MaxSeqs: 1}})
	// Three sequences of one request need three places in the queue; none of them may stay.
	a := post(t, s, "/v1/completions", `{"prompt":[1,2],"n":3}`)
	if a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "maxWaiting is 2") {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	if st := s.Stats(); st.Waiting+st.Running != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

// Time passes as modelled, divided by the speed: 8,192 cold tokens take 0.514 s, here 51.4 ms, and
// the same prompt again takes only what its last block costs.
func TestSpeedScalesTime(t *testing.T) {
	s := startServer(t, Config{Speed: 10, Models: []string{"m"}})
	body := `{"prompt":[` + strings.Repeat("7,", 8191) + `7],"max_tokens":1}`
	start := time.Now()
	post(t, s, "/v1/completions", body)
	if took := time.Since(start); took < 51*time.Millisecond {
		t.Errorf("8192 cold tokens took %v, modelled are 51.4 ms", took)
	}
	post(t, s, "/v1/completions", body)
	sum := scrape(t, s)["vllm:request_prefill_time_seconds"+vllmLabels+" sum"]
	if sum < 0.0514 || sum > 0.0540 {
		t.Errorf("prefill times sum up to %v s, modelled are 51.4 ms and 1.4 ms", sum)
	}
}

func clients(t *testing.T) map[string]*http.Client {
	out := map[string]*http.Client{}
	for name, set := range map[string]func(*http.Protocols){
		"HTTP1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2c":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		var p http.Protocols
		set(&p)
		tr := &http.Transport{Protocols: &p}
		t.Cleanup(tr.CloseIdleConnections)
		out[name] = &http.Client{Transport: tr, Timeout: 20 * time.Second}
	}
	return out
}

func TestHeadersReportWhatArrived(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Name: "pod-7"})
	padding := strings.Repeat("x", 3<<20)
	for name, client := range clients(t) {
		t.Run(name, func(t *testing.T) {
			body := `{"prompt":[1],"max_tokens":2,"stream":true,"padding":"` + padding + `"}`
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/completions", io.MultiReader(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			req.Trailer = http.Header{"X-Check": {"abc"}, "X-Also": {"1"}}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
				t.Errorf("body %q, %v", b, err)
			}
			sum := sha256.Sum256([]byte(body))
			got := map[string]string{}
			for _, h := range []string{"Endpoint", "Method", "Body-Sha256", "Body-Bytes", "Trailers"} {
				got[h] = res.Header.Get("X-Sim-" + h)
			}
			want := map[string]string{
				"Endpoint": "pod-7", "Method": "POST", "Body-Sha256": hex.EncodeToString(sum[:]),
				"Body-Bytes": fmt.Sprint(len(body)), "Trailers": "x-also=1, x-check=abc",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if want := map[string]int{"HTTP1": 1, "h2c": 2}[name]; res.ProtoMajor != want {
				t.Errorf("protocol %s", res.Proto)
			}
		})
	}
	a := get(t, s, "/health")
	if a.status != 200 || len(a.body) != 0 || a.header.Get("X-Sim-Method") != "GET" || a.header.Get("X-Sim-Trailers") != "" {
		t.Errorf("health answers %+v", a)
	}
}

func TestFaultsFailAndMetrics(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	set := post(t, s, "/sim/fault", `{"fail_status":503,"fail_count":2,"metrics_html":true,"metrics_delay_ms":30}`)
	if set.status != 200 {
		t.Fatalf("answer %d %s", set.status, set.body)
	}
	for i, want := range []int{503, 503, 200} {
		if a := post(t, s, "/v1/completions", `{"prompt":[1]}`); a.status != want {
			t.Errorf("request %d: status %d, want %d", i, a.status, want)
		}
		if a := get(t, s, "/v1/models"); a.status != 200 {
			t.Errorf("models fail too: %d", a.status)
		}
	}
	start := time.Now()
	a := get(t, s, "/metrics")
	if took := time.Since(start); took < 30*time.Millisecond || !strings.Contains(a.header.Get("Content-Type"), "text/html") {
		t.Errorf("metrics took %v and are %q", took, a.header.Get("Content-Type"))
	}
	if got := s.Faults(); got != (Faults{FailStatus: 503, MetricsHTML: true, MetricsDelayMs: 30}) {
		t.Errorf("faults in force: %+v", got)
	}
	if err := s.SetFaults(Faults{}); err != nil {
		t.Fatal(err)
	}
	if len(scrape(t, s)) < 20 {
		t.Error("no metrics after the fault was lifted")
	}
	for _, bad := range []string{`{"fail_count":1}`, `{"freze":true}`, `{"metrics_delay_ms":-1}`, `x`} {
		if a := post(t, s, "/sim/fault", bad); a.status != 400 {
			t.Errorf("%s: status %d", bad, a.status)
		}
	}
}

func TestFaultFreeze(t *testing.T) {
	s := startServer(t, Config{Speed: 20})
	res, err := http.DefaultClient.Do(request(t, s, http.MethodPost, "/v1/completions", `{"prompt":[1],"max_tokens":20000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	stream := bufio.NewReader(res.Body)
	if _, err := stream.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := s.SetFaults(Faults{Freeze: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for _, path := range []string{"/health", "/v1/models"} {
		if res, err := http.DefaultClient.Do(request(t, s, http.MethodGet, path, "").WithContext(ctx)); err == nil {
			res.Body.Close()
			t.Errorf("%s answers %d while frozen", path, res.StatusCode)
		}
	}
	done := make(chan int, 1)
	late := request(t, s, http.MethodGet, "/health", "")
	go func() {
		res, err := http.DefaultClient.Do(late)
		if err != nil {
			done <- 0
			return
		}
		res.Body.Close()
		done <- res.StatusCode
	}()
	// What was sent before the freeze may still be on its way; then nothing comes any more.
	read := make(chan error, 1)
	go func() { _, err := io.CopyN(io.Discard, stream, 10<<20); read <- err }()
	select {
	case err := <-read:
		t.Errorf("stream ended while frozen: %v", err)
	case status := <-done:
		t.Errorf("health answered %d while frozen", status)
	case <-time.After(100 * time.Millisecond):
	}
	post(t, s, "/sim/fault", `{}`)
	if status := <-done; status != http.StatusOK {
		t.Errorf("health answers %d after the freeze", status)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err == nil {
		t.Error("the stream does not end with the server")
	}
}

func TestFaultRefuse(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	addr := s.Addr().String()
	if a := post(t, s, "/sim/fault", `{"refuse_ms":600}`); a.status != 200 {
		t.Fatalf("answer %d %s", a.status, a.body)
	}
	if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		if c != nil {
			_ = c.Close()
		}
		t.Errorf("dial: error = %v, want connection refused", err)
	}
	eventually(t, "accepts again", func() bool {
		res, err := http.DefaultClient.Do(request(t, s, http.MethodGet, "/health", ""))
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if s.Addr().String() != addr {
		t.Errorf("address changed from %s to %s", addr, s.Addr())
	}
	// Close in the middle of a refusal ends it.
	if err := s.SetFaults(Faults{RefuseMs: 60_000}); err != nil {
		t.Fatal(err)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	s := startServer(t, Config{Speed: 1})
	res, err := http.DefaultClient.Do(request(t, s, http.MethodPost, "/v1/chat/completions",
		obj{"messages": []obj{{"role": "user", "content": "x"}}, "max_tokens": 20_000, "stream": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream ended as if it were complete")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("close took %v", took)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := s.Start(); !errors.Is(err, errClosed) {
		t.Errorf("start after close: %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	eventually(t, "listening", func() bool { return s.Addr() != nil })
	busy, err := New(Config{Listen: s.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := busy.Start(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second server on the address: %v", err)
	}
	if err := busy.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConfigErrors(t *testing.T) {
	for want, cfg := range map[string]Config{
		`listen: "nowhere"`:                         {Listen: "nowhere"},
		"speed: must be a finite number > 0, got -": {Speed: -1},
		`name "a" is used twice`:                    {Models: []string{"a"}, Adapters: []string{"a"}},
		"numBlocks: must be > 0, got -5":            {Params: sim.Params{NumBlocks: -5, MaxModelLen: 1}},
		"a name is empty":                           {Models: []string{""}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}

func BenchmarkChat(b *testing.B) {
	s := startServer(b, Config{Speed: 1e6})
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":16}`, strings.Repeat(story, 160))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		if a := do(b, req); a.status != 200 {
			b.Fatalf("%d %s", a.status, a.body)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func BenchmarkChatStream(b *testing.B) {
	s := startServer(b, Config{Speed: 1e6})
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":256,"stream":true}`, story)
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		if a := do(b, req); a.status != 200 {
			b.Fatalf("%d %s", a.status, a.body)
		}
	}
	b.ReportMetric(256*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
}
