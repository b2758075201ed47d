package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// A gateway's rewrite header changes the model that the engine reads, and nothing else of the body; where a
// content-length goes upstream, it is that of the new body.
func TestModelRewrite(t *testing.T) {
	const shorter, longer = "s", "a-model-with-quite-a-long-name"
	pod := lab.StartPod(t, envoytest.PodIPs(t, 1)[0]+":0")
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{pod.Addr}})
	for name, tt := range map[string]struct {
		params   envoy.Params
		counted  bool // a content-length reaches the engine
		rewrites bool
	}{
		"FULL_DUPLEX_STREAMED":                     {envoy.Params{}, false, true},
		"FULL_DUPLEX_STREAMED with content-length": {envoy.Params{AllowContentLength: true}, true, true},
		"BUFFERED":         {envoy.Params{RequestBody: envoy.Buffered}, true, true},
		"BUFFERED_PARTIAL": {envoy.Params{RequestBody: envoy.BufferedPartial}, false, true},
		// The body is not Sluice's to change in these.
		"STREAMED": {envoy.Params{RequestBody: envoy.Streamed}, false, false},
		"NONE":     {envoy.Params{RequestBody: envoy.BodyNone}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.params
			p.Endpoints = []string{pod.Addr}
			e := l.Envoy(t, p)
			// The first "model" that counts is the top-level one; the rest of the body looks like it on purpose.
			body := `{"messages":[{"role":"user","content":"my \"model\":\"asked\" is"}],"metadata":{"model":"asked"}, "model" :  "asked","n":1}` +
				strings.Repeat(" ", 70_000)
			for _, model := range []string{"", shorter, longer} {
				for _, header := range []string{"x-gateway-model-name-rewrite", "x-llm-d-model-name-rewrite"} {
					got := lab.ReadEcho(t, lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body, header, model))
					want := body
					if model != "" && tt.rewrites {
						want = strings.Replace(body, `"model" :  "asked"`, `"model" :  "`+model+`"`, 1)
					}
					if got.SHA256 != lab.SHA256(want) {
						t.Errorf("%s %q: %d bytes arrived, want %d: not the body with its model rewritten", header, model, got.Bytes, len(want))
					}
					length := int64(-1)
					if tt.counted {
						length = int64(len(want))
					}
					if got.Length != length {
						t.Errorf("%s %q: content-length %d, want %d", header, model, got.Length, length)
					}
				}
			}
		})
	}
}

// The engine answers only for the model it serves: with the rewrite the client's alias works, and Sluice counts the
// engine's model.
func TestModelRewriteReachesTheEngine(t *testing.T) {
	l := lab.New(t, lab.Plan{Engine: engine.Config{Models: []string{"qwen3-32b"}}})
	e := l.Envoy(t, envoy.Params{})
	body := lab.Chat(t, "alias", 100, 2, false)
	if a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body); a.Status != http.StatusNotFound {
		t.Errorf("the alias without a rewrite: status %d, want the engine's 404", a.Status)
	}
	a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body, "x-gateway-model-name-rewrite", "qwen3-32b")
	if a.Status != http.StatusOK || !strings.Contains(a.Body, `"model":"qwen3-32b"`) {
		t.Errorf("rewritten: %d %s", a.Status, a.Body)
	}
	l.Sluice.Settle(t)
	if n := l.Sluice.Total(t, "sluice_prompt_tokens_total", `model="qwen3-32b"`); n == 0 {
		t.Error("no tokens are counted for the engine's model")
	}
	if n := l.Sluice.Total(t, "sluice_requests_total", `model="sim"`); n != 0 {
		t.Errorf("%v requests are counted for a model that no engine has answered for", n)
	}
}
