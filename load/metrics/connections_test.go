package metrics

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testNet is a pool with a clock of its own, and servers that count their connections.
type testNet struct {
	*connections
	at     atomic.Int64
	opened atomic.Int64
	open   atomic.Int64
}

func newTestNet(t *testing.T) *testNet {
	t.Helper()
	n := &testNet{}
	n.connections = newConnections(func() time.Duration { return time.Duration(n.at.Load()) })
	t.Cleanup(n.CloseIdleConnections)
	return n
}

func (n *testNet) serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			n.opened.Add(1)
			n.open.Add(1)
		case http.StateClosed:
			n.open.Add(-1)
		case http.StateActive, http.StateIdle, http.StateHijacked:
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// get reads a page as scrapes do.
func (n *testNet) get(ctx context.Context, url string) (string, error) {
	r, err := newRequest(url)
	if err != nil {
		return "", err
	}
	response, err := n.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	return string(page), err
}

func (n *testNet) want(t *testing.T, url, page string) {
	t.Helper()
	if got, err := n.get(t.Context(), url); err != nil || got != page {
		t.Fatalf("%s: %.40q, %v; want %.40q", url, got, err, page)
	}
}

func say(page string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }
}

func TestConnectionIsKept(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	long := strings.Repeat("x", 1<<20) // in chunks, as no length is known
	a, b := n.serve(t, say("a")), n.serve(t, say(long))
	for range 5 {
		n.want(t, a.URL+"/metrics", "a")
		n.want(t, b.URL+"/metrics", long)
	}
	if got := n.opened.Load(); got != 2 {
		t.Errorf("%d connections for two engines", got)
	}
}

func TestConnectionIsNotKept(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	closing := n.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
	})
	n.want(t, closing.URL, "bye")
	n.want(t, closing.URL, "bye")

	// What was not read to its end cannot be used again either.
	long := n.serve(t, say(strings.Repeat("x", 1<<20)))
	r, err := newRequest(long.URL)
	if err != nil {
		t.Fatal(err)
	}
	response, err := n.RoundTrip(r.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if n.count != 0 {
		t.Errorf("%d connections are kept", n.count)
	}
}

// TestEngineClosedTheConnection is a server that closes what is idle for longer than it likes, as uvicorn does after 5 s.
func TestEngineClosedTheConnection(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	s := n.serve(t, say("page"))
	n.want(t, s.URL, "page")
	s.CloseClientConnections()
	n.want(t, s.URL, "page")
	if got := n.opened.Load(); got != 2 {
		t.Errorf("%d connections were opened, want 2", got)
	}
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, answer, page string }{
		{"nothing", "", ""},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", ""},
		{"endless headers", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: 0123456789\r\n", 10_000) + "Content-Length: 1\r\n\r\nx", ""},
		{"cut", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "short"},
		{"more than announced", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort and more", "short"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newTestNet(t)
			url := answerRaw(t, tc.answer)
			page, err := n.get(t.Context(), url)
			if page != tc.page || (err == nil) != (tc.name == "more than announced") {
				t.Errorf("%q, %v", page, err)
			}
			if n.count != 0 {
				t.Errorf("a broken connection is kept")
			}
		})
	}
}

// answerRaw answers one request of each connection with the given bytes and closes it.
func answerRaw(t *testing.T, answer string) (url string) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, answer)
			conn.Close()
		}
	})
	return "http://" + l.Addr().String()
}

func TestScrapeIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"before headers": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"in the body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTestNet(t)
			s := n.serve(t, h)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := n.get(ctx, s.URL); !errors.Is(err, context.DeadlineExceeded) || resultOf(err, ResultBroken) != ResultTimeout {
				t.Errorf("timeout: %v", err)
			}
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			if _, err := n.get(ctx, s.URL); !errors.Is(err, context.Canceled) || resultOf(err, ResultBroken) != ResultGone {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	n.maxIdle = 3
	servers := make([]*httptest.Server, 5)
	for i := range servers {
		servers[i] = n.serve(t, say("page"))
		n.want(t, servers[i].URL, "page")
		n.at.Add(int64(time.Second))
	}
	if n.count != 3 {
		t.Errorf("%d connections are kept, 3 allowed", n.count)
	}
	for _, s := range servers {
		n.want(t, s.URL, "page")
	}

	// Those that nobody asked for in a minute go when another one comes back.
	n.at.Add(int64(maxIdleTime))
	n.want(t, servers[0].URL, "page")
	if n.count != 1 || len(n.idle) != 1 {
		t.Errorf("%d connections of %d engines are kept after a minute", n.count, len(n.idle))
	}
	n.CloseIdleConnections()
	if n.count != 0 || len(n.idle) != 0 {
		t.Errorf("%d connections of %d engines are kept after all", n.count, len(n.idle))
	}
	eventuallyZero(t, &n.open)
}

// eventuallyZero waits until the other side has noticed, too.
func eventuallyZero(t *testing.T, v *atomic.Int64) {
	t.Helper()
	for range 1000 {
		if v.Load() == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d connections are open", v.Load())
}

func TestUnknownAuthorityIsRefused(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	s := httptest.NewTLSServer(say("page"))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	_, err := n.get(t.Context(), s.URL)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
	n.roots = s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	n.want(t, s.URL, "page")
	n.want(t, s.URL, "page")
	if n.count != 1 {
		t.Errorf("%d connections are kept", n.count)
	}
}
