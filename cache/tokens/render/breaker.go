package render

import (
	"sync"
	"time"
)

// When a breaker opens, and for how long: so many failures in a row open it, and each trial that fails doubles the time
// up to the longest.
const (
	failuresToOpen = 5
	firstOpen      = time.Second
	longestOpen    = 30 * time.Second
)

// breaker keeps requests from waiting for a server that keeps failing. Open, it lets nothing through for a while; then
// one call at a time as a trial, until one succeeds.
type breaker struct {
	mu       sync.Mutex
	failures int           // in a row
	open     time.Duration // how long it was opened for last; 0 while it is closed
	until    time.Time     // when the next trial may go
	trial    bool          // a trial is under way
}

// State is what a server's breaker does.
type State uint8

// The states of a breaker.
const (
	Closed   State = iota // everything goes through
	Open                  // nothing does
	HalfOpen              // one call at a time does
)

var stateNames = [...]string{"closed", "open", "half_open"}

// String is the state's name as metrics show it.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// enter reports whether a call may go, and whether it is a trial; its end has to be told by leave.
func (b *breaker) enter(now time.Time) (ok, trial bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == 0 {
		return true, false
	}
	if b.trial || now.Before(b.until) {
		return false, false
	}
	b.trial = true
	return true, true
}

// verdict is what a call says of its server.
type verdict uint8

const (
	noVerdict verdict = iota // nothing: it was called off
	succeeded
	failed
)

// turn is what the end of a call makes a breaker do.
type turn uint8

const (
	noTurn turn = iota
	opened      // it opens, having been closed
	closed      // it closes, having been open
)

// leave tells the end of a call.
func (b *breaker) leave(trial bool, v verdict, now time.Time) turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if trial {
		b.trial = false
	}
	switch v {
	case succeeded:
		was := b.open
		b.failures, b.open = 0, 0
		if was > 0 {
			return closed
		}
	case failed:
		if b.open > 0 && !trial {
			return noTurn // a call from before it opened
		}
		if b.failures++; b.failures < failuresToOpen {
			return noTurn
		}
		was := b.open
		b.open = min(max(2*b.open, firstOpen), longestOpen)
		b.until = now.Add(b.open)
		if was == 0 {
			return opened
		}
	}
	return noTurn
}

func (b *breaker) state(now time.Time) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.open == 0:
		return Closed
	case !b.trial && now.Before(b.until):
		return Open
	}
	return HalfOpen
}
