package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// What clients see while Sluice is not there. The list goes from the safest configuration to the most open one; with
// failure_mode_allow only a picker that is known to be down, by its health, lets bodies pass.
func TestSluiceIsDown(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 2})
	victim := lab.StartPod(t, envoytest.PodIPs(t, 1)[0]+":0")
	dead := fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))
	const ok, closed, unpicked = http.StatusOK, http.StatusServiceUnavailable, http.StatusServiceUnavailable
	for name, tt := range map[string]struct {
		params    envoy.Params
		unchecked bool // Envoy does not ask for health
		get, post int
	}{
		"closed":                           {envoy.Params{}, false, closed, closed},
		"closed, unchecked":                {envoy.Params{}, true, closed, closed},
		"closed, buffered":                 {envoy.Params{RequestBody: envoy.Buffered}, false, closed, closed},
		"open, listed endpoints":           {envoy.Params{FailureModeAllow: true, PoolType: envoy.OverrideHost}, false, ok, ok},
		"open, listed endpoints, buffered": {envoy.Params{FailureModeAllow: true, PoolType: envoy.OverrideHost, RequestBody: envoy.Buffered}, false, ok, ok},
		// The body was already on its way when the connection failed.
		"open, unchecked": {envoy.Params{FailureModeAllow: true, PoolType: envoy.OverrideHost}, true, ok, closed},
		// Without a pick there is nothing to dial; above all not what the client names.
		"open, ORIGINAL_DST": {envoy.Params{FailureModeAllow: true}, false, unpicked, unpicked},
	} {
		t.Run(name, func(t *testing.T) {
			p := l.Params(tt.params)
			p.Picker.Address, p.Picker.NoHealthCheck = dead, tt.unchecked
			e := envoytest.Start(t, p)
			forged := []string{envoy.DestinationKey, victim.Addr}
			if a := lab.Get(t, l.Client, e.URL("/v1/models"), forged...); a.Status != tt.get {
				t.Errorf("GET: status %d, want %d: %s", a.Status, tt.get, a.Body)
			}
			a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "down", 50, 2, false), forged...)
			if a.Status != tt.post {
				t.Errorf("POST: status %d, want %d: %s", a.Status, tt.post, a.Body)
			}
		})
	}
	if victim.Hits() != 0 {
		t.Errorf("%d requests followed the client's header", victim.Hits())
	}
}

// Sluice goes and comes back on the same port: failing open, no request fails with the health check in place once the
// failure is seen; failing closed, requests fail meanwhile; afterwards both are picked for again.
func TestSluiceComesBack(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 2})
	address := l.Sluice.Addr()
	picker := envoy.Picker{HealthInterval: healthInterval}
	open := l.Envoy(t, envoy.Params{FailureModeAllow: true, PoolType: envoy.OverrideHost, Picker: picker})
	shut := l.Envoy(t, envoy.Params{Picker: picker})
	body := lab.Chat(t, "back", 100, 2, false)
	status := func(e *envoytest.Instance) int {
		return lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body).Status
	}
	if status(open) != http.StatusOK || status(shut) != http.StatusOK {
		t.Fatal("requests fail before anything happened")
	}
	l.Sluice.Stop()
	for _, e := range []*envoytest.Instance{open, shut} {
		lab.Wait(t, "the failure to be seen", func() bool { return e.Stat(t, healthyPickers) == 0 })
	}
	for range 5 {
		if got := status(open); got != http.StatusOK {
			t.Errorf("open: status %d, want 200", got)
		}
		if got := status(shut); got != http.StatusServiceUnavailable {
			t.Errorf("closed: status %d, want 503", got)
		}
	}
	again := lab.StartSluice(t, lab.At(address, lab.Plan{Endpoints: l.Addresses()}))
	for _, e := range []*envoytest.Instance{open, shut} {
		before := again.Total(t, "sluice_requests_total", `result="picked"`)
		// Envoy merges changes of health within a second, so its workers see the second one late.
		lab.Wait(t, "the return to be seen", func() bool {
			got := status(e)
			return got == http.StatusOK && again.Total(t, "sluice_requests_total", `result="picked"`) > before
		})
	}
	again.Settle(t)
}
