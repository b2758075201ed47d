package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// copyBytes is up to where a frame is copied beside its neighbours to be written together with them.
	copyBytes  = 16 << 10
	outputSize = 64 << 10
)

// appendHead appends a frame's flags and length, short where that will do.
func appendHead(dst []byte, flags byte, length int) []byte {
	if length <= 255 {
		return append(dst, flags, byte(length))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(length))
}

// appendMessage appends a message as it goes over the wire.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, frame := range frames {
		dst = appendHead(dst, moreFlag(i, frames), len(frame))
		dst = append(dst, frame...)
	}
	return dst
}

func moreFlag(i int, frames [][]byte) byte {
	if i < len(frames)-1 {
		return flagMore
	}
	return 0
}

func messageBytes(frames [][]byte) int {
	n := 0
	for _, frame := range frames {
		n += 9 + len(frame)
	}
	return n
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

// writeBatch writes encoded messages together, and leaves the slice as it is.
func (c *Conn) writeBatch(encoded [][]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.beginWrite(c.options.WriteTimeout); err != nil {
		return err
	}
	c.batch = append(c.batch[:0], encoded...)
	c.buffers = net.Buffers(c.batch)
	_, err := c.buffers.WriteTo(c.nc)
	return c.wrote(err)
}
