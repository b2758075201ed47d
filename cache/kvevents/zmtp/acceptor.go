package zmtp

import (
	"context"
	"net"
)

// AcceptorOptions bound an [Acceptor]. A field that is not positive stands for its default.
type AcceptorOptions struct {
	// Topics are subscribed to on every connection; none means every message.
	Topics [][]byte
	// MaxConnections is the most connections at once; 4096 by default. Of further ones Worth tells.
	MaxConnections int
	// Worth tells what a connection is worth to its owner; h is nil until its handshake is done. Where MaxConnections are
	// there and one more comes, the one that is worth least is closed for it, among equals the one that brought nothing for
	// longest, unless all are worth more than the new one is before its handshake: then that is closed. It must not wait,
	// nor call the Acceptor. nil turns every further connection away.
	Worth func(remote net.Addr, h Handler) int
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
	l.worth = o.Worth
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
	return a.listener.run(ctx, func(ctx context.Context, c *Conn, m *member) {
		h := open(c.RemoteAddr())
		if h == nil {
			a.listener.refused.Add(1)
			return
		}
		m.handler.Store(&h)
		_, err := receiveAll(ctx, c, a.topics, heard{h, m})
		h.Disconnected(err)
	})
}

// heard is a member's handler that notes when it brought something.
type heard struct {
	Handler
	member *member
}

// Message implements Handler.
func (h heard) Message(frames [][]byte) {
	h.member.touch()
	h.Handler.Message(frames)
}
