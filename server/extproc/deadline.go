package extproc

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends with another one, at a time, or when it is cancelled. Unlike one of package context it
// arms no timer and tells its parent nothing until somebody waits for it: most requests have no producer that waits.
type deadline struct {
	context.Context // the parent
	at              time.Time

	mu     sync.Mutex
	waited context.Context // what the parent knows of; nil until somebody waits
	stop   context.CancelFunc
	over   bool // cancelled
}

func newDeadline(parent context.Context, timeout time.Duration) *deadline {
	return &deadline{Context: parent, at: time.Now().Add(timeout)}
}

// Deadline is the time at which the context ends.
func (d *deadline) Deadline() (time.Time, bool) {
	if at, ok := d.Context.Deadline(); ok && at.Before(d.at) {
		return at, true
	}
	return d.at, true
}

// Done is closed at the end.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waited == nil {
		d.waited, d.stop = context.WithDeadline(d.Context, d.at)
		if d.over {
			d.stop()
		}
	}
	return d.waited.Done()
}

// Err is nil before the end.
func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.waited != nil:
		return d.waited.Err()
	case d.over:
		return context.Canceled
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(d.at) {
		return context.DeadlineExceeded
	}
	return nil
}

// cancel ends the context.
func (d *deadline) cancel() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	if d.stop != nil {
		d.stop()
	}
}
