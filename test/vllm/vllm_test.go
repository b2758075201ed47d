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
