package metrics

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	maxIdleConnections = 4096        // of all endpoints; what is beyond is opened anew for each scrape
	maxIdleTime        = time.Minute // after which a kept connection is closed
	maxHeaderBytes     = 64 << 10    // of an answer
	maxInformational   = 5           // answers (100 Continue, 103 Early Hints) before the answer
	dialTimeout        = 5 * time.Second
)

// connections is an http.RoundTripper for scrapes: HTTP/1.1 on kept-alive connections, straight to the pod whatever proxy
// the environment names, and uncompressed, since both ends are near and unpacking costs more than reading. Whoever asks
// writes and reads by itself. http.Transport has two goroutines for each connection and so four hand-overs for each page,
// which on a quiet machine cost more than the page.
type connections struct {
	dialer  net.Dialer
	now     func() time.Duration
	maxIdle int
	roots   *x509.CertPool // nil: the system's

	mu    sync.Mutex // guards what follows
	idle  map[string][]*connection
	count int           // of idle ones
	swept time.Duration // when those idle for long were last looked for
}

// newConnections returns an empty pool, by a monotonic clock.
func newConnections(now func() time.Duration) *connections {
	return &connections{
		now: now, maxIdle: maxIdleConnections,
		dialer: net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second},
		idle:   make(map[string][]*connection),
	}
}

// connection is one to an engine.
type connection struct {
	net.Conn
	raw   net.Conn // without TLS
	owner *connections
	key   string // scheme and host
	in    *bufio.Reader
	out   bytes.Buffer
	left  int64         // how many bytes may still be read
	since time.Duration // when it became idle
}

// Read reads what is left to be read.
func (c *connection) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, failed(ResultBroken, "an answer with more than %d bytes of headers", maxHeaderBytes)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// RoundTrip sends a request without a body. The answer's body must be closed; read to its end, its connection is kept.
func (s *connections) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		c, reused := s.take(keyOf(r.URL)), true
		if c == nil {
			var err error
			if c, err = s.dial(r.Context(), r.URL); err != nil {
				return nil, err
			}
			reused = false
		}
		response, err := c.exchange(r)
		if err == nil {
			return response, nil
		}
		_ = c.Close() // the cause is known
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
		if !reused { // a kept connection may have been closed by the engine, which shows only now
			return nil, err
		}
	}
}

// exchange writes a request and reads the answer up to its body. The connection is closed if the request's context ends
// before the body does.
func (c *connection) exchange(r *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { _ = c.Close() })
	response, err := c.headers(r)
	if err != nil {
		stop()
		return nil, err
	}
	c.left = math.MaxInt64
	response.Body = &content{ReadCloser: response.Body, c: c, stop: stop, ctx: r.Context(), keep: !response.Close}
	return response, nil
}

func (c *connection) headers(r *http.Request) (*http.Response, error) {
	c.out.Reset()
	if err := r.Write(&c.out); err != nil {
		return nil, err
	}
	if _, err := c.Write(c.out.Bytes()); err != nil {
		return nil, err
	}
	for range maxInformational {
		c.left = maxHeaderBytes
		response, err := http.ReadResponse(c.in, r)
		if err != nil || response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols {
			return response, err
		}
	}
	return nil, failed(ResultBroken, "more than %d answers before the answer", maxInformational)
}

// content is an answer's body, which gives its connection back.
type content struct {
	io.ReadCloser
	c    *connection // nil once it is given back
	stop func() bool
	ctx  context.Context //nolint:containedctx // it is that of the answer, as in a request
	keep bool
}

// Read reads the body.
func (b *content) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil || b.c == nil:
	case err == io.EOF: //nolint:errorlint // as readers return it
		b.end(b.keep)
	case b.ctx.Err() != nil:
		err = context.Cause(b.ctx)
	}
	return n, err
}

// Close ends the answer, and its connection where the body was not read to its end.
func (b *content) Close() error {
	b.end(false)
	return nil
}

func (b *content) end(keep bool) {
	if b.c == nil {
		return
	}
	c := b.c
	b.c = nil
	switch {
	case !b.stop(): // closed, or about to be
	case keep && c.in.Buffered() == 0:
		c.owner.put(c)
	default:
		_ = c.Close()
	}
}

func keyOf(u *url.URL) string { return u.Scheme + "://" + u.Host }

func (s *connections) dial(ctx context.Context, u *url.URL) (*connection, error) {
	port := u.Port()
	if port == "" {
		port = u.Scheme // a name that the resolver knows
	}
	conn, err := s.dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, err
	}
	raw := conn
	if u.Scheme == "https" {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		secure := tls.Client(conn, &tls.Config{
			ServerName: u.Hostname(), RootCAs: s.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = secure
	}
	c := &connection{Conn: conn, raw: raw, owner: s, key: keyOf(u)}
	c.in = bufio.NewReader(c)
	return c, nil
}

// take returns an idle connection that can be used, or nil. One on which something waits cannot: it was closed, or it says
// what nobody asked for and would be an answer behind from then on.
func (s *connections) take(key string) *connection {
	for {
		c := s.pop(key)
		if c == nil || silent(c.raw) {
			return c
		}
		_ = c.Close()
	}
}

func (s *connections) pop(key string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.idle[key]
	if len(kept) == 0 {
		return nil
	}
	c := kept[len(kept)-1]
	kept[len(kept)-1] = nil
	s.idle[key] = kept[:len(kept)-1]
	s.count--
	return c
}

// forget closes the idle connections to an engine that is not read any more.
func (s *connections) forget(u *url.URL) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(u)
	for _, c := range s.idle[key] {
		_ = c.Close()
	}
	s.count -= len(s.idle[key])
	delete(s.idle, key)
}

// put keeps a connection for the next scrape.
func (s *connections) put(c *connection) {
	c.since = s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.since-s.swept >= maxIdleTime/2 {
		s.close(c.since - maxIdleTime)
		s.swept = c.since
	}
	if s.count >= s.maxIdle {
		_ = c.Close()
		return
	}
	s.idle[c.key] = append(s.idle[c.key], c)
	s.count++
}

// CloseIdleConnections closes what waits for the next scrape.
func (s *connections) CloseIdleConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close(s.now())
}

// close closes what has been idle since before a moment, or was put then. mu is held.
func (s *connections) close(before time.Duration) {
	for key, kept := range s.idle {
		n := 0
		for _, c := range kept {
			if c.since > before {
				kept[n] = c
				n++
				continue
			}
			_ = c.Close()
			s.count--
		}
		clear(kept[n:])
		if s.idle[key] = kept[:n]; n == 0 {
			delete(s.idle, key)
		}
	}
}
