package calibrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/calibrate"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

func probeOptions(url string) calibrate.ProbeOptions {
	return calibrate.ProbeOptions{
		Endpoint: url, API: calibrate.APICompletions, MaxRequests: 200, MaxTokens: 100_000, Timeout: 2 * time.Minute, LongestPrompt: 4096,
		Typical: 2048, Alpha: 1,
	}
}

func startEngine(t *testing.T, cost sim.StepCost) *engine.Server {
	t.Helper()
	s, err := engine.New(engine.Config{Models: []string{"first", "second"}, Params: sim.Params{Cost: cost}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A live engine whose step costs are known: throughput and break-even come out within 10 %, on a busy machine too.
func TestProbeOfALiveEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the engine's time")
	}
	cost := sim.DefaultParams().Cost
	var r *calibrate.Report
	for try := 1; ; try++ { // a machine that is busy with other things makes an engine late, never early
		r = probed(t, startEngine(t, cost).URL())
		d, full := r.Deployments[0], 8192.
		// A step computes two of the longest prompts at once.
		peak := full / (cost.Base + cost.PrefillToken*full + cost.Attention*4096*4096)
		saved := 1000 * (cost.PrefillToken*2048 + cost.Attention*2048*2048/2)
		off := max(distance(d.PeakPerS.Value, peak), distance(d.BreakEvenMs.Value, saved))
		if off <= 0.1 {
			break
		}
		t.Logf("throughput %+v, want %v; break-even %+v, want %v; %+v", *d.PeakPerS, peak, *d.BreakEvenMs, saved, r.Probe)
		if try == 3 {
			t.Fatalf("off by %.0f %%", 100*off)
		}
	}
	d := r.Deployments[0]
	if d.Name != "first" || r.Probe.Model != "first" || d.PricedMs.Value != 2*d.BreakEvenMs.Value || len(r.Probe.Rounds) < 2 {
		t.Errorf("%+v of %+v", d, r.Probe)
	}
	for _, a := range r.Probe.Alone {
		if a.WarmMs > a.ColdMs {
			t.Errorf("%d tokens again are not faster: %+v", a.PromptTokens, a)
		}
	}
}

func distance(got, want float64) float64 { return max(got-want, want-got) / want }

func probed(t *testing.T, url string) *calibrate.Report {
	t.Helper()
	o := probeOptions(url)
	p, err := calibrate.NewProber(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	plan := p.Plan()
	if plan.Requests() > o.MaxRequests || plan.Tokens() > o.MaxTokens {
		t.Fatalf("%d requests and %d tokens are planned", plan.Requests(), plan.Tokens())
	}
	said := 0
	p.Progress = func(string) { said++ }
	r, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Probe.Requests != plan.Requests() || r.Probe.PromptTokens > o.MaxTokens || said != len(r.Probe.Alone)+len(r.Probe.Rounds) {
		t.Errorf("%d requests with %d tokens were made, planned were %d and %d; told %d times",
			r.Probe.Requests, r.Probe.PromptTokens, plan.Requests(), plan.Tokens(), said)
	}
	return r
}

// fake is an engine that answers as a test says.
func fake(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"m","max_model_len":2048},{"id":"n"}]}`)
	})
	mux.HandleFunc("POST /v1/", serve)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

const okay = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d}}\n\ndata: [DONE]\n\n"

func answering(format string, args ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, format, args...)
	}
}

// The first fault ends the probe, and says what it was.
func TestProbeAborts(t *testing.T) {
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"status": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no \x1b[31mmoney", http.StatusPaymentRequired)
		}, "/v1/completions: status 402: no ?[31mmoney"},
		"error in the stream": {answering("data: {\"error\":{\"message\":\"out of memory\"}}\n\n"), "answered with an error: out of memory"},
		"early end":           {answering("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"), "the answer ended early"},
		"no stream":           {answering("{\"choices\":[]}"), "the answer ended early"},
		"no JSON":             {answering("data: {\"choices\"\n\n"), "is no stream of JSON"},
		"no token":            {answering("data: {\"choices\":[]}\n\ndata: [DONE]\n\n"), "no token came"},
		"no count":            {answering("data: {\"choices\":[{}]}\n\ndata: [DONE]\n\n"), "does not count prompt tokens"},
	} {
		p, err := calibrate.NewProber(t.Context(), probeOptions(fake(t, c.serve)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// An engine without a prefix cache, which does not say what is cached: no break-even, and it is said.
func TestProbeWithoutACache(t *testing.T) {
	var asked atomic.Int64
	url := fake(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked.Add(1)
		n := strings.Count(string(body), " ") + 1
		time.Sleep(time.Duration(n) * 100 * time.Microsecond)
		answering(okay, n)(w, r)
	})
	o := probeOptions(url)
	o.MaxTokens = 20_000
	p, err := calibrate.NewProber(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if longest := p.Plan().Lengths[len(p.Plan().Lengths)-1]; longest > 2048-64 {
		t.Errorf("prompts of %d tokens do not fit", longest)
	}
	r, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := r.Deployments[0]; d.BreakEvenMs != nil || d.PeakPerS == nil || !strings.Contains(r.Notes[0], "no prefix cache") {
		t.Errorf("%+v, notes %q", d, r.Notes)
	}
	if int(asked.Load()) != p.Plan().Requests() {
		t.Errorf("asked %d times, planned were %d", asked.Load(), p.Plan().Requests())
	}
}

// Chat goes to its own path; headers are sent.
func TestProbeOfChat(t *testing.T) {
	var bad atomic.Int64
	url := fake(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer x" || !strings.Contains(string(body), `"messages":[{`) {
			bad.Add(1)
		}
		answering(okay, strings.Count(string(body), " ")+1)(w, r)
	})
	o := probeOptions(strings.TrimPrefix(url, "http://") + "/v1/")
	o.API, o.Model, o.Header, o.MaxTokens = calibrate.APIChat, "m", http.Header{"Authorization": {"Bearer x"}}, 20_000
	p, err := calibrate.NewProber(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context()); err != nil || bad.Load() > 0 {
		t.Errorf("%v; %d requests were wrong", err, bad.Load())
	}
}

// The bounds hold: a plan that does not fit is refused, and time that runs out ends it.
func TestProbeBounds(t *testing.T) {
	url := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then a server does not see that its client has gone
		<-r.Context().Done()
	})
	small := probeOptions(url)
	small.MaxRequests = 3
	if _, err := calibrate.NewProber(t.Context(), small); err == nil || !strings.Contains(err.Error(), "--max-requests 3") {
		t.Errorf("%v", err)
	}
	for _, bound := range []int{11, 20, 40, 200} {
		o := probeOptions(url)
		o.MaxRequests, o.MaxTokens = bound, 1000*bound
		p, err := calibrate.NewProber(t.Context(), o)
		if err != nil {
			t.Fatalf("%d: %v", bound, err)
		}
		if plan := p.Plan(); plan.Requests() > bound || plan.Tokens() > 1000*bound {
			t.Errorf("%d: %+v", bound, plan)
		}
	}
	// An engine whose words are more tokens each time.
	var sent, times atomic.Int64
	greedy := probeOptions(fake(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n := strings.Count(string(body), " ") + 1
		n += n * int(times.Add(1)) / 5
		sent.Add(int64(n))
		answering(okay, n)(w, r)
	}))
	greedy.MaxTokens = 60_000
	if p, err := calibrate.NewProber(t.Context(), greedy); err != nil {
		t.Fatal(err)
	} else if r, err := p.Run(t.Context()); err != nil && !strings.Contains(err.Error(), "--max-tokens") || err == nil && r.Probe.Stopped == "" || sent.Load() > 3*60_000 {
		t.Errorf("%v after %d tokens", err, sent.Load())
	}
	o := probeOptions(url)
	o.Timeout = 50 * time.Millisecond
	p, err := calibrate.NewProber(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "timeout of 50ms") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p, err = calibrate.NewProber(ctx, probeOptions(url))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestProbeOfALiar: an engine that says it counted one token of every prompt is not sent more than twice what the bounds say.
func TestProbeOfALiar(t *testing.T) {
	var words, requests atomic.Int64
	o := probeOptions(fake(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		words.Add(int64(strings.Count(string(body), " ") + 1))
		requests.Add(1)
		answering(okay, 1)(w, r)
	}))
	o.MaxTokens, o.MaxRequests = 60_000, 60
	p, err := calibrate.NewProber(t.Context(), o)
	if err == nil {
		_, err = p.Run(t.Context())
	}
	if n := words.Load(); n > 2*60_000 || n == 0 || requests.Load() > 60+2 { // the first ones ask what the engine is
		t.Errorf("%d words in %d requests (%v)", n, requests.Load(), err)
	}
}

func TestProbeOptions(t *testing.T) {
	url := fake(t, answering(""))
	for want, change := range map[string]func(*calibrate.ProbeOptions){
		`endpoint: must be like http://10.0.0.5:8000, got "ftp://10.0.0.5:8000"`: func(o *calibrate.ProbeOptions) { o.Endpoint = "ftp://10.0.0.5:8000" },
		"api: must be completions or chat":                                       func(o *calibrate.ProbeOptions) { o.API = "x" },
		"max-requests: must be above 0":                                          func(o *calibrate.ProbeOptions) { o.MaxRequests = 0 },
		"max-tokens: must be above 0":                                            func(o *calibrate.ProbeOptions) { o.MaxTokens = -1 },
		"timeout: must be above 0":                                               func(o *calibrate.ProbeOptions) { o.Timeout = 0 },
		"longest-prompt: must be at least 128":                                   func(o *calibrate.ProbeOptions) { o.LongestPrompt = 5 },
		"typical-prefix: must be above 0":                                        func(o *calibrate.ProbeOptions) { o.Typical = 0 },
		`does not serve the model "x", but m, n`:                                 func(o *calibrate.ProbeOptions) { o.Model = "x" },
		"connect":                                                                func(o *calibrate.ProbeOptions) { o.Endpoint = "http://127.0.0.1:1" },
	} {
		o := probeOptions(url)
		change(&o)
		if _, err := calibrate.NewProber(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
