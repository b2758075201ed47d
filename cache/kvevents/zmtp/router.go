package zmtp

import (
	"context"
	"net"
)

// RouterOptions bound a [Router]. A field that is not positive stands for its default.
type RouterOptions struct {
	// MaxConnections is the most connections at once; 1024 by default. Further ones are closed as they come.
	MaxConnections int
	// Options bound each connection.
	Options Options
}

// Router is a bound ROUTER socket, to which DEALER and REQ sockets talk.
type Router struct {
	listener *listener
}

// ListenRouter binds a Router to host:port; an empty host means every address, port 0 a free port. [Router.Serve] has
// to follow, or [Router.Close].
func ListenRouter(address string, o RouterOptions) (*Router, error) {
	l, err := listen(address, ROUTER, o.Options, positive(o.MaxConnections, 1024))
	if err != nil {
		return nil, err
	}
	return &Router{listener: l}, nil
}

// Addr is the address that the Router is bound to.
func (r *Router) Addr() net.Addr { return r.listener.ln.Addr() }

// Counts tells how the connections fared so far.
func (r *Router) Counts() Counts { return r.listener.counts() }

// Close unbinds the Router, and ends Serve as the end of its context does.
func (r *Router) Close() error { return r.listener.ln.Close() }

// Serve hands every message to handle until ctx ends and returns the cause of that, nil after [Router.Close]; nothing
// that it started is left then. Messages of one peer come one at a time, those of several peers at once. The frames are valid during the call.
// They are as they came over the wire, and so must replies be: the empty frame with which a request begins is one.
//
// reply sends one message to the peer that asked, as often as is wanted during the call. It blocks while the peer does
// not read, and fails once Options.WriteTimeout has passed, or ctx ends. After that nothing more of the peer is handled,
// however much it has asked already.
func (r *Router) Serve(ctx context.Context, handle func(remote net.Addr, frames [][]byte, reply func(frames ...[]byte) error)) error {
	return r.listener.run(ctx, func(ctx context.Context, c *Conn, _ *member) {
		defer context.AfterFunc(ctx, func() { c.Close() })()
		broken := false
		reply := func(frames ...[]byte) error {
			err := context.Cause(ctx)
			if err == nil {
				err = c.Send(frames...)
			}
			broken = broken || err != nil
			return err
		}
		for {
			frames, err := c.Receive()
			if err != nil || broken || ctx.Err() != nil {
				return
			}
			handle(c.RemoteAddr(), frames, reply)
		}
	})
}
