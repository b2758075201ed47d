package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// rendered takes a prompt's tokens from the engines, with time for it that a busy machine keeps.
const rendered = "vllm: {endpoints: true, timeout: 10s}"

// The prompts of every API, streamed or not, are known token by token: of each request Sluice says beforehand how much of
// it the engine will report as cached.
func TestPreciseAPIs(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engine: events(sim.Params{}, engine.KVEvents{}), Config: byTokens(rendered, "")})
	for api, c := range conversations() {
		t.Run(api, func(t *testing.T) {
			homes := map[string]string{}
			for _, name := range []string{api + " a", api + " b"} {
				p.quiet(t)
				first, a := p.post(t, c.path, c.first(name), nil)
				bodies := []any{c.second(name, c.answer(t, a.Body)), c.second(name, c.answer(t, a.Body))}
				if body, ok := bodies[1].(object); ok {
					body["stream"], body["stream_options"] = true, object{"include_usage": true}
				}
				homes[name] = first.engine
				for i, body := range bodies {
					p.quiet(t)
					got, _ := p.post(t, c.path, body, nil)
					if got.predicted != got.cached || got.cached < first.prompt/blockSize*blockSize || got.engine != homes[name] {
						t.Errorf("%s, turn %d: of %d tokens %s has %d cached, Sluice predicted %d; the first turn had %d on %s",
							name, i+2, got.prompt, got.engine, got.cached, got.predicted, first.prompt, homes[name])
					}
				}
			}
		})
	}
	if n := p.Sluice.Total(t, "sluice_token_inexact_prompts_total"); n != 0 {
		t.Errorf("the tokens of %v prompts were not known", n)
	}
}

// C09: whatever in a request changes the prompt's tokens: Sluice sees the tokens that the engine sees.
func TestC09_EveryBodyHasItsTokens(t *testing.T) {
	c := events(sim.Params{}, engine.KVEvents{})
	c.Adapters = []string{"sql"}
	p := newPrecise(t, lab.Plan{Engines: 1, Engine: c, Config: byTokens(rendered, "")})
	say := func(role, text string) object { return object{"role": role, "content": text} }
	text := lab.Words("the river", 200)
	tool := object{"type": "function", "function": object{"name": "measure", "description": text,
		"parameters": object{"type": "object", "properties": object{"depth": object{"type": "number"}}}}}
	for name, more := range map[string]object{
		"plain":             {},
		"tools":             {"tools": []object{tool}},
		"template keywords": {"chat_template_kwargs": object{"enable_thinking": false}},
		"a template":        {"chat_template": "{{ messages }}"},
		"documents":         {"documents": []object{{"title": "Rivers", "text": text}}},
		"special tokens":    {"add_special_tokens": true},
		"a prompt that goes on": {"messages": []object{say("user", text), say("assistant", text)},
			"add_generation_prompt": false, "continue_final_message": true},
		"developer":     {"messages": []object{say("developer", text), say("user", "Where to?")}},
		"accents":       {"messages": []object{say("user", strings.Repeat("cafe\u0301 \U0001F30A na\u0131\u0308ve ", 60))}},
		"in parts":      {"messages": []object{{"role": "user", "content": []object{{"type": "text", "text": text}, {"type": "text", "text": "Where to?"}}}}},
		"an adapter":    {"model": "sql"},
		"a salt":        {"cache_salt": "tenant"},
		"a named model": {"model": "sim"},
	} {
		t.Run(name, func(t *testing.T) {
			body := object{"messages": []object{say("system", text), say("user", "Where to?")}, "max_tokens": 8}
			maps.Copy(body, more)
			for i := range 2 {
				p.quiet(t)
				got, _ := p.post(t, "/v1/chat/completions", body, nil)
				if got.predicted != got.cached || i > 0 && got.cached != (got.prompt-1)/blockSize*blockSize {
					t.Errorf("request %d: of %d tokens %d are cached, %d predicted", i, got.prompt, got.cached, got.predicted)
				}
			}
		})
	}
	if n := p.Sluice.Total(t, "sluice_token_checks_total", `result="mismatch"`); n != 0 {
		t.Errorf("%v prompts had other tokens than the engine counted", n)
	}
}

// C07: a tokenizer that is slow, broken, silent or absent costs a request at most its budget, within the proxy's own: it is
// routed by load, charged by its bytes, and counted. After a few of them nobody waits any more.
func TestC07_Tokenizer(t *testing.T) {
	t.Parallel()
	stub := func(h http.HandlerFunc) string { return lab.Serve(t, "127.0.0.1:0", h) }
	sleeps := stub(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server sees only then that its client has gone
		select {
		case <-time.After(6 * time.Second):
		case <-r.Context().Done():
		}
	})
	fails := stub(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	silent, absent := lab.Accept(t, "127.0.0.1:0"), fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))
	const envoysDefault = 200 * time.Millisecond
	roomy := tokenBudget{mode: envoy.Buffered, message: 3 * time.Second}
	duplex := tokenBudget{mode: envoy.FullDuplexStreamed, message: envoysDefault}
	// Envoy waits for one answer here, and on a machine that runs many tests at once a megabyte alone may take 200 ms.
	tight := tokenBudget{mode: envoy.Buffered, message: envoysDefault, produce: "50ms", token: "40ms", late: 3}
	for name, tt := range map[string]struct {
		address, reason string
		budget          tokenBudget
	}{
		"sleeps":                   {sleeps, "timeout", roomy},
		"sleeps, 200 ms":           {sleeps, "timeout", duplex},
		"sleeps, 200 ms, buffered": {sleeps, "timeout", tight},
		"answers 500":              {fails, "http_status", roomy},
		"is silent":                {silent, "timeout", roomy},
		"is silent, 200 ms":        {silent, "timeout", duplex},
		"is not there":             {absent, "connect", roomy},
	} {
		// One after the other: each has times to keep.
		t.Run(name, func(t *testing.T) { withoutTokens(t, tt.address, tt.reason, tt.budget) })
	}
}

// tokenBudget is what requests may take: how long Envoy waits for an answer to a message, and of that what Sluice gives to
// look-ups and to tokens. Empty: its defaults. late is how many of the requests may be late for other reasons: fewer than wait
// for the tokenizer, so that one that is waited for too long shows.
type tokenBudget struct {
	mode           envoy.BodyMode
	message        time.Duration
	produce, token string
	late           float64
}

func (b tokenBudget) config(address string) string {
	server, token := "", ""
	if b.produce != "" {
		server, token = fmt.Sprintf("server: {produceTimeout: %s}\n", b.produce), ", timeout: "+b.token
	}
	return fmt.Sprintf("%splugins: [{type: token-producer, parameters: {vllm: {url: %q%s}}}, {type: precise-prefix-cache-producer}]",
		server, "http://"+address, token)
}

// withoutTokens sends requests that the tokenizer at an address does not tokenize, for that reason.
func withoutTokens(t *testing.T, tokenizer, reason string, budget tokenBudget) {
	t.Helper()
	pod := &patient{open: make(chan struct{}, 100)}
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", pod)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Config: budget.config(tokenizer)})
	e := l.Envoy(t, envoy.Params{RequestBody: budget.mode, MessageTimeout: budget.message,
		Endpoints: []string{address}, Picker: envoy.Picker{NoHealthCheck: true}})
	body := func(question string) string {
		tool := object{"type": "function", "function": object{"name": "measure", "description": strings.Repeat("deeper than wide ", 1<<20/17)}}
		return lab.JSON(t, object{"messages": []object{{"role": "user", "content": question}}, "tools": []object{tool}, "max_tokens": 2})
	}
	const tries = 8
	late := 0.0
	for i := range tries {
		pod.open <- struct{}{}
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body(fmt.Sprintf("How deep is lake %d?", i)))
		if a.Status == http.StatusGatewayTimeout && late < budget.late {
			late++
		} else if a.Status != http.StatusOK {
			t.Fatalf("request %d: status %d after %v late ones: %.300s", i, a.Status, late, a.Body)
		}
	}
	count := func(reason string) float64 {
		return l.Sluice.Total(t, "sluice_token_inexact_prompts_total", fmt.Sprintf("reason=%q", reason))
	}
	// Some of the first may have had no time left to be looked up by estimate.
	approximate := l.Sluice.Total(t, "sluice_prefix_cache_approximate_requests_total")
	first, open := count(reason), count("breaker_open")
	if first+open > tries || first+open < tries-late || first < 5-late || open < 1 || approximate < open {
		t.Errorf("of %d requests, %v of them late, %v are counted as %s and %v as breaker_open, %v were looked up by estimate",
			tries, late, first, reason, open, approximate)
	}
	if budget.late > 0 {
		return // the next one may be late, too
	}
	answer := background(t, l, e.URL("/v1/chat/completions"), body("How wide is it?"))
	lab.Wait(t, "the charge", func() bool { return l.Sluice.InFlight(t).Requests == 1 })
	if tokens := l.Sluice.InFlight(t).Tokens; tokens < 50_000 {
		t.Errorf("a megabyte is charged %d tokens", tokens)
	}
	pod.open <- struct{}{}
	if a := <-answer; a.Status != http.StatusOK {
		t.Errorf("status %d: %.300s", a.Status, a.Body)
	}
}

// patient is an engine that answers a request for each thing that it is given.
type patient struct{ open chan struct{} }

// ServeHTTP implements http.Handler.
func (p *patient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet { // Sluice asks for metrics and the like
		http.NotFound(w, r)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	select {
	case <-p.open:
		w.Header().Set("content-type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"message":{"content":"deep"}}]}`)
	case <-r.Context().Done():
	}
}
