package caller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/bench/caller"
	"github.com/sluice-epp/sluice/bench/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const whole = "data: {}\n\ndata: [DONE]\n\n"

// serve serves until the test ends, and counts the connections.
func serve(t *testing.T, h http.HandlerFunc) (address string, connections *atomic.Int64) {
	t.Helper()
	connections = &atomic.Int64{}
	s := httptest.NewUnstartedServer(h)
	var known sync.Map
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, seen := known.LoadOrStore(r.RemoteAddr, true); !seen {
			connections.Add(1)
		}
		inner.ServeHTTP(w, r)
	})
	s.Start()
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), connections
}

func TestRunPostsEveryBodyAndKeepsItsConnections(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	h := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		got[fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("x-extra"), b)]++
		mu.Unlock()
		for _, piece := range []string{"data: {}\n\n", "data: [DONE]\n\n"} {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
	}
	first, firstConnections := serve(t, h)
	second, secondConnections := serve(t, h)
	c := caller.New([]string{first, second}, [][]byte{[]byte("one"), []byte("two")}, 3, "x-extra: 7\r\n")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 {
		waits, err := c.Run(ctx, proxy.Times(20))
		if err != nil || len(waits) != 20 {
			t.Fatalf("%d requests: %v", len(waits), err)
		}
		for _, w := range waits {
			if w <= 0 || w > 20*time.Second {
				t.Errorf("headers after %v", w)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	want := map[string]int{"POST /v1/chat/completions 7 one": 20, "POST /v1/chat/completions 7 two": 20}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if a, b := firstConnections.Load(), secondConnections.Load(); a < 1 || a > 3 || b < 1 || b > 3 {
		t.Errorf("%d and %d connections for 3 workers", a, b)
	}
}

// The wait ends with the headers, however long the body takes.
func TestWaitIsForTheHeaders(t *testing.T) {
	const pause = 200 * time.Millisecond
	address, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		time.Sleep(pause) // what is measured
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	c := caller.New([]string{address}, [][]byte{nil}, 1, "")
	defer c.Close()
	begin := time.Now()
	waits, err := c.Run(t.Context(), proxy.Times(1))
	if all := time.Since(begin); err != nil || all < pause || waits[0] > all-pause/2 {
		t.Errorf("headers after %v of %v: %v", waits, all, err)
	}
}

func TestAConnectionThatTheServerEnds(t *testing.T) {
	address, connections := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, whole)
	})
	c := caller.New([]string{address}, [][]byte{nil}, 1, "")
	defer c.Close()
	if waits, err := c.Run(t.Context(), proxy.Times(4)); err != nil || len(waits) != 4 || connections.Load() != 4 {
		t.Errorf("%d requests over %d connections: %v", len(waits), connections.Load(), err)
	}
}

func TestFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		status     int
		body, want string
	}{
		"refused":      {503, "no endpoint", "status 503: no endpoint"},
		"cut":          {200, "data: {}\n\n", "no whole stream"},
		"no events":    {200, "hello\n\ndata: [DONE]\n\n", "no whole stream"},
		"empty answer": {200, "", "an answer of 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			c := caller.New([]string{address}, [][]byte{nil}, 2, "")
			defer c.Close()
			if _, err := c.Run(t.Context(), proxy.Times(4)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error that says %q", err, tt.want)
			}
		})
	}
	c := caller.New([]string{"127.0.0.1:1"}, [][]byte{nil}, 1, "")
	if _, err := c.Run(t.Context(), proxy.Times(1)); err == nil {
		t.Error("nobody was there, and answered")
	}
}

// A server that never answers does not outlive the context.
func TestRunEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	address, _ := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	c := caller.New([]string{address}, [][]byte{nil}, 2, "")
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Run(ctx, proxy.Times(10)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline", err)
	}
}
