package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// readinessNames are the names under which a process says whether it wants requests.
var readinessNames = []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"}

// healthInterval is how often Envoy asks for health where a test waits for it to notice.
const healthInterval = 50 * time.Millisecond

// healthyPickers is Envoy's gauge of pickers that it sends requests to.
const healthyPickers = "cluster." + envoy.PickerCluster + ".membership_healthy"

// gated is an engine that streams one event, and the rest once its gate is open.
type gated struct{ gate chan struct{} }

// ServeHTTP implements http.Handler.
func (g *gated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("content-type", "text/event-stream")
	fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"first"}}]}`+"\n\n")
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-g.gate:
		fmt.Fprint(w, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}`+"\n\ndata: [DONE]\n\n")
	case <-r.Context().Done():
	}
}

// openStreams sends requests and returns once each has its first event.
func openStreams(t *testing.T, c *http.Client, e *envoytest.Instance, n int) []*http.Response {
	t.Helper()
	all := make([]*http.Response, n)
	var group sync.WaitGroup
	for i := range all {
		r := lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), strings.NewReader(lab.Chat(t, fmt.Sprint(i), 50, 4, true)))
		group.Go(func() {
			res, err := c.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			first := make([]byte, len("data: "))
			if _, err := io.ReadFull(res.Body, first); err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("stream %d: status %d, %v", i, res.StatusCode, err)
			}
			all[i] = res
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// healthOf asks a Sluice under a name.
func healthOf(t *testing.T, c healthv1.HealthClient, name string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := c.Check(lab.Context(t), &healthv1.HealthCheckRequest{Service: name})
	if err != nil {
		t.Fatalf("health of %q: %v", name, err)
	}
	return answer.GetStatus()
}

// C25: 20 streams are open when the process is told to go, 10 more requests come after that; all 30 finish, readiness
// says at once that no more are wanted, and the process then ends by itself.
func TestC25_DrainUnderLoad(t *testing.T) {
	g := &gated{gate: make(chan struct{})}
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", g)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Override: func(c *config.Config) {
		c.Server.DrainDelay, c.Server.DrainTimeout = 3*time.Second, lab.Timeout
	}})
	// Without health checks Envoy stays on its old connection, as a proxy does that has not noticed yet.
	e := l.Envoy(t, envoy.Params{Endpoints: []string{address}, Picker: envoy.Picker{NoHealthCheck: true}})
	asks := dial(t, l.Sluice.Addr())
	for _, name := range append(readinessNames, "liveness") {
		if got := healthOf(t, asks, name); got != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("before: health of %q is %v", name, got)
		}
	}
	streams := openStreams(t, l.Client, e, 20)

	l.Sluice.Terminate()
	lab.Wait(t, "the drain to begin", func() bool { return !l.Sluice.App.Ready() })
	for _, name := range readinessNames {
		if got := healthOf(t, asks, name); got != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("draining: health of %q is %v", name, got)
		}
	}
	if got := healthOf(t, asks, "liveness"); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("draining: liveness is %v", got)
	}
	admin := "http://" + l.Sluice.App.AdminAddr().String()
	if a := lab.Get(t, l.Client, admin+"/readyz"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("draining: /readyz answers %d", a.Status)
	}
	if a := lab.Get(t, l.Client, admin+"/healthz"); a.Status != http.StatusOK {
		t.Errorf("draining: /healthz answers %d", a.Status)
	}
	streams = append(streams, openStreams(t, l.Client, e, 10)...)
	close(g.gate)
	for i, res := range streams {
		page, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.HasSuffix(string(page), "[DONE]\n\n") {
			t.Errorf("stream %d: %v after %q", i, err, page)
		}
	}
	select {
	case <-l.Sluice.Done():
	case <-time.After(lab.Timeout):
		t.Fatal("the process does not end although nothing is left")
	}
	if strings.Contains(l.Sluice.Log(), "cutting what is left") {
		t.Error("streams were cut")
	}
}

// C25: a second signal ends the process at once, whatever is open.
func TestC25_SecondSignal(t *testing.T) {
	g := &gated{gate: make(chan struct{})}
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", g)
	for name, delay := range map[string]time.Duration{"before the delay is over": time.Hour, "after it": 0} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Override: func(c *config.Config) {
				c.Server.DrainDelay, c.Server.DrainTimeout = delay, time.Hour
			}})
			e := l.Envoy(t, envoy.Params{Endpoints: []string{address}})
			streams := openStreams(t, l.Client, e, 5)
			l.Sluice.Terminate()
			lab.Wait(t, "the drain to begin", func() bool { return !l.Sluice.App.Ready() })
			select {
			case <-l.Sluice.Done():
				t.Error("the process ended with streams open")
			case <-time.After(100 * time.Millisecond):
			}
			began := time.Now()
			l.Sluice.Kill()
			<-l.Sluice.Done()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the second signal took %v", took)
			}
			for i, res := range streams {
				// The clients see a stream that breaks off, not one that looks complete.
				if page, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("stream %d ended well: %q", i, page)
				}
				_ = res.Body.Close()
			}
		})
	}
}

// C25: what comes when no picker takes new requests any more is refused as 503, which clients and gateways try again, and
// never as 500; what is open goes on meanwhile.
func TestC25_RefusalsAreRetryable(t *testing.T) {
	for name, mode := range map[string]envoy.BodyMode{"full duplex": envoy.FullDuplexStreamed, "buffered": envoy.Buffered} {
		t.Run(name, func(t *testing.T) {
			g := &gated{gate: make(chan struct{})}
			address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					g.ServeHTTP(w, r)
				}
			}))
			l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Override: func(c *config.Config) {
				c.Server.DrainDelay, c.Server.DrainTimeout = 0, lab.Timeout
			}})
			e := l.Envoy(t, envoy.Params{Endpoints: []string{address}, RequestBody: mode, Picker: envoy.Picker{NoHealthCheck: true}})
			streams := openStreams(t, l.Client, e, 1)
			refused := func(when string) {
				t.Helper()
				get := lab.Get(t, l.Client, e.URL("/v1/models"))
				post := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "late", 2000, 4, true))
				if get.Status != http.StatusServiceUnavailable || post.Status != http.StatusServiceUnavailable {
					t.Errorf("%s: GET is answered %d, POST %d, want 503: %s %s", when, get.Status, post.Status, get.Body, post.Body)
				}
			}
			l.Sluice.Terminate()
			lab.Wait(t, "requests to be refused", func() bool {
				a := lab.Get(t, l.Client, e.URL("/v1/models"))
				if a.Status != http.StatusOK && a.Status != http.StatusServiceUnavailable {
					t.Errorf("the drain begins: status %d, want 200 or 503: %s", a.Status, a.Body)
				}
				return a.Status != http.StatusOK
			})
			refused("draining")
			close(g.gate)
			page, err := io.ReadAll(streams[0].Body)
			_ = streams[0].Body.Close()
			if err != nil || !strings.HasSuffix(string(page), "[DONE]\n\n") {
				t.Errorf("the open stream: %v after %q", err, page)
			}
			<-l.Sluice.Done()
			refused("gone")
		})
	}
}

// C25: with two replicas, one that goes loses no request: it serves until the proxy has noticed, and its open streams
// to their end.
func TestC25_Replicas(t *testing.T) {
	l := lab.New(t, lab.Plan{Override: func(c *config.Config) {
		c.Server.DrainDelay, c.Server.DrainTimeout = 1500*time.Millisecond, lab.Timeout
	}})
	other := lab.StartSluice(t, lab.Plan{Endpoints: l.Addresses()})
	p := envoy.Params{Endpoints: l.Addresses(), Picker: envoy.Picker{HealthInterval: healthInterval}}
	e := lab.StartWithPickers(t, p, l.Sluice.Addr(), other.Addr())
	for i, s := range []*lab.Sluice{l.Sluice, other} {
		if got := healthOf(t, dial(t, s.Addr()), ""); got != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("replica %d is %v", i, got)
		}
	}
	traffic := lab.StartTraffic(t, l.Client, e.URL("/v1/chat/completions"), 4)
	picked := func(s *lab.Sluice) float64 { return s.Total(t, "sluice_requests_total", `result="picked"`) }
	lab.Wait(t, "both replicas to pick", func() bool { return picked(l.Sluice) > 10 && picked(other) > 10 })
	l.Sluice.Terminate()
	<-l.Sluice.Done()
	before := picked(other)
	lab.Wait(t, "the other to go on", func() bool { return picked(other) > before+20 })
	traffic.Stop(t)
	other.Settle(t)
}

// C25: a drain that the supervisor will cut short is said at the start.
func TestC25_GracePeriodWarning(t *testing.T) {
	for grace, warned := range map[string]bool{"10s": true, "5m": false} {
		t.Setenv("TERMINATION_GRACE_PERIOD", grace)
		s := lab.StartSluice(t, lab.Plan{Endpoints: []string{"127.0.0.1:1"}, Override: func(c *config.Config) {
			c.Server.DrainDelay, c.Server.DrainTimeout = 5*time.Second, 30*time.Second
		}})
		if got := strings.Contains(s.Log(), "longer than the grace period"); got != warned {
			t.Errorf("grace period %s: warned %t, want %t", grace, got, warned)
		}
	}
}
