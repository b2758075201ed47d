package vllm

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// What the rest of the package relies on, without Sluice: an engine reports as cached what its events said before.
func testEngineAlone(t *testing.T, e *engine) {
	tokens := make([]int, 5*blockSize)
	for i := range tokens {
		tokens[i] = 1000 + i
	}
	ids := func(n int) request { return newRequest(completions, baseModel, 4).with("prompt", tokens[:n]) }
	text := newRequest(completions, baseModel, 80).with("prompt", lab.Words("the river", 400))
	steps := []struct {
		name string
		request
		cached int // tokens; -1: only that the events agree
	}{
		{"first", ids(5 * blockSize), 0},
		{"again: whole blocks, but the last token is computed", ids(5 * blockSize), 4 * blockSize},
		{"one token less", ids(5*blockSize - 1), 4 * blockSize},
		{"a block", ids(blockSize), 0},
		{"a block and a token", ids(blockSize + 1), blockSize},
		{"salted", ids(5*blockSize).with("cache_salt", "a"), 0},
		{"salted again", ids(5*blockSize).with("cache_salt", "a"), 4 * blockSize},
		{"another salt", ids(5*blockSize).with("cache_salt", "b"), 0},
		{"an adapter", ids(5*blockSize).with("model", "sql"), 0},
		{"the adapter again, streamed", ids(5*blockSize).with("model", "sql").streamed(), 4 * blockSize},
		{"another adapter", ids(5*blockSize).with("model", "chat"), 0},
		{"the adapter, salted", ids(5*blockSize).with("model", "sql").with("cache_salt", "a"), 0},
		{"unsalted still", ids(5 * blockSize), 4 * blockSize},
		{"a text", text, 0},
		{"the text again", text, -1},
	}
	ask := func(r request) (answer, int) {
		expected := e.tap.expect(t, r, e.tokens(t, r))
		got := read(t, lab.Post(t, e.http, e.url(r.path), lab.JSON(t, r.body)))
		e.quiet(t)
		return got, expected
	}
	for _, s := range steps {
		got, expected := ask(s.request)
		if got.cached != expected || s.cached >= 0 && got.cached != s.cached {
			t.Errorf("%s: %d of %d tokens cached, want %d; the events say %d:\n%s", s.name, got.cached, got.prompt, s.cached, expected, e.tap.tell())
		}
	}

	e.reset(t)
	if got, expected := ask(ids(5 * blockSize)); got.cached != 0 || expected != 4*blockSize {
		t.Errorf("after a reset %d tokens cached, want none; the events said %d, want those before the reset", got.cached, expected)
	}
	if got, expected := ask(ids(5 * blockSize)); got.cached != 4*blockSize || expected != got.cached {
		t.Errorf("the second after a reset: %d tokens cached, the events say %d, want %d", got.cached, expected, 4*blockSize)
	}

	evicted := 0
	for i := range 12 {
		r := newRequest(completions, baseModel, 40).with("prompt", lab.Words(fmt.Sprintf("the hill %d", i%6), 700))
		got, expected := ask(r)
		if got.cached != expected {
			t.Errorf("text %d: %d of %d tokens cached, the events say %d:\n%s", i, got.cached, got.prompt, expected, e.tap.tell())
		}
		if i >= 6 && got.cached < (got.prompt-1)/blockSize*blockSize {
			evicted++
		}
	}
	if evicted == 0 {
		t.Error("the cache holds everything: nothing was evicted")
	}
}
