package zmtp

import (
	"context"
	"net"
	"time"
)

// Handler is told what a connection to a publisher brings. Its methods are called one at a time, from the goroutine
// that reads the connection: while one runs, nothing is read.
type Handler interface {
	// Connected begins a connection; the subscriptions were sent.
	Connected(remote net.Addr)
	// Message is one message. The frames are valid during the call only.
	Message(frames [][]byte)
	// Disconnected ends a connection. It also tells, without Connected before, of a dial or a subscription that failed.
	Disconnected(err error)
}

// Subscriber keeps a SUB socket connected to one publisher.
type Subscriber struct {
	// Address is the publisher's host:port.
	Address string
	// Topics are subscribed to on every connection; none means every message.
	Topics [][]byte
	// Options bound each connection.
	Options Options
	// Backoff spaces the dials. A connection that brought a message, or lasted as long as the largest delay, makes the
	// next delay the smallest one again.
	Backoff Backoff
}

// Run dials, subscribes, receives and dials again, until ctx ends; it returns the cause of that, or at once an error
// for an address that cannot be one. When it returns, nothing that it started is left.
func (s *Subscriber) Run(ctx context.Context, h Handler) error {
	if _, err := hostPort(s.Address); err != nil {
		return err
	}
	b := s.Backoff.withDefaults()
	keepUp(ctx, b, func(ctx context.Context) bool {
		c, err := Dial(ctx, s.Address, SUB, s.Options)
		if err != nil {
			h.Disconnected(err)
			return false
		}
		begun := time.Now()
		received, err := receiveAll(ctx, c, s.Topics, h)
		h.Disconnected(err)
		return received || time.Since(begun) >= b.Max
	})
	return context.Cause(ctx)
}

// receiveAll subscribes and hands the messages of a connection over until it ends, or ctx does.
func receiveAll(ctx context.Context, c *Conn, topics [][]byte, h Handler) (received bool, err error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err = subscribe(c, topics); err == nil {
		h.Connected(c.RemoteAddr())
	}
	for err == nil {
		var frames [][]byte
		if frames, err = c.Receive(); err == nil {
			received = true
			h.Message(frames)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return received, err
}

func subscribe(c *Conn, topics [][]byte) error {
	if len(topics) == 0 {
		return c.Subscribe(nil)
	}
	for _, topic := range topics {
		if err := c.Subscribe(topic); err != nil {
			return err
		}
	}
	return nil
}
