package zmtp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
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
	user      time.Time     // the reader's deadline as its user set it
	stall     time.Time     // when a message under way is given up; zero while none is
	patience  time.Duration // receiver's: what is left of StallTimeout for a message under way

	writing  sync.Mutex
	out      []byte
	batch    [][]byte
	buffers  net.Buffers // batch, as far as it is to be written
	writeErr error

	closing  sync.Once
	closeErr error
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
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		if err == nil && frames == nil {
			frames, err = c.obey(command)
		}
		if frames != nil {
			return frames, nil
		}
		if err != nil {
			c.readErr = err
			c.Close()
			return nil, err
		}
	}
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

// read is the reader's source. A message under way may stand still for StallTimeout, however many deadlines of the user
// pass meanwhile.
func (c *Conn) read(p []byte, begun bool) (int, error) {
	var since time.Time
	if begun {
		since = time.Now()
	}
	c.armStall(since)
	n, err := c.nc.Read(p)
	if n > 0 {
		c.patience = c.options.StallTimeout
		return n, nil // the error comes again
	}
	if err == nil || !begun {
		return 0, err
	}
	if errors.Is(err, io.EOF) {
		return 0, io.ErrUnexpectedEOF
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if c.patience -= time.Since(since); c.patience <= 0 {
			err = fmt.Errorf("%w for %v", ErrStalled, c.options.StallTimeout)
		}
	}
	return 0, err
}

// armStall gives a message under way what patience is left, counted from since; the zero time says that none is.
func (c *Conn) armStall(since time.Time) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if since.IsZero() && c.stall.IsZero() {
		return
	}
	c.stall = since
	if !since.IsZero() {
		c.stall = since.Add(c.patience)
	}
	_ = c.setReadDeadline() // where it fails the read fails as well, and says why
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

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close ends the connection, a waiting Receive and a blocked Send. Only its first call can return an error.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		c.closeErr = c.nc.Close()
		c.in.share.close()
	})
	return c.closeErr
}
