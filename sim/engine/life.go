package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/sim"
)

// life is what is lost when the engine restarts in place: the model with its cache and counters,
// the stream of events, and every connection.
type life struct {
	server   *Server
	started  time.Time
	loop     *loop
	events   *events // nil when none are published
	registry *prometheus.Registry
	routes   map[string]route
	http     *http.Server

	ctx    context.Context // ends with the life
	cancel context.CancelFunc
	wg     sync.WaitGroup // its goroutines; handlers count on the server

	mu   sync.Mutex
	ln   net.Listener // nil while connections are refused
	addr net.Addr
	over bool
}

// clockTick is the least time between the starts of two lives: that which separates the start
// times of two processes on Linux.
const clockTick = 10 * time.Millisecond

func (s *Server) newLife() (*life, error) {
	l := &life{server: s, started: time.Now()}
	if last := s.present(); last != nil {
		if earliest := last.started.Add(clockTick); l.started.Before(earliest) {
			l.started = earliest
		}
		l.events = last.events.next()
	} else {
		l.events = newEvents(s.cfg, &s.faults)
	}
	params := s.cfg.Params
	for params.HashSeed == 0 {
		params.HashSeed = rand.Uint64()
	}
	var obs sim.Observer
	if l.events != nil {
		obs = l.events
	}
	model, err := sim.New(params, obs)
	if err != nil {
		return nil, err
	}
	m := newMetrics(s.cfg, l.started)
	l.loop = newLoop(model, s.cfg.Speed, m, l.events)
	if l.registry, err = m.register(l.loop); err != nil {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	l.routes = s.routeTable(l)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	var handler http.Handler = http.HandlerFunc(l.serve)
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(handler)
	}
	l.http = &http.Server{
		Handler:           handler,
		Protocols:         &protocols,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // broken connections are the clients' business
	}
	return l, nil
}

// start opens the events' sockets, then the listener, so that who is answered can rely on both.
func (l *life) start(listen string) error {
	if l.events != nil {
		if err := l.events.open(listen); err != nil {
			return err
		}
	}
	if err := l.listen(listen); err != nil {
		return err
	}
	if l.events != nil {
		l.events.serve(l.ctx, l.addr.String())
	}
	l.wg.Go(func() { l.loop.run(l.ctx) })
	return nil
}

// end cuts every connection and waits until nothing of the life is left but handlers, which end
// soon. It may be called more than once.
func (l *life) end() error {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	// Connections go first: a handler that is told to end would close its stream as if complete.
	err := l.http.Close()
	l.cancel()
	if l.events != nil {
		l.events.close()
	}
	l.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (l *life) listen(addr string) error {
	ln, err := (&net.ListenConfig{}).Listen(l.ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return errors.Join(errClosed, ln.Close())
	}
	l.ln, l.addr = ln, ln.Addr()
	l.wg.Go(func() {
		// It ends when the listener is closed, by the end of the life or to refuse connections.
		_ = l.http.Serve(ln)
	})
	return nil
}

// shut closes the listener and idle connections, and reports whether there was one. With counted it
// counts a goroutine in for which the end of the life waits.
func (l *life) shut(counted bool) (open bool) {
	l.mu.Lock()
	ln := l.ln
	l.ln = nil
	open = ln != nil && !l.over
	if open && counted {
		l.wg.Add(1)
	}
	l.mu.Unlock()
	if open {
		// Without keep-alive, idle connections are closed too.
		l.http.SetKeepAlivesEnabled(false)
		_ = ln.Close()
	}
	return open
}

// refuse closes the listener for a while: connections are refused as if the process were gone.
func (l *life) refuse(d time.Duration) {
	if !l.shut(true) {
		return
	}
	go func() {
		defer l.wg.Done()
		for sleep(l.ctx, d) {
			l.http.SetKeepAlivesEnabled(true)
			if l.listen(l.addr.String()) == nil {
				return
			}
			d = 20 * time.Millisecond // somebody else has the port
		}
	}()
}
