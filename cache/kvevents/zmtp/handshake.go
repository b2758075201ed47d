package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// Dial connects to host:port (a leading tcp:// may stand) and does the handshake. The error of a peer that asks for
// another mechanism is a [*MechanismError], that of an unfitting socket type a [*SocketError].
func Dial(ctx context.Context, address string, socket Socket, o Options) (*Conn, error) {
	o = o.withDefaults()
	address, err := hostPort(address)
	if err != nil {
		return nil, err
	}
	dialing, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	nc, err := o.DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	return handshake(ctx, nc, socket, o, true)
}

// hostPort checks an address, and takes off tcp://, the only transport that there is.
func hostPort(address string) (string, error) {
	if scheme, rest, found := strings.Cut(address, "://"); found {
		if scheme != "tcp" {
			return "", fmt.Errorf("zmtp: %s: the transport must be tcp, got %q", address, scheme)
		}
		address = rest
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", fmt.Errorf("zmtp: %w", err)
	}
	return address, nil
}

// Handshake makes an accepted connection a ZMTP one. It owns nc, and closes it on an error.
func Handshake(ctx context.Context, nc net.Conn, socket Socket, o Options) (*Conn, error) {
	return handshake(ctx, nc, socket, o, false)
}

func handshake(ctx context.Context, nc net.Conn, socket Socket, o Options, dialled bool) (*Conn, error) {
	c := &Conn{nc: nc, options: o.withDefaults(), socket: socket}
	c.patience = c.options.StallTimeout
	c.in = newReader(c.read, c.options)
	stop := context.AfterFunc(ctx, func() { c.Close() })
	err := c.handshake(dialled)
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("not done within %v: %w", c.options.HandshakeTimeout, err)
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("zmtp: handshake with %s: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}

func (c *Conn) handshake(dialled bool) error {
	if err := c.socket.validate(); err != nil {
		return err
	}
	deadline := time.Now().Add(c.options.HandshakeTimeout)
	own := greeting()
	if dialled {
		if err := c.writeAll(time.Until(deadline), own[:versionEnd]); err != nil {
			return err
		}
		own = own[versionEnd:]
	}
	if err := c.exchange(deadline, dialled, own, c.hearGreeting); err != nil {
		return err
	}
	own = appendCommand(nil, commandReady, readyData(c.socket))
	return c.exchange(deadline, dialled, own, func() error { return c.hearReady(deadline) })
}

// exchange says this side's part and hears the peer's. libzmq hangs up on a mechanism or socket type that does not suit
// it, and names its own before that only where it has not heard the other's yet. So the side that dialled speaks second,
// unless the peer waits as well.
func (c *Conn) exchange(deadline time.Time, dialled bool, own []byte, hear func() error) error {
	heard := false
	if dialled {
		if err := c.SetReadDeadline(time.Now().Add(c.options.HandshakeTimeout / 5)); err != nil {
			return err
		}
		err := hear()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		heard = err == nil
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	if err := c.writeAll(time.Until(deadline), own); err != nil || heard {
		return err
	}
	return hear()
}

func (c *Conn) hearGreeting() error {
	peer, err := c.in.greeting()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("closed amid the greeting, as a peer may that asks for a mechanism other than NULL: %w", err)
	}
	if err == nil {
		c.commands = commandsSubscribe(peer)
	}
	return err
}

// hearReady reads the peer's READY, and tells the peer if the socket types do not go together.
func (c *Conn) hearReady(deadline time.Time) error {
	_, command, err := c.in.next()
	if err != nil {
		return err
	}
	name, data, err := splitCommand(command)
	if err != nil {
		return err
	}
	switch string(name) {
	case commandReady:
	case commandError:
		return parseError(data)
	default:
		return protocolError("%q before the peer's READY", name)
	}
	peer, err := parseReady(data)
	if err != nil {
		return err
	}
	if !c.socket.accepts(peer) {
		// The peer is refused whether or not it can be told.
		_ = c.writeAll(time.Until(deadline), appendCommand(nil, commandError, errorData("Invalid socket type")))
		return &SocketError{Own: c.socket, Peer: peer}
	}
	c.in.messages = true
	return nil
}
