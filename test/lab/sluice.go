package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
)

// Sluice is a process of ours, inside the test, on ports that the kernel chose.
type Sluice struct {
	App *server.App
	// ConfigPath is its configuration file; empty with the built-in configuration.
	ConfigPath string

	terminate context.CancelFunc
	kill      func()
	done      chan struct{}
	log       *journal
	admin     *http.Client
}

// StartSluice starts a Sluice that knows p.Endpoints, unless the configuration names a source of its own. It returns
// once the process is ready, and stops it with the test.
func StartSluice(t testing.TB, p Plan) *Sluice {
	t.Helper()
	s := &Sluice{done: make(chan struct{}), log: &journal{}, admin: NewClient(t)}
	force := make(chan struct{})
	s.kill = sync.OnceFunc(func() { close(force) })
	level := &slog.LevelVar{}
	o := server.Options{
		Registry:    prometheus.NewRegistry(),
		Logger:      slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: level})),
		Level:       level,
		Conformance: p.Conformance,
		Override:    func(c *config.Config) { override(c, p) },
	}
	if p.Config != "" {
		s.ConfigPath = filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(s.ConfigPath, []byte(p.Config), 0o600); err != nil {
			t.Fatal(err)
		}
		o.ConfigPath = s.ConfigPath
	}
	var err error
	if s.App, err = server.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.terminate = cancel
	go func() {
		defer close(s.done)
		if err := s.App.Run(ctx, force); err != nil {
			t.Errorf("sluice: %v", err)
		}
	}()
	t.Cleanup(func() {
		s.Terminate()
		s.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("sluice wrote:\n%s", s.Log())
		}
	})
	Wait(t, "sluice to be ready", s.App.Ready)
	return s
}

func override(c *config.Config, p Plan) {
	c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Server.DrainDelay, c.Server.DrainTimeout = 0, 5*time.Second
	if len(c.Endpoints) == 0 && c.EndpointsFile == "" {
		c.Endpoints = p.Endpoints
	}
	if p.Override != nil {
		p.Override(c)
	}
}

// Addr is where Envoy reaches it.
func (s *Sluice) Addr() string { return s.App.Addr().String() }

// Terminate is a first SIGTERM: the process drains.
func (s *Sluice) Terminate() { s.terminate() }

// Kill is a second SIGTERM: the process stops without waiting.
func (s *Sluice) Kill() { s.kill() }

// Done is closed once the process has ended.
func (s *Sluice) Done() <-chan struct{} { return s.done }

// Stop ends the process at once and waits for its end.
func (s *Sluice) Stop() {
	s.Terminate()
	s.Kill()
	<-s.done
}

// Log is what the process has written.
func (s *Sluice) Log() string { return s.log.String() }

// Configure replaces the configuration file's text as an editor does: a new file, moved over the old one.
func (s *Sluice) Configure(t testing.TB, text string) {
	t.Helper()
	WriteFile(t, s.ConfigPath, text)
}

// Metric reads one sample of the admin port's metrics page by its full name, labels included, such as
// sluice_notes_total{kind="observed"}; 0 where it is not there.
func (s *Sluice) Metric(t testing.TB, name string) float64 {
	t.Helper()
	for line := range strings.Lines(s.page(t, "/metrics")) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return number(t, rest)
		}
	}
	return 0
}

// Total sums the samples of a family over its labels; a label such as release="estimated" restricts it.
func (s *Sluice) Total(t testing.TB, family string, labels ...string) float64 {
	t.Helper()
	return s.Metrics(t).Total(t, family, labels...)
}

// Metrics reads the admin port's metrics page.
func (s *Sluice) Metrics(t testing.TB) Metrics {
	t.Helper()
	return Metrics(s.page(t, "/metrics"))
}

// Metrics is a metrics page.
type Metrics string

// Total sums the samples of a family over its labels; a label such as release="estimated" restricts it.
func (m Metrics) Total(t testing.TB, family string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(string(m)) {
		rest, ok := strings.CutPrefix(line, family)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		of, value := rest[:strings.LastIndexByte(rest, ' ')], rest[strings.LastIndexByte(rest, ' ')+1:]
		matches := true
		for _, l := range labels {
			matches = matches && strings.Contains(of, l)
		}
		if matches {
			sum += number(t, value)
		}
	}
	return sum
}

func number(t testing.TB, text string) float64 {
	t.Helper()
	var v float64
	if _, err := fmt.Sscan(text, &v); err != nil {
		t.Fatalf("a metric's value %q: %v", text, err)
	}
	return v
}

// Load is what the ledger holds for one endpoint.
type Load struct {
	Requests int64 `json:"in_flight_requests"`
	Tokens   int64 `json:"in_flight_tokens"`
	Decoding int64 `json:"decoding_requests"`
}

// Loads is what the ledger holds, by the endpoint's address.
func (s *Sluice) Loads(t testing.TB) map[string]Load {
	t.Helper()
	var views []struct {
		Address string `json:"address"`
		Load
	}
	page := s.page(t, "/endpoints")
	if err := json.Unmarshal([]byte(page), &views); err != nil {
		t.Fatalf("%v in %q", err, page)
	}
	all := map[string]Load{}
	for _, v := range views {
		all[v.Address] = v.Load
	}
	return all
}

// InFlight is what the ledger holds over all endpoints.
func (s *Sluice) InFlight(t testing.TB) Load {
	t.Helper()
	var sum Load
	for _, l := range s.Loads(t) {
		sum.Requests += l.Requests
		sum.Tokens += l.Tokens
		sum.Decoding += l.Decoding
	}
	return sum
}

// Settle waits until nothing is in flight and no stream is open.
func (s *Sluice) Settle(t testing.TB) {
	t.Helper()
	Wait(t, "the ledger to be empty", func() bool { return s.InFlight(t) == Load{} })
	Wait(t, "streams to end", func() bool { return s.Metric(t, "sluice_open_streams") == 0 })
}

func (s *Sluice) page(t testing.TB, path string) string {
	t.Helper()
	a := Get(t, s.admin, "http://"+s.App.AdminAddr().String()+path)
	if a.Status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, a.Status, a.Body)
	}
	return a.Body
}

// journal is a log that may be read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}
