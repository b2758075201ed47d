// Package engine is a simulated vLLM: a network server with vLLM's HTTP interface and KV events in
// front of the engine model of package sim. It computes no model. It tokenizes prompts, keeps a
// prefix cache, takes the time that an engine would take (divided by [Config.Speed]), and answers
// with made-up text, so that a gateway in front of it sees the timing, the usage figures, the
// metrics and the KV events of a real engine.
//
// Served are the OpenAI endpoints chat/completions, completions, responses and embeddings, the
// Anthropic messages endpoint, the render routes of all but embeddings, tokenize, detokenize,
// models, metrics, health, ping, version, kv_event_sources, reset_prefix_cache, sleep, wake_up and
// is_sleeping, over HTTP/1.1 and cleartext HTTP/2. Every answer carries what arrived in headers:
// x-sim-endpoint (the server's name), x-sim-method, x-sim-body-bytes, x-sim-body-sha256 and, if the
// request had any, x-sim-trailers. POST /sim/fault, from loopback only, makes the server misbehave;
// see [Faults].
//
// An answer has exactly as many tokens as the request allows, less what does not fit into the
// model length, and ends with the reason "length", unless the engine was put to sleep meanwhile.
package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/bpe"
)

// Server is a simulated engine. Make it with [New].
type Server struct {
	cfg    Config
	tok    *bpe.Tokenizer
	writer *writer
	faults faults

	ctx    context.Context // ends when the server closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine and handler

	restarting sync.Mutex // held from the end of one life to the beginning of the next

	mu     sync.Mutex
	closed bool
	name   string
	addr   net.Addr
	life   *life // the present one, or the last one while the server is down; nil before Start
}

// New makes a server from a configuration, of which it reports every fault. It opens nothing yet.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("engine config: %w", err)
	}
	tok, err := bpe.Load()
	if err != nil {
		return nil, err
	}
	w, err := newWriter(tok)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, tok: tok, writer: w, name: cfg.Name}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Start opens the listeners and serves in the background until Close. It is called once.
func (s *Server) Start() error {
	s.restarting.Lock()
	defer s.restarting.Unlock()
	return s.begin(s.cfg.Listen)
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
	l := s.life
	s.mu.Unlock()
	var err error
	if l != nil {
		err = l.end()
	}
	s.cancel()
	s.wg.Wait()
	return err
}

// Stats is the state of the model; the zero value while the server is closed or down.
func (s *Server) Stats() sim.Stats {
	var st sim.Stats
	if l := s.present(); l != nil {
		_ = l.loop.do(func() { st = l.loop.model.Stats() }) // a loop that has ended has no state
	}
	return st
}

// Cached is how many blocks of each hash can be reused from a medium; see [sim.Engine.Cached].
func (s *Server) Cached(m sim.Medium) map[uint64]int {
	out := map[uint64]int{}
	if l := s.present(); l != nil {
		_ = l.loop.do(func() {
			for h := range l.loop.model.Cached(m) {
				out[h]++
			}
		})
	}
	return out
}

// KVEvents says where events are published, with the addresses that the sockets took; the zero
// value if none are, or before Start.
func (s *Server) KVEvents() KVEvents {
	if l := s.present(); l != nil && l.events != nil {
		return l.events.to
	}
	return KVEvents{}
}

func (s *Server) present() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
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

// begin starts a life and makes it the present one. The caller holds restarting.
func (s *Server) begin(listen string) error {
	if !s.enter() {
		return errClosed
	}
	defer s.wg.Done()
	l, err := s.newLife()
	if err != nil {
		return err
	}
	if err := l.start(listen); err != nil {
		return errors.Join(err, l.end())
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.life, s.addr = l, l.addr
		if s.name == "" {
			s.name = l.addr.String()
		}
	}
	s.mu.Unlock()
	if closed {
		return errors.Join(errClosed, l.end())
	}
	return nil
}

// restart ends the present life as a killed process ends, and begins the next one on the same
// addresses after the given time: within the call if there is none, else in the background.
func (s *Server) restart(down time.Duration) error {
	s.restarting.Lock()
	l := s.present()
	if l == nil || !s.enter() {
		s.restarting.Unlock()
		return errClosed
	}
	err := l.end()
	again := func() error {
		defer s.wg.Done()
		defer s.restarting.Unlock()
		for {
			if !sleep(s.ctx, down) {
				return errClosed
			}
			if err := s.begin(s.Addr().String()); err == nil || errors.Is(err, errClosed) {
				return err
			}
			down = 20 * time.Millisecond // somebody else has a port
		}
	}
	if down <= 0 {
		return errors.Join(err, again())
	}
	go func() { _ = again() }() // it fails only when the server closes
	return err
}

// sleep waits, and reports whether it did so to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
