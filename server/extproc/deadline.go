package extproc

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// deadline is a context that ends with another one, at a time, or when it is cancelled. Unlike one of package context it
// arms no timer and tells its parent nothing until somebody waits for it: most requests have no producer that waits.
type deadline struct {
	context.Context // the parent
	at              time.Time
	timeout         time.Duration

	mu     sync.Mutex
	waited context.Context // what the parent knows of; nil until somebody waits
	stop   context.CancelFunc
	over   bool // cancelled
}

func newDeadline(parent context.Context, timeout time.Duration) *deadline {
	return &deadline{Context: parent, at: time.Now().Add(timeout), timeout: timeout}
}

// errProduceTimeout is the cause of a deadline's end: what decisions say of the producers that had no time.
type errProduceTimeout time.Duration

// Error implements error.
func (e errProduceTimeout) Error() string {
	return fmt.Sprintf("server.produceTimeout ran out (%v)", time.Duration(e))
}

// Is makes it context.DeadlineExceeded, too.
func (errProduceTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Value is the parent's. To package context it is what the parent knows of, where that is anything: so are the end's cause
// and what hangs on the deadline found.
func (d *deadline) Value(key any) any {
	d.mu.Lock()
	waited := d.waited
	d.mu.Unlock()
	if waited != nil {
		return waited.Value(key)
	}
	return d.Context.Value(key)
}

// arm makes the deadline known to the parent. The lock is held.
func (d *deadline) arm() {
	d.waited, d.stop = context.WithDeadlineCause(d.Context, d.at, errProduceTimeout(d.timeout))
	if d.over {
		d.stop()
	}
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
		d.arm()
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
		d.arm()
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
