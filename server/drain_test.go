package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

// learner is a plugin that has much to learn before the first request.
type learner struct {
	begun   chan struct{} // closed when it begins
	learned chan struct{} // closed by the test: it knows everything
}

func (*learner) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (*learner) FirstToken(*scheduling.Flight, time.Duration)    {}
func (*learner) Done(*scheduling.Flight, time.Duration)          {}

func (l *learner) Warm(ctx context.Context) int {
	close(l.begun)
	select {
	case <-l.learned:
		return 0
	case <-ctx.Done():
		return 1
	}
}

// drainSeen is a log, closed when it says that the drain begins.
type drainSeen chan struct{}

func (d drainSeen) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("msg=draining")) {
		close(d)
	}
	return len(line), nil
}

// TestC25_SignalBeforeReady: a process that is told to go while it still learns what the engines hold never says that it
// is ready, whether it has learned it during the drain or not.
func TestC25_SignalBeforeReady(t *testing.T) {
	for name, learns := range map[string]bool{"learned during the drain": true, "not learned": false} {
		t.Run(name, func(t *testing.T) {
			l := &learner{begun: make(chan struct{}), learned: make(chan struct{})}
			path := filepath.Join(t.TempDir(), "sluice.yaml")
			write(t, path, "plugins: [{type: learner}]\n")
			drains := make(drainSeen)
			logger := slog.New(slog.NewTextHandler(drains, nil))
			app, err := New(t.Context(), Options{Registry: prometheus.NewRegistry(), Logger: logger, Override: func(c *config.Config) {
				c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
				c.Server.DrainDelay, c.Server.DrainTimeout = 300*time.Millisecond, 10*time.Second
				c.Endpoints = []string{"127.0.0.1:1"}
			}})
			if err != nil {
				t.Fatal(err)
			}
			file, err := config.Load(path, func(string) (string, bool) { return "", false })
			if err != nil {
				t.Fatal(err)
			}
			app.types = append(app.types, scheduling.PluginType{Type: "learner", New: func(*scheduling.Builder) (any, error) { return l, nil }})
			if err := app.apply(file); err != nil {
				t.Fatal(err)
			}
			p := &process{app: app, force: make(chan struct{}), ended: make(chan error, 1)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { p.ended <- app.Run(ctx, p.force) }()
			<-l.begun
			if status, _ := p.page(t, "/readyz"); status != http.StatusServiceUnavailable {
				t.Errorf("learning, /readyz: %d", status)
			}
			cancel()
			<-drains
			if learns {
				close(l.learned)
			}
			if err := p.wait(t); err != nil {
				t.Error(err)
			}
			if app.Ready() {
				t.Error("the process has become ready after it was told to go")
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
}
