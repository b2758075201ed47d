package vllm

import (
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// report counts what was compared.
type report struct {
	compared, excepted, mismatches int
	prompt, cached                 int // tokens of the compared requests
}

// ask sends a request through Envoy, to a certain engine unless that is nil, and compares three numbers of tokens: what
// the engines' events say that the engine will have in its cache, what Sluice predicts, and what the engine reports. The
// last two must agree with each other, and with Sluice's own comparison, in every request but the first one after an
// engine's cache was emptied behind its back: its events tell with that request.
func (s *stack) ask(t *testing.T, name string, r request, to *engine) answer {
	t.Helper()
	tokens := s.alive()[0].tokens(t, r)
	events := map[*engine]int{}
	for _, e := range s.alive() {
		events[e] = e.tap.expect(t, r, tokens)
		e.tap.announced(&r, tokens)
	}
	before := s.sluice.metrics(t).audit()
	headers := []string(nil)
	if to != nil {
		headers = []string{subsetHeader, to.address}
	}
	a := lab.Post(t, s.client, s.envoy.URL(r.path), lab.JSON(t, r.body), headers...)
	got := read(t, a)
	d := s.decision(t, a)
	if to != nil && d.engine != to {
		t.Fatalf("%s: went to %s, want %s", name, d.engine.name, to.name)
	}
	if got.prompt != len(tokens) {
		t.Errorf("%s: the engine counts %d tokens, its renderer %d", name, got.prompt, len(tokens))
	}
	predicted := min(d.cached, (got.prompt-1)/blockSize*blockSize)
	audited := s.settled(t, before)
	s.quiet(t)
	for _, e := range s.alive() {
		e.tap.announced(nil, nil)
	}
	story := d.engine.tap.tell()
	if audited != single(predicted, got.cached) {
		t.Errorf("%s: Sluice counts %+v, want %+v", name, audited, single(predicted, got.cached))
	}
	if d.engine.emptied {
		d.engine.emptied = false
		s.report.excepted++
		if got.cached != 0 {
			t.Errorf("%s: the emptied %s reports %d cached tokens", name, d.engine.name, got.cached)
		}
		return got
	}
	s.report.compared++
	s.report.prompt += got.prompt
	s.report.cached += got.cached
	if predicted != got.cached || events[d.engine] != got.cached {
		s.report.mismatches++
		t.Errorf("%s: of %d tokens %s has %d cached; Sluice predicted %d, and the events until then say %d. The events of the request:\n%s",
			name, got.prompt, d.engine.name, got.cached, predicted, events[d.engine], story)
	}
	return got
}

// tokensAreTrue checks what Sluice's own comparison of tokens has come to since it was last started.
func (s *stack) tokensAreTrue(t *testing.T) {
	t.Helper()
	m := s.sluice.metrics(t)
	if n := m.sum("sluice_token_checks_total", `result="mismatch"`); n > 0 {
		t.Errorf("%d prompts had other tokens than the engine counts", n)
	}
	if n := m.sum("sluice_token_inexact_prompts_total"); n > 0 {
		t.Errorf("%d prompts went without exact tokens", n)
	}
	for name, v := range m {
		if strings.HasPrefix(name, "sluice_token_exact_prompts_total") && v > 0 {
			t.Logf("%s %v", name, v)
		}
	}
}

// turn asks the next question of a conversation.
func (s *stack) turn(t *testing.T, name string, c *conversation, question string, output int, stream bool, to *engine) answer {
	t.Helper()
	r := c.ask(question, output)
	if stream {
		r = r.streamed()
	}
	got := s.ask(t, name, r, to)
	c.hear(got.text)
	return got
}

// empty resets an engine's cache.
func (s *stack) empty(t *testing.T, e *engine) {
	t.Helper()
	e.reset(t)
	e.emptied = true
}

// kill ends an engine without a word.
func (s *stack) kill(e *engine) {
	e.kill()
	e.emptied = true
}

// revive starts a killed engine again where it was, and waits until Sluice has found its events again and seen the restart
// in its metrics: that makes Sluice read anew whatever the engine has published until then.
func (s *stack) revive(t *testing.T, e *engine) {
	t.Helper()
	before := s.sluice.metrics(t).losses()
	e.start(t)
	e.ready(t)
	wait(t, "Sluice to see the restart", func() bool { return s.sluice.metrics(t).losses() > before })
	s.quiet(t)
}
