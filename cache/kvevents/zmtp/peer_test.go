package zmtp

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// hand is a peer driven byte by byte, at the other end of a pipe. It reads whatever this side writes.
type hand struct {
	net.Conn
	t    *testing.T
	mu   sync.Mutex
	got  bytes.Buffer
	done chan struct{} // this side closed the connection
}

func newHand(t *testing.T) (*hand, net.Conn) {
	t.Helper()
	theirs, ours := net.Pipe()
	h := &hand{Conn: theirs, t: t, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		buffer := make([]byte, 4096)
		for {
			n, err := theirs.Read(buffer)
			h.mu.Lock()
			h.got.Write(buffer[:n])
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		theirs.Close()
		ours.Close()
		<-h.done
	})
	return h, ours
}

// newDeafPipe is a connection whose peer reads nothing.
func newDeafPipe(t *testing.T) (theirs, ours net.Conn) {
	theirs, ours = net.Pipe()
	t.Cleanup(func() { theirs.Close(); ours.Close() })
	return theirs, ours
}

// say writes from a goroutine of its own, since a pipe takes nothing that is not read.
func (h *hand) say(parts ...[]byte) {
	go func() {
		for _, part := range parts {
			if _, err := h.Write(part); err != nil {
				return
			}
		}
	}()
}

func (h *hand) heard() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got.String()
}

// shake is a connection whose peer said what it had to.
func shake(t *testing.T, minor byte, socket, peer Socket, o Options) (*Conn, *hand) {
	t.Helper()
	h, nc := newHand(t)
	h.say(hello(3, minor, "NULL"), ready(string(peer)))
	c, err := Handshake(t.Context(), nc, socket, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	h.forget()
	return c, h
}

// forget drops what was heard, which is the handshake.
func (h *hand) forget() {
	for !strings.Contains(h.heard(), "\x05READY") {
		time.Sleep(time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got.Reset()
}

func hello(major, minor byte, mechanism string) []byte {
	g := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + string([]byte{major, minor}) + mechanism + strings.Repeat("\x00", 20-len(mechanism))
	return []byte(g + strings.Repeat("\x00", 32))
}

func ready(socket string) []byte {
	return command("\x05READY" + property("Socket-Type", socket))
}

func property(name, value string) string {
	return string([]byte{byte(len(name))}) + name + string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
}

func command(body string) []byte { return append([]byte{4, byte(len(body))}, body...) }

// long is a frame's head with a length in 8 bytes.
func long(flags byte, length uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, length)
}

// pair is two connections of this package over loopback.
func pair(t testing.TB, a, b Socket, o Options) (*Conn, *Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var other *Conn
	var otherErr error
	var accepting sync.WaitGroup
	accepting.Go(func() {
		nc, err := ln.Accept()
		if err != nil {
			otherErr = err
			return
		}
		other, otherErr = Handshake(t.Context(), nc, b, o)
	})
	c, err := Dial(t.Context(), ln.Addr().String(), a, o)
	accepting.Wait()
	if err != nil || otherErr != nil {
		t.Fatal(err, otherErr)
	}
	t.Cleanup(func() { c.Close(); other.Close() })
	return c, other
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// eventually polls for what another goroutine or process brings about.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// copies of frames, which do not outlive the next Receive.
func texts(frames [][]byte) []string {
	out := make([]string, len(frames))
	for i, frame := range frames {
		out[i] = string(frame)
	}
	return out
}

// replay is a net.Conn that brings what was recorded, in pieces of a size, and takes everything.
type replay struct {
	net.Conn
	content []byte
	piece   int
}

func (r *replay) Read(p []byte) (int, error) {
	if len(r.content) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.piece)], r.content)
	r.content = r.content[n:]
	return n, nil
}

func (r *replay) Write(p []byte) (int, error)      { return len(p), nil }
func (r *replay) SetReadDeadline(time.Time) error  { return nil }
func (r *replay) SetWriteDeadline(time.Time) error { return nil }
func (r *replay) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5557} }
func (r *replay) Close() error                     { return nil }
