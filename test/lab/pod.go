package lab

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Serve runs an HTTP/1.1 and cleartext HTTP/2 server on an address, host:port, and returns the address that it got. It
// ends with the test.
func Serve(t testing.TB, address string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: &protocols, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("server on %s: %v", address, err)
		}
	})
	return l.Addr().String()
}

// Pod is an HTTP server that answers every request with what it got.
type Pod struct {
	// Addr is where it listens.
	Addr string

	mu   sync.Mutex
	hits int
}

// Echo is a pod's answer.
type Echo struct {
	Pod    string              `json:"pod"` // the address of the pod that answered
	Proto  string              `json:"proto"`
	Method string              `json:"method"`
	Path   string              `json:"path"`
	Host   string              `json:"host"`
	Length int64               `json:"length"` // content-length, -1 without
	Bytes  int                 `json:"bytes"`
	SHA256 string              `json:"sha256"`
	Header map[string][]string `json:"header"` // names in lower case
}

// StartPod starts a pod on an address, host:port.
func StartPod(t testing.TB, address string) *Pod {
	t.Helper()
	p := &Pod{}
	p.Addr = Serve(t, address, p)
	return p
}

// ServeHTTP implements http.Handler.
func (p *Pod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" { // Sluice asks every endpoint; a pod has none
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.hits++
	p.mu.Unlock()
	e := Echo{Pod: p.Addr, Proto: r.Proto, Method: r.Method, Path: r.URL.RequestURI(), Host: r.Host, Length: r.ContentLength,
		Bytes: len(body), SHA256: SHA256(body), Header: map[string][]string{}}
	for name, values := range r.Header {
		e.Header[strings.ToLower(name)] = values
	}
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(e) // a client that has gone is no concern of the pod's
}

// Hits is how many requests it answered.
func (p *Pod) Hits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// ReadEcho decodes a pod's answer.
func ReadEcho(t testing.TB, a Answer) Echo {
	t.Helper()
	var e Echo
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	if err := json.Unmarshal([]byte(a.Body), &e); err != nil {
		t.Fatalf("%v in %q", err, a.Body)
	}
	return e
}

// Accept listens on an address, host:port, where connections are accepted and nothing is ever answered. It returns the
// address that it got.
func Accept(t testing.TB, address string) string {
	t.Helper()
	return accept(t, address, func(net.Conn, <-chan struct{}) {})
}

// Relay listens on an address, host:port, and connects whoever connects with another one, after a delay. It returns the
// address that it got.
func Relay(t testing.TB, address, to string, delay time.Duration) string {
	t.Helper()
	return accept(t, address, func(c net.Conn, done <-chan struct{}) {
		select {
		case <-time.After(delay):
		case <-done:
			return
		}
		other, err := net.Dial("tcp", to)
		if err != nil {
			_ = c.Close()
			return
		}
		var both sync.WaitGroup
		for _, pair := range [][2]net.Conn{{c, other}, {other, c}} {
			both.Go(func() {
				_, _ = io.Copy(pair[0], pair[1]) // either side may break off
				_ = c.Close()
				_ = other.Close()
			})
		}
		both.Wait()
	})
}

// accept hands each connection to a goroutine of its own. At the end of the test done is closed and then every connection.
func accept(t testing.TB, address string, handle func(c net.Conn, done <-chan struct{})) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var held []net.Conn
	var group, accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
			group.Go(func() { handle(c, done) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		close(done)
		for _, c := range held {
			_ = c.Close()
		}
		group.Wait()
	})
	return l.Addr().String()
}
