package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is a pool of simulated engines, a Sluice process and, once startEnvoy is called, an Envoy in front of it.
type lab struct {
	t       *testing.T
	engines []*engine.Server
	sluice  *sluice
	envoy   *envoytest.Instance
	client  *http.Client
}

// plan says what a lab is made of; the zero value is three engines and the built-in configuration.
type plan struct {
	engines     int
	engine      engine.Config // Listen and Name are set per engine
	config      string        // the configuration file's text
	override    func(*config.Config)
	conformance bool
}

func newLab(t *testing.T, p plan) *lab {
	t.Helper()
	if p.engines == 0 {
		p.engines = 3
	}
	l := &lab{t: t, client: newClient(t)}
	for i, ip := range envoytest.PodIPs(t, p.engines) {
		c := p.engine
		c.Listen, c.Name = ip+":0", fmt.Sprintf("engine-%d", i)
		if c.Speed == 0 {
			c.Speed = 50
		}
		s, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		l.engines = append(l.engines, s)
	}
	l.sluice = startSluice(t, p, l.addresses()...)
	return l
}

func (l *lab) addresses() []string {
	var all []string
	for _, e := range l.engines {
		all = append(all, e.Addr().String())
	}
	return all
}

// startEnvoy puts an Envoy in front; what p leaves out comes from the lab.
func (l *lab) startEnvoy(p envoy.Params) {
	l.t.Helper()
	p.Picker.Address = l.sluice.app.Addr().String()
	if p.Endpoints == nil {
		p.Endpoints = l.addresses()
	}
	l.envoy = envoytest.Start(l.t, p)
}

// sluice is a process of ours, inside the test.
type sluice struct {
	app   *server.App
	stop  context.CancelFunc
	force chan struct{}
	done  chan struct{}
	log   *bytes.Buffer
}

func startSluice(t *testing.T, p plan, endpoints ...string) *sluice {
	t.Helper()
	s := &sluice{force: make(chan struct{}), done: make(chan struct{}), log: &bytes.Buffer{}}
	o := server.Options{
		Registry:    prometheus.NewRegistry(),
		Logger:      slog.New(slog.NewTextHandler(&lockedWriter{w: s.log}, nil)),
		Conformance: p.conformance,
		Override: func(c *config.Config) {
			c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
			c.Server.DrainDelay, c.Server.DrainTimeout = 0, 5*time.Second
			if len(c.Endpoints) == 0 && c.EndpointsFile == "" {
				c.Endpoints = endpoints
			}
			if p.override != nil {
				p.override(c)
			}
		},
	}
	if p.config != "" {
		o.ConfigPath = filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(o.ConfigPath, []byte(p.config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.app, err = server.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() {
		defer close(s.done)
		if err := s.app.Run(ctx, s.force); err != nil {
			t.Errorf("sluice: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
		if t.Failed() {
			t.Logf("sluice wrote:\n%s", s.log)
		}
	})
	waitFor(t, s.app.Ready)
	return s
}

// metric reads one sample of the admin port's metrics page, by its full name with labels; 0 where it is not there.
func (s *sluice) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, page, _ := get(t, http.DefaultClient, "http://"+s.app.AdminAddr().String()+"/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// inFlight is what the ledger holds over all endpoints.
func (s *sluice) inFlight(t *testing.T) (requests, tokens int64) {
	t.Helper()
	_, page, _ := get(t, http.DefaultClient, "http://"+s.app.AdminAddr().String()+"/endpoints")
	var views []struct {
		Requests int64 `json:"in_flight_requests"`
		Tokens   int64 `json:"in_flight_tokens"`
	}
	if err := json.Unmarshal([]byte(page), &views); err != nil {
		t.Fatalf("%v in %q", err, page)
	}
	for _, v := range views {
		requests += v.Requests
		tokens += v.Tokens
	}
	return requests, tokens
}

// settles waits until nothing is in flight.
func (s *sluice) settles(t *testing.T) {
	t.Helper()
	waitFor(t, func() bool { r, n := s.inFlight(t); return r == 0 && n == 0 })
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tr.CloseIdleConnections)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

func get(t *testing.T, c *http.Client, url string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, c, r)
}

func post(t *testing.T, c *http.Client, url, body string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("content-type", "application/json")
	return do(t, c, r)
}

func do(t *testing.T, c *http.Client, r *http.Request) (int, string, http.Header) {
	t.Helper()
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v after %d bytes", r.Method, r.URL, err, len(b))
	}
	return res.StatusCode, string(b), res.Header
}

// chat is a chat request with a system prompt that starts with name and about n words.
func chat(name string, n, maxTokens int, stream bool) string {
	m, err := json.Marshal(map[string]any{
		"model": "sim", "max_tokens": maxTokens, "stream": stream, "stream_options": map[string]any{"include_usage": true},
		"messages": []map[string]string{
			{"role": "system", "content": name + strings.Repeat(" remembers the way", n/3)},
			{"role": "user", "content": "Where to?"},
		},
	})
	if err != nil {
		panic(err)
	}
	return string(m)
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
