package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// An engine that is gone refuses at once, and so looks idle. It costs a few requests, not the traffic; when it is back it
// gets its share again.
func TestDeadEngineDoesNotDrawTheTraffic(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 2})
	e := l.Envoy(t, envoy.Params{})
	ask := func(i int) (int, string) {
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, fmt.Sprintf("prompt %d", i), 60, 2, false))
		return a.Status, a.Header.Get("x-sim-endpoint")
	}
	dead := l.Engines[0]
	if err := dead.SetFaults(engine.Faults{RefuseMs: 60_000}); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := range 60 {
		if status, _ := ask(i); status != http.StatusOK {
			failed++
		}
	}
	// Three in a row eject it; the trials come after one second, two, four, ….
	if failed < 3 || failed > 8 {
		t.Errorf("%d of 60 requests failed, want the three that eject the engine and a few trials", failed)
	}
	if got := l.Sluice.Metric(t, "sluice_outlier_ejected_endpoints"); got != 1 {
		t.Errorf("%v endpoints are ejected, want 1", got)
	}
	l.Sluice.Settle(t)
}

// An engine that answers with errors for a while and then recovers is found again.
func TestRecoveredEngineIsFoundAgain(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 2, Config: `
plugins:
  - type: outlier-detection-filter
    parameters: {consecutiveFailures: 2, baseEjectionTime: 100ms, maxEjectionTime: 200ms}
`})
	e := l.Envoy(t, envoy.Params{})
	sick := l.Engines[0]
	if err := sick.SetFaults(engine.Faults{FailStatus: http.StatusInternalServerError, FailCount: 2}); err != nil {
		t.Fatal(err)
	}
	i, name := 0, "engine-0"
	lab.Wait(t, "the engine that recovered to serve again", func() bool {
		i++
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, fmt.Sprintf("prompt %d", i), 60, 2, false))
		return a.Header.Get("x-sim-endpoint") == name && a.Status == http.StatusOK && i > 5
	})
	if got := l.Sluice.Metric(t, "sluice_outlier_returns_total"); got < 1 {
		t.Errorf("%v returns counted", got)
	}
}
