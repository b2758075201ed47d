package conformance

import (
	"math"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// Two gateways with a pool each: a request reaches the pool of its gateway.
func TestInferencePoolMultipleGatewaysDifferentPools(t *testing.T) {
	client := lab.NewClient(t)
	for range 2 {
		p := newPool(t, 2, 1)
		g := p.gateway(t, envoy.Params{})
		for range 10 {
			if echo := lab.ReadEcho(t, lab.Get(t, client, g.URL("/"))); !p.has(echo.Pod) {
				t.Errorf("reached %s, want one of %v", echo.Pod, p.addresses())
			}
		}
	}
}

// both starts one gateway in front of two pools; the second gets the requests under a prefix, or a share by weight.
func both(t *testing.T, first, second *pool, weight uint32, extra envoy.Pool) *envoytest.Instance {
	t.Helper()
	extra.Name, extra.Picker.Address, extra.Endpoints = "secondary", second.picker.Addr(), second.addresses()
	return first.gateway(t, envoy.Params{PoolType: envoy.OverrideHost, Weight: weight, Pools: []envoy.Pool{extra}})
}

// One gateway with two rules: a request reaches the pool of its rule, and the picker that knows it.
func TestHTTPRouteMultipleRulesDifferentPools(t *testing.T) {
	primary, secondary := newPool(t, 2, 1), newPool(t, 2, 1)
	g := both(t, primary, secondary, 0, envoy.Pool{Prefix: "/secondary"})
	for path, p := range map[string]*pool{"/primary": primary, "/secondary": secondary} {
		for _, r := range burst(t, g.URL(path+"/v1/completions"), 20) {
			if !p.has(r.echo.Pod) {
				t.Errorf("%s reached %s, want one of %v", path, r.echo.Pod, p.addresses())
			}
		}
		if n := p.picker.Total(t, "sluice_requests_total", `result="picked"`); n != 20 {
			t.Errorf("the picker of %s was asked %v times, want 20", path, n)
		}
	}
}

// Two pools share the requests 70 to 30. The client's selection lists the pods of both: each picker chooses among those
// of its own pool.
func TestGatewayWeightedAcrossTwoInferencePools(t *testing.T) {
	const requests, share = 200, 0.7
	primary, secondary := newPool(t, 2, 1), newPool(t, 2, 1)
	g := both(t, primary, secondary, 70, envoy.Pool{Weight: 30})
	union := strings.Join(append(primary.addresses(), secondary.addresses()...), ",")
	count := map[*pool]int{}
	for _, r := range burst(t, g.URL("/v1/completions"), requests, selection, union) {
		for _, p := range []*pool{primary, secondary} {
			if p.has(r.echo.Pod) {
				count[p]++
			}
		}
		if got := r.answer.Header.Get(served); got != r.echo.Pod {
			t.Errorf("served by %s, reported %q", r.echo.Pod, got)
		}
	}
	if count[primary]+count[secondary] != requests {
		t.Errorf("%d and %d of %d requests reached the pools", count[primary], count[secondary], requests)
	}
	tolerance := max(0.10, 4.5*math.Sqrt(share*(1-share)/requests))
	if got := float64(count[primary]) / requests; math.Abs(got-share) > tolerance {
		t.Errorf("the first pool got %.2f of the requests, want %.2f ± %.2f", got, share, tolerance)
	}
	for p, n := range count {
		if asked := p.picker.Total(t, "sluice_requests_total", `result="picked"`); asked != float64(n) {
			t.Errorf("a picker picked %v times, its pool got %d requests", asked, n)
		}
	}
}
