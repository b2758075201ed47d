package outlier

import (
	"log/slog"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Filter leaves ejected endpoints out. It is a preference: where nothing else is left, it keeps all.
//
// An ejection ends by itself. The endpoint is then tried with one request: until that one has an outcome, or another
// ejection time has passed, the rest stays away. A success makes it an endpoint like the others again, at once.
type Filter struct {
	params Parameters
	logger *slog.Logger
	counts *counts
	state  scheduling.StateKey[pick]
	table  *table
	column scheduling.Key[scheduling.Ejected]
}

// pick is what the plugin keeps per flight.
type pick struct {
	on    *record // of the endpoint that carries the charge
	trial bool    // it tries an endpoint that was left out
	told  bool    // the outcome is known already: the first token was seen
}

// Preference marks the filter as one (see scheduling.Preference).
func (f *Filter) Preference() {}

// Fill says which endpoints are ejected, so that the decision can be made again from what is recorded.
func (f *Filter) Fill(c *scheduling.Cycle) {
	if f.table.troubled.Load() > 0 {
		f.table.tell(c, f.column.In(c))
	}
}

// Filter removes the ejected endpoints, unless that leaves nothing.
func (f *Filter) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	ejected := f.column.In(c).Present()
	if ejected.Empty() {
		return
	}
	left := c.Scratch()
	left.CopyFrom(candidates)
	left.Subtract(ejected)
	if !left.Empty() {
		candidates.CopyFrom(left)
	}
}

// Ejected reports whether an endpoint instance is left out at a moment on the clock of Cycle.Now.
func (f *Filter) Ejected(ordinal int, generation uint64, now time.Duration) bool {
	r := f.table.find(ordinal, generation)
	if r == nil {
		return false
	}
	f.table.mu.RLock()
	defer f.table.mu.RUnlock()
	return r.ejectedAt(now)
}

// Charge notes the pick. The one that tries an endpoint after its ejection keeps the next ones away from it.
func (f *Filter) Charge(c *scheduling.Cycle, flight *scheduling.Flight) {
	r := f.table.take(flight.Endpoint)
	trial := f.table.troubled.Load() > 0 && r.tried(c.Now, f.params)
	*f.state.Of(flight) = pick{on: r, trial: trial}
}

// Committed has nothing to do: Charge noted the pick.
func (f *Filter) Committed(*scheduling.Cycle, *scheduling.Flight) {}

// FirstToken is a success.
func (f *Filter) FirstToken(flight *scheduling.Flight, _ time.Duration) {
	p := f.state.Of(flight)
	p.told = true
	f.succeeded(p.on)
}

// Done tells success from failure: a 5xx is the endpoint's, whether it or the proxy in its place said so. A client that
// left, and an end that nobody saw, say nothing.
func (f *Filter) Done(flight *scheduling.Flight, now time.Duration) {
	p := f.state.Of(flight)
	switch o := flight.Outcome; {
	case p.on == nil, p.told:
	case o.Status >= 500:
		f.failed(p, now)
	case o.Status > 0:
		f.succeeded(p.on)
	}
}

// Moved is a failure of the endpoint that the proxy gave up.
func (f *Filter) Moved(flight *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	p := f.state.Of(flight)
	if p.on == nil {
		return
	}
	f.failed(p, flight.PickedAt)
	*p = pick{on: f.table.take(flight.Endpoint), told: p.told}
}

func (f *Filter) failed(p *pick, now time.Duration) {
	f.counts.failures.Inc()
	left, first := f.table.failed(p.on, p.trial, now, f.params)
	if left == 0 {
		return
	}
	f.counts.ejections.Inc()
	if first {
		f.counts.ejected.Inc()
	}
	f.logger.Warn("endpoint failed several requests in a row and is left out for a while",
		"endpoint", p.on.address, "consecutive_failures", f.params.ConsecutiveFailures, "for", left.String())
}

func (f *Filter) succeeded(r *record) {
	if f.table.succeeded(r) {
		f.counts.returns.Inc()
		f.counts.ejected.Dec()
		f.logger.Info("endpoint serves again", "endpoint", r.address)
	}
}

// SnapshotChanged forgets endpoints that went.
func (f *Filter) SnapshotChanged(s *scheduling.Snapshot) {
	for range f.table.follow(s) {
		f.counts.ejected.Dec()
	}
}
