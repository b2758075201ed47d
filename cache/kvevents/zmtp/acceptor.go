package zmtp

import (
	"context"
	"net"
)

// AcceptorOptions bound an [Acceptor]. A field that is not positive stands for its default.
type AcceptorOptions struct {
	// Topics are subscribed to on every connection; none means every message.
	Topics [][]byte
	// MaxConnections is the most connections at once; 4096 by default. Further ones are closed as they come.
	MaxConnections int
	// Options bound each connection.
	Options Options
}

// Acceptor is a bound SUB socket: publishers connect to it.
type Acceptor struct {
	listener *listener
	topics   [][]byte
}

// ListenSubscriber binds an Acceptor to host:port; an empty host means every address, port 0 a free port.
// [Acceptor.Run] has to follow, or [Acceptor.Close].
func ListenSubscriber(address string, o AcceptorOptions) (*Acceptor, error) {
	l, err := listen(address, SUB, o.Options, positive(o.MaxConnections, 4096))
	if err != nil {
		return nil, err
	}
	return &Acceptor{listener: l, topics: o.Topics}, nil
}

// Addr is the address that the Acceptor is bound to.
func (a *Acceptor) Addr() net.Addr { return a.listener.ln.Addr() }

// Counts tells how the connections fared so far.
func (a *Acceptor) Counts() Counts { return a.listener.counts() }

// Close unbinds the Acceptor, and ends Run as the end of its context does.
func (a *Acceptor) Close() error { return a.listener.ln.Close() }

// Run accepts publishers until ctx ends and returns the cause of that, nil after [Acceptor.Close]; nothing that it
// started is left then. After a
// connection's handshake open gives the handler that is told of it, from a goroutine of the connection's own; nil
// turns the publisher away.
func (a *Acceptor) Run(ctx context.Context, open func(remote net.Addr) Handler) error {
	return a.listener.run(ctx, func(ctx context.Context, c *Conn) {
		h := open(c.RemoteAddr())
		if h == nil {
			a.listener.refused.Add(1)
			return
		}
		_, err := receiveAll(ctx, c, a.topics, h)
		h.Disconnected(err)
	})
}
