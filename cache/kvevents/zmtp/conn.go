package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// copyBytes is up to where a frame is copied beside its neighbours to be written together with them.
	copyBytes  = 16 << 10
	outputSize = 64 << 10
)

// Conn is a connection to one peer, after the handshake. One goroutine may receive while others send.
type Conn struct {
	nc       net.Conn
	options  Options
	socket   Socket
	commands bool // subscriptions go to the peer as commands

	in      *reader
	readErr error // the receiver's; not a deadline that passed

	deadlines sync.Mutex
	user      time.Time // the reader's deadline as its user set it
	stall     time.Time // when a message under way is given up; zero between messages

	writing  sync.Mutex
	out      []byte
	batch    [][]byte
	buffers  net.Buffers // batch, as far as it is to be written
	writeErr error

	closing  sync.Once
	closeErr error
}

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
	return Handshake(ctx, nc, socket, o)
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

// Handshake makes an accepted (or dialled) connection a ZMTP one. It owns nc, and closes it on an error.
func Handshake(ctx context.Context, nc net.Conn, socket Socket, o Options) (*Conn, error) {
	c := &Conn{nc: nc, options: o.withDefaults(), socket: socket}
	c.in = newReader(c.read, c.options)
	stop := context.AfterFunc(ctx, func() { c.Close() })
	err := c.handshake()
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
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

func (c *Conn) handshake() error {
	if err := c.socket.validate(); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(c.options.HandshakeTimeout)); err != nil {
		return err
	}
	if err := c.writeAll(c.options.HandshakeTimeout, greeting()); err != nil {
		return err
	}
	peer, err := c.in.greeting()
	if err != nil {
		return err
	}
	c.commands = commandsSubscribe(peer)
	if err := c.writeAll(c.options.HandshakeTimeout, appendCommand(nil, commandReady, readyData(c.socket))); err != nil {
		return err
	}
	return c.ready()
}

// ready reads the peer's READY and tells it if the socket types do not go together.
func (c *Conn) ready() error {
	frames, command, err := c.in.next()
	if err != nil {
		return err
	}
	if frames != nil {
		return protocolError("a message before the peer's READY")
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
		refusal := &SocketError{Own: c.socket, Peer: peer}
		// The peer is refused whether or not it can be told.
		return errors.Join(refusal, c.writeAll(c.options.HandshakeTimeout, appendCommand(nil, commandError, errorData("Invalid socket type"))))
	}
	return nil
}

// Subscribe asks the peer, a publisher, for the messages whose first frame begins with topic; the empty topic asks for
// every message.
func (c *Conn) Subscribe(topic []byte) error {
	if c.socket != SUB {
		return fmt.Errorf("zmtp: subscribe: the socket must be SUB, got %s", c.socket)
	}
	if len(topic) > maxCommandBytes-len(commandSubscribe)-1 {
		return tooLarge("a topic of %d bytes", len(topic))
	}
	if c.commands {
		return c.writeAll(c.options.WriteTimeout, appendCommand(nil, commandSubscribe, topic))
	}
	return c.Send(append([]byte{1}, topic...))
}

// Receive returns the next message's frames. They alias the Conn's buffers until the next Receive. Commands are
// answered on the way; on a PUB a subscription comes as a message of one frame, 1 or 0 (its end) before the topic,
// whichever way the peer sends it.
//
// After a deadline of [Conn.SetReadDeadline] passed (os.ErrDeadlineExceeded) Receive may be called again and goes on
// where it was, be it within a message. Any other error is final and closes the connection: io.EOF is a peer that went
// between messages, net.ErrClosed the Conn's own Close.
func (c *Conn) Receive() (frames [][]byte, err error) {
	if c.readErr != nil {
		return nil, c.readErr
	}
	for {
		frames, command, err := c.in.next()
		if err == nil && frames != nil {
			return frames, nil
		}
		if err == nil {
			if frames, err = c.obey(command); frames != nil {
				return frames, nil
			}
		}
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && c.deadlinePassed()) {
			return nil, c.fail(err)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (c *Conn) fail(err error) error {
	c.readErr = err
	c.Close()
	return err
}

// obey acts on a command. Frames are those of a subscription. Commands without a meaning here pass.
func (c *Conn) obey(command []byte) (frames [][]byte, err error) {
	name, data, err := splitCommand(command)
	if err != nil {
		return nil, err
	}
	switch string(name) {
	case commandError:
		return nil, parseError(data)
	case commandPing:
		return nil, c.pong(data)
	case commandSubscribe:
		return c.subscription(1, command, data), nil
	case commandCancel:
		return c.subscription(0, command, data), nil
	}
	return nil, nil
}

func (c *Conn) pong(ping []byte) error {
	if len(ping) < pingHead || len(ping) > pingHead+maxPingContext {
		return protocolError("a PING with %d bytes", len(ping))
	}
	return c.writeAll(c.options.WriteTimeout, appendCommand(nil, commandPong, ping[pingHead:]))
}

// subscription gives a command the form of a message, in place.
func (c *Conn) subscription(kind byte, command, topic []byte) [][]byte {
	if c.socket != PUB {
		return nil
	}
	start := len(command) - len(topic) - 1
	command[start] = kind
	c.in.frames = append(c.in.frames[:0], command[start:])
	return c.in.frames
}

// read is the reader's source. A message under way gets as long as it moves.
func (c *Conn) read(p []byte, begun bool) (int, error) {
	if err := c.armStall(begun); err != nil {
		return 0, err
	}
	n, err := c.nc.Read(p)
	switch {
	case n > 0:
		return n, nil // the error comes again
	case errors.Is(err, io.EOF) && begun:
		err = io.ErrUnexpectedEOF
	case errors.Is(err, os.ErrDeadlineExceeded) && begun && !c.deadlinePassed():
		err = fmt.Errorf("%w for %v", ErrStalled, c.options.StallTimeout)
	}
	return n, err
}

func (c *Conn) armStall(begun bool) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !begun && c.stall.IsZero() {
		return nil
	}
	c.stall = time.Time{}
	if begun {
		c.stall = time.Now().Add(c.options.StallTimeout)
	}
	return c.setReadDeadline()
}

// SetReadDeadline bounds Receive; the zero time takes the bound away. It may be called while a Receive waits.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.user = t
	return c.setReadDeadline()
}

// setReadDeadline sets the earlier of both deadlines.
func (c *Conn) setReadDeadline() error {
	deadline := c.user
	if deadline.IsZero() || !c.stall.IsZero() && c.stall.Before(deadline) {
		deadline = c.stall
	}
	return c.nc.SetReadDeadline(deadline)
}

// deadlinePassed tells the user's deadline from that of a message that stands still.
func (c *Conn) deadlinePassed() bool {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	return !c.user.IsZero() && (c.stall.IsZero() || !c.user.After(c.stall))
}

// Send writes one message. It may be called beside Receive, and by several goroutines. An error closes the connection,
// since a message may have been cut.
func (c *Conn) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: send: a message has at least one frame")
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.beginWrite(c.options.WriteTimeout); err != nil {
		return err
	}
	out := c.out[:0]
	for i, frame := range frames {
		out = appendHead(out, moreFlag(i, frames), len(frame))
		if len(frame) <= copyBytes {
			out = append(out, frame...)
			frame = nil
		}
		if frame == nil && len(out) < outputSize {
			continue
		}
		if err := c.flush(out, frame); err != nil {
			return err
		}
		out = out[:0]
	}
	c.out = out[:0]
	return c.flush(out)
}

// writeAll writes what is encoded already.
func (c *Conn) writeAll(timeout time.Duration, encoded ...[]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.beginWrite(timeout); err != nil {
		return err
	}
	return c.flush(encoded...)
}

func (c *Conn) beginWrite(timeout time.Duration) error {
	if c.writeErr != nil {
		return c.writeErr
	}
	return c.nc.SetWriteDeadline(time.Now().Add(timeout))
}

func (c *Conn) flush(parts ...[]byte) error {
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		if _, err := c.nc.Write(part); err != nil {
			return c.wrote(err)
		}
	}
	return nil
}

// wrote closes the connection if a write failed: the peer may have got a part of a message.
func (c *Conn) wrote(err error) error {
	if err == nil {
		return nil
	}
	c.writeErr = fmt.Errorf("zmtp: %w", err)
	c.Close()
	return c.writeErr
}

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close ends the connection, a waiting Receive and a blocked Send. Only its first call can return an error.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closeErr = c.nc.Close() })
	return c.closeErr
}
