package e2e

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// bodyMode is a body mode of both directions, as Envoy is configured.
type bodyMode struct {
	name   string
	params envoy.Params
	// unseen: the proxy ends its call before the response does, so charges go by estimate.
	unseen bool
}

func bodyModes() []bodyMode {
	mode := func(m envoy.BodyMode) envoy.Params { return envoy.Params{RequestBody: m, ResponseBody: m} }
	early := mode(envoy.Streamed)
	early.SendBodyEarly = true
	return []bodyMode{
		{name: "NONE", params: mode(envoy.BodyNone), unseen: true},
		{name: "BUFFERED", params: mode(envoy.Buffered)},
		{name: "BUFFERED_PARTIAL", params: mode(envoy.BufferedPartial)},
		{name: "STREAMED", params: mode(envoy.Streamed)},
		{name: "STREAMED early", params: early},
		{name: "FULL_DUPLEX_STREAMED", params: mode(envoy.FullDuplexStreamed)},
	}
}

// dialling is how Envoy turns the pick into a connection.
type dialling struct {
	name   string
	pool   envoy.PoolType
	source envoy.PickSource
	http2  bool // to the engines; Envoy passes trailers on in this protocol
}

var diallings = []dialling{
	{"ORIGINAL_DST header", envoy.OriginalDst, envoy.FromHeader, false},
	{"ORIGINAL_DST metadata", envoy.OriginalDst, envoy.FromMetadata, true},
	{"override_host header", envoy.OverrideHost, envoy.FromHeader, true},
	{"override_host metadata", envoy.OverrideHost, envoy.FromMetadata, false},
}

// roomy engines take prompts of a megabyte, and take no time for them.
func roomy() engine.Config {
	return engine.Config{Speed: 5000, Params: sim.Params{MaxModelLen: 700_000, NumBlocks: 50_000, MaxBatchedTokens: 800_000}}
}

// Every body mode, with every way of dialling: the engine that answers is one that Sluice picked, and what arrives
// there is what the client sent, byte for byte.
func TestBodyModes(t *testing.T) {
	for _, mode := range bodyModes() {
		t.Run(mode.name, func(t *testing.T) {
			l := lab.New(t, lab.Plan{Engine: roomy()})
			for _, d := range diallings {
				t.Run(d.name, func(t *testing.T) {
					p := mode.params
					p.PoolType, p.Source, p.HTTP2Upstream = d.pool, d.source, d.http2
					e := l.Envoy(t, p)
					picked := l.Sluice.Total(t, "sluice_requests_total", `result="picked"`)
					sent := exchange(t, l, e, d.http2)
					if got := l.Sluice.Total(t, "sluice_requests_total", `result="picked"`) - picked; got != float64(sent) {
						t.Errorf("%v picks for %d requests", got, sent)
					}
					if failed := e.Stat(t, "http.inference.downstream_rq_5xx"); failed != 0 {
						t.Errorf("%d answers with 5xx", failed)
					}
					if !mode.unseen {
						l.Sluice.Settle(t)
					}
				})
			}
			if n := l.Sluice.Total(t, "sluice_notes_total", `kind="panic"`); n != 0 {
				t.Errorf("%v panics", n)
			}
		})
	}
}

// However early streams end, everything arrives, in both directions and every mode.
func TestStreamsThatEndEarly(t *testing.T) {
	for _, when := range []config.EndStream{config.EndAfterFirstToken, config.EndAfterPick} {
		l := lab.New(t, lab.Plan{Engine: roomy(), Override: func(c *config.Config) { c.Server.EndStream = when }})
		mixed := bodyMode{name: "FULL_DUPLEX_STREAMED, answers STREAMED",
			params: envoy.Params{RequestBody: envoy.FullDuplexStreamed, ResponseBody: envoy.Streamed}}
		for _, mode := range append(bodyModes(), mixed) {
			t.Run(string(when)+" "+mode.name, func(t *testing.T) {
				e := l.Envoy(t, mode.params)
				exchange(t, l, e, false)
				for range 20 { // many pieces, some of which are under way when the stream ends
					a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "long", 60, 60, true))
					if tokens := strings.Count(a.Body, `"content":`); a.Status != http.StatusOK || tokens < 60 || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
						t.Fatalf("status %d, %d tokens, which end in %.60q", a.Status, tokens, a.Body[max(0, len(a.Body)-60):])
					}
				}
				if failed := e.Stat(t, "http.inference.downstream_rq_5xx"); failed != 0 {
					t.Errorf("%d answers with 5xx", failed)
				}
				lab.Wait(t, "the streams to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
			})
		}
		if n := l.Sluice.Total(t, "sluice_notes_total", `kind="panic"`); n != 0 {
			t.Errorf("%v panics", n)
		}
		if n := l.Sluice.Total(t, "sluice_notes_total", `kind="release_estimated"`); n == 0 {
			t.Errorf("%s: no stream ended early", when)
		}
	}
}

// A body of 20 MiB arrives unchanged in every mode, and the request is charged until its answer.
func TestHugeBody(t *testing.T) {
	pod := lab.StartPod(t, envoytest.PodIPs(t, 1)[0]+":0")
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{pod.Addr}})
	body := picture()
	if len(body) < 20<<20 {
		t.Fatalf("the picture has %d bytes", len(body))
	}
	want := lab.SHA256(body)
	for _, mode := range bodyModes() {
		p := mode.params
		p.Endpoints = []string{pod.Addr}
		got := lab.ReadEcho(t, lab.Post(t, l.Client, l.Envoy(t, p).URL("/v1/chat/completions"), body))
		if got.SHA256 != want {
			t.Errorf("%s: %d of %d bytes arrived, or changed", mode.name, got.Bytes, len(body))
		}
		lab.Wait(t, "the stream to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
	}
}

// exchange sends one request of each kind and returns how many.
func exchange(t *testing.T, l *lab.Lab, e *envoytest.Instance, trailers bool) (sent int) {
	chat := e.URL("/v1/chat/completions")
	ok := func(what string, a lab.Answer, body string) {
		t.Helper()
		sent++
		if a.Status != http.StatusOK {
			t.Fatalf("%s: status %d: %.300s", what, a.Status, a.Body)
		}
		if a.Header.Get("x-sim-endpoint") == "" {
			t.Errorf("%s: no engine answered", what)
		}
		if got, want := a.Header.Get("x-sim-body-sha256"), lab.SHA256(body); got != want {
			t.Errorf("%s: %s bytes arrived changed, %d were sent", what, a.Header.Get("x-sim-body-bytes"), len(body))
		}
	}
	ok("GET", lab.Get(t, l.Client, e.URL("/v1/models")), "")
	small := lab.Chat(t, "small", 60, 2, false)
	ok("POST", lab.Post(t, l.Client, chat, small), small)
	large := lab.Chat(t, "large", 235_000, 2, false)
	if len(large) < 1_200_000 {
		t.Fatalf("the large body has %d bytes", len(large))
	}
	ok("1.2 MiB", lab.Post(t, l.Client, chat, large), large)

	a, body := upload(t, l.Client, chat, 300_000)
	ok("chunked with trailers", a, body)
	if got, want := a.Header.Get("x-sim-trailers"), "x-check="+lab.SHA256(body); trailers && got != want {
		t.Errorf("trailers that arrived: %q, want %q", got, want)
	}
	stream := lab.Chat(t, "stream", 60, 8, true)
	a = lab.Post(t, l.Client, chat, stream)
	ok("SSE", a, stream)
	if events := strings.Count(a.Body, "data: "); events < 10 || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
		t.Errorf("SSE: %d events, which end in %.40q", events, a.Body[max(0, len(a.Body)-40):])
	}
	return sent
}

// upload posts a chat in chunks, without a content-length, and with a trailer that holds the body's hash.
func upload(t *testing.T, c *http.Client, url string, size int) (lab.Answer, string) {
	t.Helper()
	body := lab.Chat(t, "upload", size/6, 2, false)
	r := lab.Request(t, http.MethodPost, url, io.MultiReader(strings.NewReader(body[:len(body)/2]), strings.NewReader(body[len(body)/2:])))
	r.Trailer = http.Header{"X-Check": {lab.SHA256(body)}}
	return lab.Do(t, c, r), body
}

// picture is a chat with an image of 20 MiB inside.
var picture = sync.OnceValue(func() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	random := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, 1<<20-4093) // of no size that a chunk border could fall on again and again
	for i := range block {
		block[i] = letters[random.IntN(len(letters))]
	}
	return `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat(string(block), 21) + `"}}]}]}`
})
