package extproc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeadline(t *testing.T) {
	const timeout = 100 * time.Millisecond
	for name, tt := range map[string]struct {
		end   func(d *deadline, stopParent context.CancelFunc)
		after time.Duration // from the start
		want  error
		cause string
	}{
		"nothing ends it early": {func(*deadline, context.CancelFunc) {}, timeout, context.DeadlineExceeded, "server.produceTimeout ran out (100ms)"},
		"cancelled":             {func(d *deadline, _ context.CancelFunc) { d.cancel() }, 0, context.Canceled, "context canceled"},
		"the parent ends":       {func(_ *deadline, stopParent context.CancelFunc) { stopParent() }, 0, context.Canceled, "context canceled"},
	} {
		for _, waiting := range []string{"before", "after", "never"} {
			t.Run(name+", waited for "+waiting, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, stopParent := context.WithCancel(t.Context())
					defer stopParent()
					begin := time.Now()
					d := newDeadline(parent, timeout)
					defer d.cancel()
					if at, ok := d.Deadline(); !ok || at.Sub(begin) != timeout {
						t.Errorf("deadline %v after the start, %t", at.Sub(begin), ok)
					}
					if waiting == "before" {
						d.Done()
					}
					if err := d.Err(); err != nil {
						t.Errorf("over at the start: %v", err)
					}
					tt.end(d, stopParent)
					if waiting != "never" {
						<-d.Done()
					} else {
						time.Sleep(tt.after)
					}
					if took := time.Since(begin); took != tt.after {
						t.Errorf("over after %v, want %v", took, tt.after)
					}
					if err := d.Err(); !errors.Is(err, tt.want) {
						t.Errorf("over with %v, want %v", err, tt.want)
					}
					if err := context.Cause(d); err == nil || err.Error() != tt.cause || !errors.Is(err, tt.want) {
						t.Errorf("the cause is %v, want %q", err, tt.cause)
					}
				})
			})
		}
	}
}

func TestDeadlineOfParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		defer cancel()
		d := newDeadline(parent, time.Minute)
		defer d.cancel()
		if at, ok := d.Deadline(); !ok || time.Until(at) != time.Second {
			t.Errorf("deadline in %v, %t; the parent's comes first", time.Until(at), ok)
		}
		if d.Value(key{}) != "value" {
			t.Error("the parent's values are lost")
		}
		child, stop := context.WithCancel(d)
		defer stop()
		<-child.Done()
		if !errors.Is(child.Err(), context.DeadlineExceeded) || !errors.Is(d.Err(), context.DeadlineExceeded) {
			t.Errorf("child %v, deadline %v", child.Err(), d.Err())
		}
	})
}

// What nobody waits for costs one object.
func TestDeadlineIsCheap(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := testing.AllocsPerRun(100, func() {
		d := newDeadline(parent, time.Second)
		if d.Err() != nil {
			t.Error("over at once")
		}
		d.cancel()
	}); n > 1 {
		t.Errorf("%g allocations", n)
	}
}
