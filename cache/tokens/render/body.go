package render

import (
	"errors"
	"io"
	"sync"
)

// lease is the right to read memory that belongs to somebody else. Once it is over nothing is read any more: a transport
// may go on reading a request's body after the call has returned.
type lease struct {
	mu      sync.Mutex
	over    bool
	readers int // bodies that are not read to their end
}

var errOver = errors.New("the request is over")

// end ends the lease; whole says that every body was read to its end, so that the call goes on without.
func (l *lease) end() (whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.readers == 0
}

// body returns a reader of pieces, one after the other.
func (l *lease) body(pieces [][]byte) *body {
	b := &body{lease: l, pieces: pieces}
	l.mu.Lock()
	defer l.mu.Unlock()
	if size(pieces) > 0 {
		b.unread = true
		l.readers++
	}
	return b
}

func size(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

// body reads pieces under a lease.
type body struct {
	lease  *lease
	pieces [][]byte // what is left of them
	at     int      // in the first one
	unread bool     // not read to its end
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	b.lease.mu.Lock()
	defer b.lease.mu.Unlock()
	for len(b.pieces) > 0 && n < len(p) {
		if b.lease.over {
			return 0, errOver
		}
		copied := copy(p[n:], b.pieces[0][b.at:])
		n += copied
		if b.at += copied; b.at == len(b.pieces[0]) {
			b.pieces, b.at = b.pieces[1:], 0
		}
	}
	if len(b.pieces) > 0 {
		return n, nil
	}
	b.settle()
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.lease.mu.Lock()
	defer b.lease.mu.Unlock()
	b.pieces = nil
	b.settle()
	return nil
}

// settle takes a body that is not read any more out of the lease's count.
func (b *body) settle() {
	if b.unread {
		b.unread = false
		b.lease.readers--
	}
}
