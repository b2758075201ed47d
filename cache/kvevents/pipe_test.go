package kvevents

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe is a connection in memory that, unlike net.Pipe's, takes what is written without waiting for a reader, as TCP does.
func pipe() (net.Conn, net.Conn) {
	a, b := newStream(), newStream()
	return &pipeEnd{in: a, out: b}, &pipeEnd{in: b, out: a}
}

type pipeEnd struct{ in, out *stream }

// stream is one direction.
type stream struct {
	mu       sync.Mutex
	data     []byte
	closed   bool
	deadline time.Time
	changed  chan struct{} // closed and replaced with every change
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

func (s *stream) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (e *pipeEnd) Read(p []byte) (int, error) {
	s := e.in
	for {
		s.mu.Lock()
		deadline, changed, closed := s.deadline, s.changed, s.closed
		late := !deadline.IsZero() && !time.Now().Before(deadline)
		if len(s.data) > 0 && !late {
			n := copy(p, s.data)
			s.data = s.data[n:]
			s.mu.Unlock()
			return n, nil
		}
		s.mu.Unlock()
		switch {
		case closed:
			return 0, io.EOF
		case late:
			return 0, os.ErrDeadlineExceeded
		case deadline.IsZero():
			<-changed
		default:
			timer := time.NewTimer(time.Until(deadline))
			select {
			case <-changed:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

func (e *pipeEnd) Write(p []byte) (int, error) {
	n, err := len(p), error(nil)
	e.out.change(func() {
		if e.out.closed {
			n, err = 0, io.ErrClosedPipe
			return
		}
		e.out.data = append(e.out.data, p...)
	})
	return n, err
}

func (e *pipeEnd) Close() error {
	e.in.change(func() { e.in.closed = true })
	e.out.change(func() { e.out.closed = true })
	return nil
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.change(func() { e.in.deadline = t })
	return nil
}

func (e *pipeEnd) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }
func (e *pipeEnd) SetWriteDeadline(time.Time) error { return nil }
func (e *pipeEnd) LocalAddr() net.Addr              { return pipeAddr{} }
func (e *pipeEnd) RemoteAddr() net.Addr             { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
