package conformance

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// unavailable are the ways in which an endpoint picker's Service has nothing behind it.
func unavailable(t *testing.T) map[string][]string {
	t.Helper()
	return map[string][]string{"no address": nil, "a dead port": {fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))}}
}

// With failure mode FailOpen requests reach the pool without a picker.
func TestEppUnAvailableFailOpen(t *testing.T) {
	p := newPool(t, 2, 1)
	// First with the picker there: what fails open is nothing else.
	for _, r := range burst(t, p.gateway(t, envoy.Params{PoolType: envoy.OverrideHost, FailureModeAllow: true}).URL("/"), 10, selection, p.ips[1]) {
		if r.echo.Pod != p.pods[1].Addr {
			t.Errorf("with the picker: reached %s, selected %s", r.echo.Pod, p.pods[1].Addr)
		}
	}
	for name, pickers := range unavailable(t) {
		t.Run(name, func(t *testing.T) {
			g := lab.StartWithPickers(t, envoy.Params{PoolType: envoy.OverrideHost, FailureModeAllow: true, Endpoints: p.addresses()}, pickers...)
			for _, r := range burst(t, g.URL("/v1/completions"), 20, selection, p.ips[1]) {
				if !p.has(r.echo.Pod) || r.answer.Header.Get(served) != "" {
					t.Errorf("reached %s, reported %q", r.echo.Pod, r.answer.Header.Get(served))
				}
			}
		})
	}
}

// The client's half of InferencePoolInvalidEPPService: with FailClose a picker that cannot be reached is a server error.
func TestInferencePoolInvalidEPPService(t *testing.T) {
	p := newPool(t, 1, 1)
	client := lab.NewClient(t)
	for name, pickers := range unavailable(t) {
		t.Run(name, func(t *testing.T) {
			g := lab.StartWithPickers(t, envoy.Params{PoolType: envoy.OverrideHost, Endpoints: p.addresses()}, pickers...)
			for what, a := range map[string]lab.Answer{
				"GET": lab.Get(t, client, g.URL("/")), "POST": lab.Post(t, client, g.URL("/v1/completions"), completion),
			} {
				if a.Status < 500 || a.Status > 599 {
					t.Errorf("%s: status %d, want 5xx", what, a.Status)
				}
			}
		})
	}
	if n := p.pods[0].Hits(); n != 0 {
		t.Errorf("%d requests reached the pool", n)
	}
}
