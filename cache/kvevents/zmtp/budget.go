package zmtp

import (
	"net"
	"sync"
	"sync/atomic"
)

// Budget bounds what the messages of several connections take together, beyond the small buffer that each connection
// has: Options.MaxFrameBytes bounds one message, which times the number of connections may be more than there is.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a Budget of so many bytes.
func NewBudget(bytes int) *Budget { return &Budget{limit: int64(bytes)} }

// Used is the number of bytes that connections take now.
func (b *Budget) Used() int { return int(b.used.Load()) }

func (b *Budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// share is one connection's part of a Budget, nil for none.
type share struct {
	budget *Budget

	mu     sync.Mutex
	taken  int64
	closed bool
}

// cover takes what a buffer of so many bytes needs beyond keepBytes, or gives back what it no longer needs.
func (s *share) cover(buffer int) error {
	if s.budget == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	more := max(0, int64(buffer)-keepBytes) - s.taken
	if more > 0 && !s.budget.take(more) {
		return tooLarge("a message that takes %d bytes, where %d of %d are taken by all connections", buffer, s.budget.Used(), s.budget.limit)
	}
	if more < 0 {
		s.budget.used.Add(more)
	}
	s.taken += more
	return nil
}

// close gives everything back for good.
func (s *share) close() {
	if s.budget == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.used.Add(-s.taken)
	s.taken, s.closed = 0, true
}
