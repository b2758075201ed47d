package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/sluice-epp/sluice/server/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a running App.
type process struct {
	app   *App
	stop  context.CancelFunc
	force chan struct{}
	ended chan error
	conn  *grpc.ClientConn
}

// launch starts an App on loopback; text is its configuration file, empty for the built-in one.
func launch(t *testing.T, text string, change func(*Options)) *process {
	t.Helper()
	o := Options{
		Registry: prometheus.NewRegistry(),
		Override: func(c *config.Config) {
			c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
			c.Server.DrainDelay, c.Server.DrainTimeout = 0, 10*time.Second
			if len(c.Endpoints) == 0 {
				c.Endpoints = []string{"127.0.0.1:1", "127.0.0.1:2"}
			}
		},
	}
	if text != "" {
		o.ConfigPath = filepath.Join(t.TempDir(), "sluice.yaml")
		write(t, o.ConfigPath, text)
	}
	if change != nil {
		change(&o)
	}
	app, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{app: app, force: make(chan struct{}), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go func() { p.ended <- app.Run(ctx, p.force) }()
	if p.conn, err = grpc.NewClient(app.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.conn.Close()
		cancel()
		if err, ok := <-p.ended; ok && err != nil {
			t.Errorf("run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	waitFor(t, app.Ready)
	return p
}

// wait waits for the process to end.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		close(p.ended)
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not end")
		return nil
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func (p *process) page(t *testing.T, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.app.AdminAddr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func (p *process) health(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := healthv1.NewHealthClient(p.conn).Check(ctx, &healthv1.HealthCheckRequest{Service: name})
	if err != nil {
		return err.Error()
	}
	return r.GetStatus().String()
}

func TestAdminPages(t *testing.T) {
	p := launch(t, "", nil)
	for path, want := range map[string]string{
		"/":          "/metrics",
		"/metrics":   `sluice_endpoints{state="ready"} 2`,
		"/config":    "prefix-cache-affinity-filter",
		"/graph":     "InFlightLoad",
		"/endpoints": `"address": "127.0.0.1:2"`,
		"/healthz":   "ok",
		"/readyz":    "ready",
	} {
		if status, page := p.page(t, path); status != http.StatusOK || !strings.Contains(page, want) {
			t.Errorf("%s: %d, without %q:\n%s", path, status, want, page)
		}
	}
	if status, _ := p.page(t, "/nothing"); status != http.StatusNotFound {
		t.Errorf("an unknown path: %d", status)
	}
}

func TestConfigHashIsShown(t *testing.T) {
	var log strings.Builder
	p := launch(t, fmt.Sprintf(profile, "random-picker"), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	hash := func() string {
		_, page := p.page(t, "/config")
		first, _, _ := strings.Cut(page, "\n")
		hash, ok := strings.CutPrefix(first, "# config_hash: ")
		if _, metrics := p.page(t, "/metrics"); !ok || !strings.Contains(metrics, `sluice_config_info{hash="`+hash+`"} 1`) {
			t.Errorf("the page begins with %q, and the metrics do not say the same", first)
		}
		return hash
	}
	before := hash()
	write(t, p.app.options.ConfigPath, fmt.Sprintf(profile, "max-score-picker"))
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 1 })
	after := hash()
	if after == before {
		t.Error("two configurations have one hash")
	}
	p.stop()
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "config_hash="+after) {
		t.Errorf("the reload does not log its hash:\n%s", log.String())
	}
}

// TestStartLog: the line that says that it serves says what it does beside.
func TestStartLog(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	folder := filepath.Join(t.TempDir(), "decisions")
	for file, want := range map[string]string{
		"": "admin_tls=false config=",
		"telemetry: {decisionLog: {path: " + folder + ", format: parquet}}\n": " decision_log=" + folder + " decision_log_format=parquet trace_exporter=console\n",
	} {
		var log strings.Builder
		p := launch(t, file, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		p.stop()
		if err := p.wait(t); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), want) || (file == "") == strings.Contains(log.String(), "decision_log") {
			t.Errorf("%q is not logged:\n%s", want, log.String())
		}
	}
}

func TestNoEndpointsIsWarnedAbout(t *testing.T) {
	var log strings.Builder
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) { before(c); c.Endpoints = nil }
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	p.stop()
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "no endpoints are configured") {
		t.Errorf("logged %q", log.String())
	}
}

func TestBadEndpointsBindNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, err = New(t.Context(), Options{Override: func(c *config.Config) {
		c.Endpoints, c.Server.Listen = []string{"10.0.0.1"}, taken.Addr().String()
	}})
	if err == nil || !strings.Contains(err.Error(), "endpoints[0]") {
		t.Errorf("got %v, want the endpoint's fault before that of the listener", err)
	}
}

func TestMetricsAreLint(t *testing.T) {
	registry := prometheus.NewRegistry()
	launch(t, "server: {tls: {mode: selfSigned}}\nplugins: [{type: max-score-picker}]\nschedulingProfiles: [{plugins: [{pluginRef: max-score-picker}]}]\n",
		func(o *Options) { o.Registry = registry })
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if !strings.HasPrefix(problem.Metric, "go_") { // the runtime's own names
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

func TestC25_HealthNamesAndDrain(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) { before(c); c.Server.DrainDelay = 400 * time.Millisecond }
	})
	for _, name := range append([]string{livenessName}, readinessNames...) {
		if got := p.health(t, name); got != "SERVING" {
			t.Errorf("%q: %s", name, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open, err := extprocv3.NewExternalProcessorClient(p.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pick(t, open)

	p.stop()
	waitFor(t, func() bool { return !p.app.Ready() })
	for _, name := range readinessNames {
		if got := p.health(t, name); got != "NOT_SERVING" {
			t.Errorf("draining, %q: %s", name, got)
		}
	}
	if got := p.health(t, livenessName); got != "SERVING" {
		t.Errorf("draining, liveness: %s", got)
	}
	if status, _ := p.page(t, "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("draining, /readyz: %d", status)
	}
	late, err := extprocv3.NewExternalProcessorClient(p.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pick(t, late) // what still comes within the delay is served
	finish(t, late)
	finish(t, open) // and so is the rest of what was open
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
}

// pick drives a GET through a stream.
func pick(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient) {
	t.Helper()
	err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if m.GetDynamicMetadata() == nil {
		t.Fatalf("no pick in %v", m)
	}
}

func finish(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient) {
	t.Helper()
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v, %v", m, err)
	}
}

func TestC25_SecondSignalStopsAtOnce(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) {
			before(c)
			c.Server.DrainDelay, c.Server.DrainTimeout = time.Hour, time.Hour
		}
	})
	s, err := extprocv3.NewExternalProcessorClient(p.conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pick(t, s)
	p.stop()
	waitFor(t, func() bool { return !p.app.Ready() })
	close(p.force)
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
}

func TestC25_GracePeriodWarning(t *testing.T) {
	for value, want := range map[string]string{"20s": "longer than the grace period", "soon": "not a duration", "10m": ""} {
		t.Setenv(gracePeriodVariable, value)
		var log strings.Builder
		launch(t, "", func(o *Options) {
			o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			before := o.Override
			o.Override = func(c *config.Config) {
				before(c)
				c.Server.DrainDelay, c.Server.DrainTimeout = 0, 30*time.Second
			}
		})
		if !strings.Contains(log.String(), want) || (want == "") != (log.Len() == 0) {
			t.Errorf("%s: logged %q, want %q", value, log.String(), want)
		}
	}
}

func TestStartErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for name, test := range map[string]struct {
		text string
		want string
	}{
		"typo":           {"plugins: [{type: queue-skorer}]", `did you mean "queue-scorer"`},
		"port taken":     {"server: {listen: \"" + taken.Addr().String() + "\"}", "server.listen"},
		"no certificate": {"server: {tls: {mode: files, certFile: /nowhere/a, keyFile: /nowhere/b}}", "server.tls"},
		"llm-d's alone":  {"plugins: [{type: utilization-filter}]", "llm-d's utilization-filter is not supported"},
	} {
		path := filepath.Join(t.TempDir(), "sluice.yaml")
		write(t, path, test.text)
		_, err := New(t.Context(), Options{ConfigPath: path, Override: func(c *config.Config) { c.Server.AdminListen = "127.0.0.1:0" }})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

func TestCertificateModes(t *testing.T) {
	a := &App{logger: slog.New(slog.DiscardHandler)}
	for name, test := range map[string]struct {
		server config.Server
		tls    bool
	}{
		"loopback":          {config.Server{Listen: "127.0.0.1:9002", TLS: config.TLS{Mode: config.TLSAuto}}, false},
		"loopback by name":  {config.Server{Listen: "localhost:9002", TLS: config.TLS{Mode: config.TLSAuto}}, false},
		"IPv6 loopback":     {config.Server{Listen: "[::1]:9002", TLS: config.TLS{Mode: config.TLSAuto}}, false},
		"everywhere":        {config.Server{Listen: ":9002", TLS: config.TLS{Mode: config.TLSAuto}}, true},
		"told plaintext":    {config.Server{Listen: ":9002", TLS: config.TLS{Mode: config.TLSPlaintext}}, false},
		"loopback all same": {config.Server{Listen: "127.0.0.1:1", TLS: config.TLS{Mode: config.TLSSelfSigned}}, true},
	} {
		k, err := a.certificates(&test.server)
		if err != nil || (k != nil) != test.tls {
			t.Errorf("%s: certificate %v, %v; want %v", name, k != nil, err, test.tls)
		}
	}
}

func TestHealthListenerTellsWhatItHas(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) { before(c); c.Server.HealthListen = "127.0.0.1:0" }
	})
	conn, err := grpc.NewClient(p.app.HealthAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range m.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	if !slices.Contains(names, healthv1.Health_ServiceDesc.ServiceName) || slices.Contains(names, extprocv3.ExternalProcessor_ServiceDesc.ServiceName) {
		t.Errorf("lists %q", names)
	}
}
