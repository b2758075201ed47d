package vllm

import (
	"testing"
	"time"
)

// TestVLLM starts the engines once: that takes most of the time.
func TestVLLM(t *testing.T) {
	command(t)
	engines := newEngines(t)
	for _, e := range engines {
		e.start(t)
	}
	for _, e := range engines {
		e.ready(t)
	}
	t.Run("an engine alone", func(t *testing.T) { testEngineAlone(t, engines[0]) })

	s := newStack(t, engines)
	s.quiet(t)
	begin := time.Now()
	t.Run("conversations", func(t *testing.T) { testConversations(t, s) })
	t.Run("long conversations", func(t *testing.T) { testJoining(t, s) })
	t.Run("prompts", func(t *testing.T) { testPrompts(t, s) })
	t.Run("salts and adapters", func(t *testing.T) { testNamespaces(t, s) })
	t.Run("several copies", func(t *testing.T) { testCopies(t, s, engines[1]) })
	for _, e := range engines {
		t.Run("eviction on "+e.name, func(t *testing.T) { testEviction(t, s, e) })
		t.Run("reset of "+e.name, func(t *testing.T) { testReset(t, s, e) })
	}
	t.Run("a walk", func(t *testing.T) { testWalk(t, s, 150) })
	s.tokensAreTrue(t)
	t.Run("a new Sluice", func(t *testing.T) { testPickerRestart(t, s) })
	for _, e := range engines {
		t.Run("restart of "+e.name, func(t *testing.T) { testRestart(t, s, e) })
	}
	t.Run("another walk", func(t *testing.T) { testWalk(t, s, 50) })
	s.tokensAreTrue(t)
	t.Logf("%d requests compared, %d excepted, %d mismatches; %d of %d tokens were cached; %.0f s",
		s.report.compared, s.report.excepted, s.report.mismatches, s.report.cached, s.report.prompt, time.Since(begin).Seconds())
}

// quiet waits until an engine has published nothing for a while: it publishes with the step that computes.
func (e *engine) quiet(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		if since, _ := e.tap.quietFor(); since > quietTime {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s publishes without an end", e.name)
		}
	}
}

// quietTime is many times what an engine takes to publish.
const quietTime = 250 * time.Millisecond
