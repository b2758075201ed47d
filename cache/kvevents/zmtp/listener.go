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
	open           atomic.Int64
	refused, fails atomic.Uint64
}

// Counts tells how a bound socket's connections fared.
type Counts struct {
	Open    int    // connections now, those in their handshake included
	Refused uint64 // connections turned away: beyond the bound, or of a peer without a handler
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
	return Counts{Open: int(l.open.Load()), Refused: l.refused.Load(), Failed: l.fails.Load()}
}

// run accepts until ctx ends, then closes the listener and waits for the goroutines that serve. serve ends with ctx.
func (l *listener) run(ctx context.Context, serve func(ctx context.Context, c *Conn)) error {
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
		if l.open.Add(1) > int64(l.max) {
			l.open.Add(-1)
			l.refused.Add(1)
			nc.Close()
			continue
		}
		serving.Go(func() {
			defer l.open.Add(-1)
			c, err := Handshake(ctx, nc, l.socket, l.options)
			if err != nil {
				l.fails.Add(1)
				return
			}
			defer c.Close()
			serve(ctx, c)
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
