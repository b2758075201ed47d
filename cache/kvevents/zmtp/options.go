package zmtp

import (
	"context"
	"net"
	"time"
)

// Options bounds a connection. A field that is not positive stands for its default.
type Options struct {
	// MaxFrameBytes is the most bytes that the frames of one message may hold together; 64 MiB by default.
	MaxFrameBytes int
	// Budget bounds the messages of all connections that have it, together; nil for no bound. A connection whose message
	// there is no room for gets ErrTooLarge.
	Budget *Budget
	// MaxFrames is the most frames of one message; 64 by default.
	MaxFrames int
	// HandshakeTimeout bounds a dial, and again the handshake that follows; 5 s by default.
	HandshakeTimeout time.Duration
	// WriteTimeout bounds the writing of one message; 10 s by default. A connection on which it passes is closed: the
	// peer reads nothing.
	WriteTimeout time.Duration
	// StallTimeout is how long a message that began may stand still before the connection is given up; 30 s by default.
	// Between messages a peer may be silent for as long as it likes.
	StallTimeout time.Duration
	// DialContext opens the connections of [Dial]; by default a [net.Dialer] with TCP keep-alive, which notices
	// within half a minute that the host of a silent peer is gone.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	o.MaxFrameBytes = positive(o.MaxFrameBytes, 64<<20)
	o.MaxFrames = positive(o.MaxFrames, 64)
	o.HandshakeTimeout = positive(o.HandshakeTimeout, 5*time.Second)
	o.WriteTimeout = positive(o.WriteTimeout, 10*time.Second)
	o.StallTimeout = positive(o.StallTimeout, 30*time.Second)
	if o.DialContext == nil {
		o.DialContext = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext
	}
	return o
}

// positive takes the default for what is no bound: nothing here is unbounded.
func positive[T int | time.Duration](v, byDefault T) T {
	if v <= 0 {
		return byDefault
	}
	return v
}

// keepAlive finds out that a peer's host is gone in 10 + 3×5 s. Nothing else does: an idle engine publishes nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
