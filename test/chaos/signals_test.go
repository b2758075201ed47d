//go:build linux

package chaos

import (
	"context"
	"os"
)

// told is a context that the first signal ends; the second closes force.
type told struct {
	context.Context
	force chan struct{}
}

func signalled(signals <-chan os.Signal) (told, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t := told{ctx, make(chan struct{})}
	go func() {
		<-signals
		cancel()
		<-signals
		close(t.force)
	}()
	return t, cancel
}
