package envoytest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
)

const clientTimeout = 15 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// Each body mode, pool type and source: of two endpoints the picked one is dialled, with a body and without.
func TestPickIsDialled(t *testing.T) {
	ips := envoytest.PodIPs(t, 2)
	other, picked := startUpstream(t, ips[0], "other"), startUpstream(t, ips[1], "picked")
	p := startPicker(t, picked.Addr)
	body := strings.Repeat("x", 300_000)
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered, envoy.Streamed} {
		for _, pool := range []envoy.PoolType{envoy.OriginalDst, envoy.OverrideHost} {
			for _, source := range []envoy.PickSource{envoy.FromHeader, envoy.FromMetadata} {
				t.Run(fmt.Sprintf("%s/%s/%s", mode, pool, source), func(t *testing.T) {
					e := envoytest.Start(t, envoy.Params{
						Picker: envoy.Picker{Address: p.Addr}, PoolType: pool, Source: source,
						Endpoints: []string{other.Addr, picked.Addr}, RequestBody: mode, ResponseBody: mode,
					})
					for range 3 {
						status, page := send(t, http.MethodPost, e.URL("/v1/chat/completions"), strings.NewReader(body))
						if want := fmt.Sprintf("picked /v1/chat/completions %d", len(body)); status != 200 || page != want {
							t.Fatalf("POST: %d %q, want 200 %q", status, page, want)
						}
					}
					status, page := send(t, http.MethodGet, e.URL("/v1/models"), nil)
					if status != 200 || page != "picked /v1/models 0" {
						t.Fatalf("GET: %d %q", status, page)
					}
					if got := e.Stat(t, "cluster.inference-pool.upstream_rq_total"); got != 4 {
						t.Errorf("upstream requests %d, want 4", got)
					}
					if got := picked.Seen().Get(envoy.DestinationKey); got != picked.Addr {
						t.Errorf("upstream saw %s %q, want %q", envoy.DestinationKey, got, picked.Addr)
					}
				})
			}
		}
	}
	if other.Hits() != 0 {
		t.Errorf("the endpoint that was not picked got %d requests", other.Hits())
	}
}

func TestBypassTakesTurns(t *testing.T) {
	ips := envoytest.PodIPs(t, 2)
	a, b := startUpstream(t, ips[0], "a"), startUpstream(t, ips[1], "b")
	p := startPicker(t, a.Addr)
	e := envoytest.Start(t, envoy.Params{
		Picker: envoy.Picker{Address: p.Addr}, Endpoints: []string{a.Addr, b.Addr},
		Bypass: &envoy.Bypass{Prefix: "/round-robin/"},
	})
	for range 10 {
		status, page := send(t, http.MethodPost, e.URL("/round-robin/v1/completions"), strings.NewReader("{}"))
		if status != 200 || !strings.HasSuffix(page, " /v1/completions 2") {
			t.Fatalf("%d %q", status, page)
		}
	}
	if a.Hits() != 5 || b.Hits() != 5 || p.Streams() != 0 {
		t.Errorf("hits %d and %d, picker streams %d; want 5, 5, 0", a.Hits(), b.Hits(), p.Streams())
	}
}

func TestBypassByHeader(t *testing.T) {
	ip := envoytest.PodIPs(t, 1)[0]
	a := startUpstream(t, ip, "a")
	p := startPicker(t, a.Addr)
	e := envoytest.Start(t, envoy.Params{
		Picker: envoy.Picker{Address: p.Addr}, Endpoints: []string{a.Addr}, Bypass: &envoy.Bypass{Header: "x-bypass"},
	})
	send(t, http.MethodGet, e.URL("/"), nil, "x-bypass", "1")
	if p.Streams() != 0 {
		t.Errorf("the picker saw %d streams, want 0", p.Streams())
	}
	send(t, http.MethodGet, e.URL("/"), nil)
	if p.Streams() != 1 || a.Hits() != 2 {
		t.Errorf("picker streams %d, hits %d; want 1 and 2", p.Streams(), a.Hits())
	}
}

// With the picker gone and requests let through, a client's own destination must lead nowhere.
func TestClientDestinationIsStripped(t *testing.T) {
	ips := envoytest.PodIPs(t, 2)
	victim, listed := startUpstream(t, ips[0], "victim"), startUpstream(t, ips[1], "listed")
	dead := fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))
	for _, pool := range []envoy.PoolType{envoy.OriginalDst, envoy.OverrideHost} {
		e := envoytest.Start(t, envoy.Params{
			Picker: envoy.Picker{Address: dead}, PoolType: pool, FailureModeAllow: true, Endpoints: []string{listed.Addr},
		})
		status, page := send(t, http.MethodGet, e.URL("/"), nil, envoy.DestinationKey, victim.Addr)
		if want := map[envoy.PoolType]int{envoy.OriginalDst: 503, envoy.OverrideHost: 200}[pool]; status != want {
			t.Errorf("%s: %d %q, want %d", pool, status, page, want)
		}
	}
	if victim.Hits() != 0 || listed.Hits() != 1 {
		t.Errorf("hits: victim %d, listed %d; want 0 and 1", victim.Hits(), listed.Hits())
	}
}

// The first of two picks is dead: the retry goes to the second with the whole body, and the picker hears who served.
func TestRetryWalksThePicks(t *testing.T) {
	ips := envoytest.PodIPs(t, 3)
	unpicked, live := startUpstream(t, ips[0], "unpicked"), startUpstream(t, ips[1], "live")
	dead := fmt.Sprintf("%s:%d", ips[2], envoytest.FreePort(t, ips[2]))
	p := startPicker(t, dead+","+live.Addr)
	e := envoytest.Start(t, envoy.Params{
		Picker: envoy.Picker{Address: p.Addr}, PoolType: envoy.OverrideHost, Retries: 2,
		Endpoints: []string{unpicked.Addr, dead, live.Addr}, AccessLog: true,
	})
	body := strings.Repeat("x", 3<<20)
	status, page := send(t, http.MethodPost, e.URL("/"), strings.NewReader(body))
	if want := fmt.Sprintf("live / %d", len(body)); status != 200 || page != want {
		t.Fatalf("%d %q, want 200 %q", status, page, want)
	}
	if p.Served() != live.Addr {
		t.Errorf("served %q, want %q", p.Served(), live.Addr)
	}
	e.WaitStat(t, "cluster.inference-pool.upstream_rq_retry_success", 1, clientTimeout)
	e.Stop()
	for _, part := range []string{`"picked":"` + dead + "," + live.Addr + `"`, `"served":"` + live.Addr + `"`, `"attempts":2`} {
		if !strings.Contains(e.Log(), part) {
			t.Errorf("access log has no %s:\n%s", part, e.Log())
		}
	}
}

func TestSubsetHint(t *testing.T) {
	a := startUpstream(t, envoytest.PodIPs(t, 1)[0], "a")
	tests := map[string]struct {
		set    func(*envoy.Params)
		header string
		want   any
	}{
		"none":      {set: func(*envoy.Params) {}},
		"list":      {set: func(p *envoy.Params) { p.Subset = []string{a.Addr, "10.0.0.1:80"} }, want: []any{a.Addr, "10.0.0.1:80"}},
		"empty":     {set: func(p *envoy.Params) { p.Subset = []string{} }, want: []any{}},
		"header":    {set: func(p *envoy.Params) { p.SubsetHeader = "x-subset" }, header: a.Addr + ",10.0.0.1:80", want: a.Addr + ",10.0.0.1:80"},
		"no header": {set: func(p *envoy.Params) { p.SubsetHeader = "x-subset" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := startPicker(t, a.Addr)
			params := envoy.Params{Picker: envoy.Picker{Address: p.Addr}}
			tc.set(&params)
			e := envoytest.Start(t, params)
			var headers []string
			if tc.header != "" {
				headers = []string{"x-subset", tc.header}
			}
			if status, page := send(t, http.MethodGet, e.URL("/"), nil, headers...); status != 200 {
				t.Fatalf("%d %q", status, page)
			}
			var got any
			if p.Subset() != nil {
				got = p.Subset().AsInterface()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("subset hint (-want +got):\n%s", diff)
			}
			if a.Seen().Get("x-subset") != "" {
				t.Error("the subset header went upstream")
			}
		})
	}
}

// Pools by prefix and by weight each ask their own picker.
func TestPoolsHaveTheirOwnPickers(t *testing.T) {
	ips := envoytest.PodIPs(t, 3)
	a, b, c := startUpstream(t, ips[0], "a"), startUpstream(t, ips[1], "b"), startUpstream(t, ips[2], "c")
	pa, pb, pc := startPicker(t, a.Addr), startPicker(t, b.Addr), startPicker(t, c.Addr)
	e := envoytest.Start(t, envoy.Params{
		Picker: envoy.Picker{Address: pa.Addr}, Weight: 1,
		Pools: []envoy.Pool{
			{Name: "second", Picker: envoy.Picker{Address: pb.Addr}, Weight: 1},
			{Name: "third", Picker: envoy.Picker{Address: pc.Addr}, Prefix: "/third/"},
		},
	})
	for range 40 {
		if status, page := send(t, http.MethodPost, e.URL("/"), strings.NewReader("{}")); status != 200 {
			t.Fatalf("%d %q", status, page)
		}
	}
	if a.Hits()+b.Hits() != 40 || a.Hits() == 0 || b.Hits() == 0 || pa.Streams() != a.Hits() || pb.Streams() != b.Hits() {
		t.Errorf("hits %d and %d, streams %d and %d", a.Hits(), b.Hits(), pa.Streams(), pb.Streams())
	}
	if status, page := send(t, http.MethodPost, e.URL("/third/x"), strings.NewReader("{}")); status != 200 || page != "c /third/x 2" {
		t.Errorf("%d %q", status, page)
	}
	if pc.Streams() != 1 {
		t.Errorf("the third picker saw %d streams, want 1", pc.Streams())
	}
}

func TestPickerOverTLS(t *testing.T) {
	a := startUpstream(t, envoytest.PodIPs(t, 1)[0], "a")
	caFile, keyFile := envoytest.WriteCertificate(t, "picker.test")
	server, err := credentials.NewServerTLSFromFile(caFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	p := startPicker(t, a.Addr, grpc.Creds(server))
	tests := map[string]struct {
		tls  *envoy.TLS
		want int
	}{
		"any certificate": {&envoy.TLS{}, 200},
		"trusted":         {&envoy.TLS{CAFile: caFile, ServerName: "picker.test"}, 200},
		"another name":    {&envoy.TLS{CAFile: caFile, ServerName: "other.test"}, 503},
		"plain text":      {nil, 503},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := envoytest.Start(t, envoy.Params{Picker: envoy.Picker{Address: p.Addr, TLS: tc.tls}})
			if status, page := send(t, http.MethodPost, e.URL("/"), strings.NewReader("{}")); status != tc.want {
				t.Errorf("%d %q, want %d", status, page, tc.want)
			}
		})
	}
}

// The pick travels as metadata, so its header need not reach the engine.
func TestDestinationCanBeHidden(t *testing.T) {
	a := startUpstream(t, envoytest.PodIPs(t, 1)[0], "a")
	p := startPicker(t, a.Addr)
	for _, pool := range []envoy.PoolType{envoy.OriginalDst, envoy.OverrideHost} {
		e := envoytest.Start(t, envoy.Params{
			Picker: envoy.Picker{Address: p.Addr}, PoolType: pool, Endpoints: []string{a.Addr},
			Source: envoy.FromMetadata, HideDestination: true,
		})
		if status, page := send(t, http.MethodPost, e.URL("/"), strings.NewReader("{}")); status != 200 || page != "a / 2" {
			t.Errorf("%s: %d %q", pool, status, page)
		}
		if got := a.Seen().Values(envoy.DestinationKey); got != nil {
			t.Errorf("%s: the engine saw %q", pool, got)
		}
	}
}

// A picker that says it is not serving is left, and requests pass unpicked or fail as the parameters say.
func TestUnhealthyPickerIsLeft(t *testing.T) {
	a := startUpstream(t, envoytest.PodIPs(t, 1)[0], "a")
	for allow, want := range map[bool]int{true: 200, false: 503} {
		p := startPicker(t, a.Addr)
		e := envoytest.Start(t, envoy.Params{
			Picker: envoy.Picker{Address: p.Addr, HealthInterval: 20 * time.Millisecond}, PoolType: envoy.OverrideHost,
			Endpoints: []string{a.Addr}, FailureModeAllow: allow,
		})
		p.checks.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_NOT_SERVING)
		e.WaitStat(t, "cluster.endpoint-picker.health_check.failure", 1, clientTimeout)
		if status, page := send(t, http.MethodPost, e.URL("/"), strings.NewReader("{}")); status != want {
			t.Errorf("failure mode allow %t: %d %q, want %d", allow, status, page, want)
		}
		if p.Streams() != 0 {
			t.Errorf("the picker saw %d streams, want 0", p.Streams())
		}
	}
}

// One health check without an answer does not cost the only picker; a picker that stays silent is left.
func TestSilentPickerIsLeft(t *testing.T) {
	a := startUpstream(t, envoytest.PodIPs(t, 1)[0], "a")
	p := startPicker(t, a.Addr)
	// Half a second, so that an answer is late only where it is meant to be.
	e := envoytest.Start(t, envoy.Params{Picker: envoy.Picker{Address: p.Addr, HealthInterval: 500 * time.Millisecond}})
	const failures = "cluster.endpoint-picker.health_check.failure"
	silence := func(checks int32, failed int64) (status int, page string) {
		e.WaitStat(t, "cluster.endpoint-picker.membership_healthy", 1, clientTimeout)
		before := e.Stat(t, failures)
		p.checks.silent.Store(checks)
		e.WaitStat(t, failures, before+failed, clientTimeout)
		return send(t, http.MethodPost, e.URL("/"), strings.NewReader("{}"))
	}
	status, page := 0, ""
	for range 5 { // on a busy machine a second answer may be late by itself
		if status, page = silence(1, 1); status == http.StatusOK {
			break
		}
	}
	if status != http.StatusOK {
		t.Errorf("after a check without an answer: %d %q", status, page)
	}
	if status, page = silence(1000, 3); status != http.StatusServiceUnavailable {
		t.Errorf("after three checks without an answer: %d %q", status, page)
	}
}
