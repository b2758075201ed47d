package conformance

import (
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/lab"
)

// Each way for the gateway to follow the picker.
var gateways = map[string]envoy.Params{
	"ORIGINAL_DST":                     {},
	"override_host from the header":    {PoolType: envoy.OverrideHost},
	"override_host from the metadata":  {PoolType: envoy.OverrideHost, Source: envoy.FromMetadata},
	"ORIGINAL_DST, buffered bodies":    {RequestBody: envoy.Buffered},
	"ORIGINAL_DST, no request body":    {RequestBody: envoy.BodyNone},
	"override_host, pick not upstream": {PoolType: envoy.OverrideHost, Source: envoy.FromMetadata, HideDestination: true},
}

// Every one of 100 requests, ten at a time, reaches a pod that the picker may choose, and none leaks to another.
func TestGatewayFollowingEPPRouting(t *testing.T) {
	p := newPool(t, 3, 1)
	for name, params := range gateways {
		t.Run(name, func(t *testing.T) {
			g := p.gateway(t, params)
			for n := 1; n <= 3; n++ {
				chosen := p.ips[:n]
				follows(t, p, burst(t, g.URL("/v1/completions"), 100, selection, strings.Join(chosen, ",")), p.addresses()[:n])
			}
		})
	}
}

// follows checks that requests reached exactly the given pods, each of them, and nobody else.
func follows(t *testing.T, p *pool, results []result, pods []string) {
	t.Helper()
	reached := map[string]int{}
	for _, r := range results {
		reached[r.echo.Pod]++
		if r.echo.Header[selection] != nil {
			t.Errorf("the pod saw the header %s", selection)
		}
	}
	for _, pod := range pods {
		if reached[pod] == 0 {
			t.Errorf("no request reached %s: %v", pod, reached)
		}
		delete(reached, pod)
	}
	if len(reached) != 0 {
		t.Errorf("requests leaked to %v, the picker could choose among %v", reached, pods)
	}
	p.picker.Settle(t)
}

// Data-parallel ranks: several ports on each address. An address alone means any of its ports, one with a port that port.
func TestGatewayFollowingEPPRoutingDP(t *testing.T) {
	const pods, ports = 3, 2
	p := newPool(t, pods, ports)
	all := p.addresses()
	for name, params := range gateways {
		t.Run(name, func(t *testing.T) {
			g := p.gateway(t, params)
			for _, tt := range []struct {
				chosen string
				want   []string
			}{
				{p.ips[0], []string{all[0], all[0+pods]}},
				{p.ips[0] + ", " + p.ips[2], []string{all[0], all[0+pods], all[2], all[2+pods]}},
				{all[1], []string{all[1]}},
				{all[1+pods], []string{all[1+pods]}},
				{all[0] + "," + all[2+pods], []string{all[0], all[2+pods]}},
				{all[0] + "," + p.ips[1], []string{all[0], all[1], all[1+pods]}},
				{strings.Join(p.ips, ","), all},
			} {
				follows(t, p, burst(t, g.URL("/"), 100, selection, tt.chosen), tt.want)
			}
		})
	}
}

// The gateway tells the picker who served, and the picker tells the client.
func TestGatewayDestinationEndpointServed(t *testing.T) {
	p := newPool(t, 3, 1)
	for _, source := range []envoy.PickSource{envoy.FromHeader, envoy.FromMetadata} {
		g := p.gateway(t, envoy.Params{PoolType: envoy.OverrideHost, Source: source})
		for _, pod := range p.pods {
			for _, r := range burst(t, g.URL("/"), 10, selection, ip(t, pod.Addr)) {
				if got := r.answer.Header.Get(served); got != pod.Addr || r.echo.Pod != pod.Addr {
					t.Errorf("%s: selected %s, answered by %s, reported as served by %q", source, pod.Addr, r.echo.Pod, got)
				}
			}
		}
	}
	// A gateway that reports nothing is told apart from one that does.
	g := p.gateway(t, envoy.Params{})
	if got := burst(t, g.URL("/"), 1)[0].answer.Header.Get(served); !strings.HasPrefix(got, "fail: ") {
		t.Errorf("without a report: %q, want a failure", got)
	}
}

// The pool's application protocol decides how pods are spoken to, and does not change who serves.
func TestGatewayInferencePoolAppProtocol(t *testing.T) {
	p := newPool(t, 2, 1)
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(protocol, func(t *testing.T) {
			g := p.gateway(t, envoy.Params{PoolType: envoy.OverrideHost, HTTP2Upstream: http2})
			for _, pod := range p.pods {
				for _, r := range burst(t, g.URL("/"), 10, selection, pod.Addr) {
					if r.echo.Proto != protocol || r.echo.Pod != pod.Addr || r.answer.Header.Get(served) != pod.Addr {
						t.Errorf("selected %s: served by %s over %s, reported %q; want %s", pod.Addr, r.echo.Pod, r.echo.Proto,
							r.answer.Header.Get(served), protocol)
					}
				}
			}
		})
	}
}

// The EPP's half of HTTPRoutePortValidation: the pod's port comes from the pool, whatever port the client's authority has.
func TestHTTPRoutePortValidation(t *testing.T) {
	p := newPool(t, 1, 1)
	g := p.gateway(t, envoy.Params{})
	port := p.pods[0].Addr[strings.LastIndexByte(p.pods[0].Addr, ':'):]
	client := lab.NewClient(t)
	for name, authority := range map[string]string{
		"unspecified": "port.example.com", "matching": "port.example.com" + port, "other": "port.example.com:8888",
	} {
		echo := lab.ReadEcho(t, lab.Get(t, client, g.URL("/test-port-"+name), "host", authority))
		if echo.Pod != p.pods[0].Addr || echo.Host != authority || echo.Path != "/test-port-"+name {
			t.Errorf("%s: %+v, want pod %s", name, echo, p.pods[0].Addr)
		}
	}
}
