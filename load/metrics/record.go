package metrics

import (
	"sync"
	"sync/atomic"
	"time"
)

// record is what the store keeps of one endpoint instance. Whoever reads the instance's page holds the record itself, so
// that an answer which comes late reaches nobody but the instance that it is about.
type record struct {
	ordinal    int
	generation uint64
	address    string
	last       atomic.Pointer[Reading]
	gone       atomic.Bool // the instance has left

	mu       sync.Mutex
	busy     bool          // its page is being read
	started  time.Duration // when it was last asked for
	asked    bool
	failures int // in a row
}

// begin claims the record for a scrape; ok is false while another one runs or where the last began within the given
// time.
func (r *record) begin(now, within time.Duration) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy || r.asked && now-r.started < within {
		return false
	}
	r.busy, r.asked, r.started = true, true, now
	return true
}

// end gives the record back and returns how many scrapes have failed in a row, before this one and with it.
func (r *record) end(result Result) (before, failures int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	before = r.failures
	switch result {
	case ResultOK:
		r.failures = 0
	case ResultGone:
	default:
		r.failures++
	}
	return before, r.failures
}

// failed is how many scrapes have failed in a row.
func (r *record) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures
}

// forgive makes the next scrape come at the usual time: the endpoint has changed, and what failed before may work now.
func (r *record) forgive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures, r.asked = 0, false
}

// take makes a reading the instance's newest, and returns why the cache is not what it was, in the order in which it
// happened: a process may be started anew and put to sleep between two readings.
func (r *record) take(next *Reading) (losses []loss) {
	previous := r.last.Load()
	restarted := previous != nil && next.restartedSince(previous)
	if previous != nil && !restarted {
		next.keep(previous)
	}
	if restarted {
		losses = append(losses, lostByRestart)
	}
	if next.Sleep == Asleep && (previous == nil || restarted || previous.Sleep != Asleep) {
		losses = append(losses, lostBySleep)
	}
	r.last.Store(next)
	return losses
}

// keep fills in what the page did not repeat although it cannot have changed.
func (r *Reading) keep(previous *Reading) {
	if r.BlockSizeTokens == 0 {
		r.BlockSizeTokens, r.NumBlocks = previous.BlockSizeTokens, previous.NumBlocks
	}
	if r.StartTime == 0 {
		r.StartTime = previous.StartTime
	}
	if r.Sleep == SleepUnknown {
		r.Sleep = previous.Sleep
	}
}

// restartedSince reports whether the engine's process is another one than at the reading before: one that was started later.
// Where engines do not say when they were started, a counter that went back tells, provided that no engine is missing from
// the sum.
func (r *Reading) restartedSince(previous *Reading) bool {
	if r.StartTime > 0 && previous.StartTime > 0 {
		return r.StartTime > previous.StartTime
	}
	return r.PrefixQueries >= 0 && r.PrefixQueries < previous.PrefixQueries && r.queriesSamples >= previous.queriesSamples
}
