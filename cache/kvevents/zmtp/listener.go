package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// listener accepts connections, each to be served by a goroutine of its own, up to a bound.
type listener struct {
	ln             net.Listener
	socket         Socket
	options        Options
	max            int
	worth          func(remote net.Addr, h Handler) int // see AcceptorOptions.Worth
	refused, fails atomic.Uint64

	mu      sync.Mutex
	members map[*member]struct{}
}

// member is one of the connections of a listener.
type member struct {
	nc      net.Conn
	handler atomic.Pointer[Handler] // nil: it has none, or not yet
	heard   atomic.Int64            // when it was accepted, or brought its last message; Unix time in ns
}

func (m *member) touch() { m.heard.Store(time.Now().UnixNano()) }

// admit takes a new connection in, in place of another one where there is no room; nil turns it away.
func (l *listener) admit(nc net.Conn) *member {
	m := &member{nc: nc}
	m.touch()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.members) >= l.max {
		l.refused.Add(1)
		least := l.least(m)
		if least == nil {
			return nil
		}
		delete(l.members, least)
		least.nc.Close() // which ends its goroutine
	}
	if l.members == nil {
		l.members = make(map[*member]struct{})
	}
	l.members[m] = struct{}{}
	return m
}

// least is the member that goes for a new one, nil where all are worth more.
func (l *listener) least(next *member) (least *member) {
	if l.worth == nil {
		return nil
	}
	lowest := l.worth(next.nc.RemoteAddr(), nil)
	for m := range l.members {
		var h Handler
		if p := m.handler.Load(); p != nil {
			h = *p
		}
		worth := l.worth(m.nc.RemoteAddr(), h)
		if worth < lowest || worth == lowest && (least == nil || m.heard.Load() < least.heard.Load()) {
			least, lowest = m, worth
		}
	}
	return least
}

// leave takes a connection out, and reports whether it was in: one that had to make room no longer is.
func (l *listener) leave(m *member) (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, was = l.members[m]
	delete(l.members, m)
	return was
}

// Counts tells how a bound socket's connections fared.
type Counts struct {
	Open    int    // connections now, those in their handshake included
	Refused uint64 // connections turned away: beyond the bound, for another one, or of a peer without a handler
	Failed  uint64 // connections whose handshake failed
}

func listen(address string, socket Socket, o Options, maxConnections int) (*listener, error) {
	address, err := hostPort(address)
	if err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	return &listener{ln: ln, socket: socket, options: o.withDefaults(), max: maxConnections}, nil
}

func (l *listener) counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Counts{Open: len(l.members), Refused: l.refused.Load(), Failed: l.fails.Load()}
}

// run accepts until ctx ends, then closes the listener and waits for the goroutines that serve. serve ends with ctx.
func (l *listener) run(ctx context.Context, serve func(ctx context.Context, c *Conn, m *member)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { l.ln.Close() })()
	defer l.ln.Close()
	for failures := 0; ; {
		nc, err := l.ln.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				nc.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil { // too many open files, or a peer that went at once
			wait(ctx, acceptBackoff.delay(failures))
			failures++
			continue
		}
		failures = 0
		m := l.admit(nc)
		if m == nil {
			nc.Close()
			continue
		}
		serving.Go(func() {
			defer l.leave(m)
			c, err := Handshake(ctx, nc, l.socket, l.options)
			if err != nil {
				if l.leave(m) {
					l.fails.Add(1)
				}
				return
			}
			defer c.Close()
			serve(ctx, c, m)
		})
	}
}

var acceptBackoff = Backoff{Min: 5 * time.Millisecond, Max: time.Second}.withDefaults()

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
