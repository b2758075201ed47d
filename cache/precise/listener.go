package precise

import (
	"log/slog"
	"sync"

	"github.com/sluice-epp/sluice/cache/kvevents"
)

// listener is where engines connect that publish by connecting. A hub that follows on another one at the same address
// shares it, as the old one ends only after the new one has begun.
type listener struct {
	*kvevents.Acceptor
	address string

	mu    sync.Mutex
	users int
}

func listenOn(address string, maxMessageBytes int, logger *slog.Logger) (*listener, error) {
	a, err := kvevents.Listen(address, maxMessageBytes, logger)
	if err != nil {
		return nil, err
	}
	return &listener{Acceptor: a, address: address, users: 1}, nil
}

// share is the hub's listener where it has one at an address, for one more user.
func (h *hub) share(address string) *listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.listener; l != nil && l.address == address && l.join() {
		return l
	}
	return nil
}

func (l *listener) join() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return false
	}
	l.users++
	return true
}

// acceptor is what feeds are given; nil where nobody listens.
func (l *listener) acceptor() *kvevents.Acceptor {
	if l == nil {
		return nil
	}
	return l.Acceptor
}

// leave ends a hub's share; the last one stops listening.
func (l *listener) leave() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.users--
	last := l.users == 0
	l.mu.Unlock()
	if last {
		return l.Close()
	}
	return nil
}
