package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// steps is an engine that streams one event at a time, each only after its client has read the one before.
type steps struct{ read chan struct{} }

const stepEvents = 6

// ServeHTTP implements http.Handler.
func (s *steps) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet { // the scrape of metrics
		w.WriteHeader(http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lab.Timeout/2)
	defer cancel()
	_, _ = io.Copy(io.Discard, r.Body) // an upload that breaks off ends the request too
	w.Header().Set("content-type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	for i := range stepEvents {
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":"word %d"}}]}`+"\n\n", i)
		if flush() != nil {
			return
		}
		select {
		case <-s.read:
		case <-ctx.Done():
			fmt.Fprint(w, "data: the client never got the event before\n\n")
			return
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// stepping serves an engine that streams in steps, and returns its address.
func stepping(t *testing.T, s *steps) string {
	t.Helper()
	return lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", s)
}

// Each event reaches the client when the engine writes it: the engine writes the next one only after the client has
// read this one, so one that waited anywhere on the way would stop the stream.
func TestEventsArriveAsProduced(t *testing.T) {
	s := &steps{read: make(chan struct{})}
	address := stepping(t, s)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	for name, p := range map[string]envoy.Params{
		"FULL_DUPLEX_STREAMED":               {},
		"STREAMED":                           {RequestBody: envoy.Streamed, ResponseBody: envoy.Streamed},
		"NONE":                               {RequestBody: envoy.BodyNone, ResponseBody: envoy.BodyNone},
		"BUFFERED then FULL_DUPLEX_STREAMED": {RequestBody: envoy.Buffered},
		"override_host, HTTP/2":              {PoolType: envoy.OverrideHost, HTTP2Upstream: true},
	} {
		t.Run(name, func(t *testing.T) {
			p.Endpoints = []string{address}
			e := l.Envoy(t, p)
			body := strings.NewReader(lab.Chat(t, name, 100, 4, true))
			res, err := l.Client.Do(lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), body))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			events := 0
			for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				switch line := lines.Text(); {
				case line == "" || line == "data: [DONE]":
				case strings.Contains(line, fmt.Sprintf(`"word %d"`, events)):
					events++
					s.read <- struct{}{}
				default:
					t.Fatalf("event %d is %q", events, line)
				}
			}
			if events != stepEvents {
				t.Errorf("%d events, want %d", events, stepEvents)
			}
		})
	}
}

// The first token moves the request from prefill to decoding while the stream is still open.
func TestFirstTokenReleasesThePrompt(t *testing.T) {
	s := &steps{read: make(chan struct{})}
	address := stepping(t, s)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	e := l.Envoy(t, envoy.Params{})
	res, err := l.Client.Do(lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), strings.NewReader(lab.Chat(t, "x", 1000, 4, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	want := lab.Load{Requests: 1, Decoding: 1}
	lab.Wait(t, "the prompt's charge to go at the first token", func() bool { return l.Sluice.InFlight(t) == want })
	go func() {
		for range stepEvents {
			select {
			case s.read <- struct{}{}:
			case <-t.Context().Done():
			}
		}
	}()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	l.Sluice.Settle(t)
}

// A large answer passes unchanged, in every mode that shows it to Sluice.
func TestLargeAnswer(t *testing.T) {
	answer := `{"object":"list","data":"` + picture() + `","usage":{"prompt_tokens":12,"total_tokens":12}}`
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	want := lab.SHA256(answer)
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Streamed, envoy.Buffered} {
		e := l.Envoy(t, envoy.Params{ResponseBody: mode, BufferLimitBytes: 32 << 20})
		a := lab.Post(t, l.Client, e.URL("/v1/embeddings"), `{"model":"sim","input":"x"}`)
		if a.Status != http.StatusOK || lab.SHA256(a.Body) != want {
			t.Errorf("%s: status %d, %d of %d bytes, or changed", mode, a.Status, len(a.Body), len(answer))
		}
		l.Sluice.Settle(t)
	}
}

// BUFFERED_PARTIAL hands over the head of a body that is larger than Envoy's buffer: Sluice decides on it, cut in the
// middle of a string, and the whole body goes on.
func TestPartialBodyIsRouted(t *testing.T) {
	l := lab.New(t, lab.Plan{Engine: roomy()})
	e := l.Envoy(t, envoy.Params{RequestBody: envoy.BufferedPartial, BufferLimitBytes: 64 << 10})
	var home string
	for i := range 3 {
		body := lab.Chat(t, "partial", 100_000, 2, false)
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body)
		if a.Status != http.StatusOK || a.Header.Get("x-sim-body-sha256") != lab.SHA256(body) {
			t.Fatalf("status %d, %s of %d bytes arrived, or changed: %.200s", a.Status, a.Header.Get("x-sim-body-bytes"), len(body), a.Body)
		}
		if engine := a.Header.Get("x-sim-endpoint"); i == 0 {
			home = engine
		} else if engine != home {
			t.Errorf("the same prompt went to %s, its prefix is on %s", engine, home)
		}
		l.Sluice.Settle(t)
	}
	if n := l.Sluice.Metric(t, `sluice_notes_total{kind="partial_body"}`); n != 3 {
		t.Errorf("%v partial bodies noted, want 3", n)
	}
}

// In observability mode Sluice watches and never answers; requests go on as if it were not there.
func TestObservabilityMode(t *testing.T) {
	l := lab.New(t, lab.Plan{})
	for _, mode := range []envoy.BodyMode{envoy.Streamed, envoy.BodyNone} {
		t.Run(string(mode), func(t *testing.T) {
			e := l.Envoy(t, envoy.Params{PoolType: envoy.OverrideHost, Observability: true, RequestBody: mode, ResponseBody: mode})
			before := l.Sluice.Metric(t, `sluice_notes_total{kind="observed"}`)
			for i := range 6 {
				body := lab.Chat(t, "watched", 500, 3, i%2 == 0)
				a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body)
				if a.Status != http.StatusOK || a.Header.Get("x-sim-body-sha256") != lab.SHA256(body) {
					t.Fatalf("status %d: %s", a.Status, a.Body)
				}
			}
			lab.Wait(t, "every request to be seen", func() bool {
				return l.Sluice.Metric(t, `sluice_notes_total{kind="observed"}`) == before+6
			})
			for _, name := range []string{"spurious_msgs_received", "streams_failed"} {
				if n := e.Stat(t, "http.inference.ext_proc."+name); n != 0 {
					t.Errorf("ext_proc %s: %d, want 0", name, n)
				}
			}
			if n := l.Sluice.Total(t, "sluice_requests_total"); n != 0 {
				t.Errorf("%v picks were made, want none", n)
			}
		})
	}
}
