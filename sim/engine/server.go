// Package engine is a simulated vLLM: a network server with vLLM's HTTP interface in front of the
// engine model of package sim. It computes no model. It tokenizes prompts, keeps a prefix cache,
// takes the time that an engine would take (divided by [Config.Speed]), and answers with made-up
// text, so that a gateway in front of it sees the timing, the usage figures and the metrics of a
// real engine.
//
// Served are the OpenAI endpoints chat/completions, completions, responses and embeddings, the
// Anthropic messages endpoint, tokenize, detokenize, models, metrics, health, ping, version and
// reset_prefix_cache, over HTTP/1.1 and cleartext HTTP/2. Every answer carries what arrived in
// headers: x-sim-endpoint (the server's name), x-sim-method, x-sim-body-bytes, x-sim-body-sha256
// and, if the request had any, x-sim-trailers. POST /sim/fault, from loopback only, makes the
// server misbehave; see [Faults].
//
// An answer has exactly as many tokens as the request allows, less what does not fit into the
// model length, and always ends with the reason "length".
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/bpe"
)

// Server is a simulated engine. Make it with [New].
type Server struct {
	cfg      Config
	tok      *bpe.Tokenizer
	writer   *writer
	loop     *loop
	faults   faults
	registry *prometheus.Registry
	routes   map[string]route
	http     *http.Server
	started  time.Time

	ctx    context.Context // ends when the server closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine and handler

	mu     sync.Mutex
	closed bool
	name   string
	addr   net.Addr
	ln     net.Listener // nil while connections are refused
}

// New makes a server from a configuration, of which it reports every fault. It opens nothing yet.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("engine config: %w", err)
	}
	model, err := sim.New(cfg.Params, nil)
	if err != nil {
		return nil, err
	}
	tok, err := bpe.Load()
	if err != nil {
		return nil, err
	}
	w, err := newWriter(tok)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, tok: tok, writer: w, name: cfg.Name, started: time.Now()}
	m := newMetrics(cfg, s.started)
	s.loop = newLoop(model, cfg.Speed, m)
	if s.registry, err = m.register(s.loop); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.routes = s.routeTable()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		Protocols:         &protocols,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // broken connections are the clients' business
	}
	return s, nil
}

// Start opens the listener and serves in the background until Close. It is called once.
func (s *Server) Start() error {
	if !s.enter() {
		return errClosed
	}
	if err := s.listen(s.cfg.Listen); err != nil {
		s.wg.Done()
		return err
	}
	go func() {
		defer s.wg.Done()
		s.loop.run(s.ctx)
	}()
	return nil
}

// Serve starts the server, runs until the context ends, and closes it.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// Addr is the address listened on, nil before Start.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// URL is the base URL of the server, without a slash at the end.
func (s *Server) URL() string { return "http://" + s.Addr().String() }

// Close cuts every connection, aborts what is running, and waits for all of the server's
// goroutines. It may be called more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	// Connections go first: a handler that is told to end would close its stream as if complete.
	err := s.http.Close()
	s.cancel()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// enter counts a goroutine in that Close has to wait for, unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

func (s *Server) listen(addr string) error {
	ln, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.mu.Lock()
	s.ln, s.addr = ln, ln.Addr()
	if s.name == "" {
		s.name = ln.Addr().String()
	}
	s.mu.Unlock()
	s.wg.Go(func() {
		// It ends when the listener is closed, by Close or to refuse connections.
		_ = s.http.Serve(ln)
	})
	return nil
}

// refuse closes the listener for a while: connections are refused as if the process were gone.
func (s *Server) refuse(d time.Duration) {
	s.mu.Lock()
	ln, addr := s.ln, s.addr
	s.ln = nil
	s.mu.Unlock()
	if ln == nil || !s.enter() {
		return
	}
	// Without keep-alive, idle connections are closed too.
	s.http.SetKeepAlivesEnabled(false)
	_ = ln.Close()
	go func() {
		defer s.wg.Done()
		for {
			wait := time.NewTimer(d)
			select {
			case <-s.ctx.Done():
				wait.Stop()
				return
			case <-wait.C:
			}
			s.http.SetKeepAlivesEnabled(true)
			if s.listen(addr.String()) == nil {
				return
			}
			d = 20 * time.Millisecond // somebody else has the port
		}
	}()
}
