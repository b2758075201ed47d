package top

import (
	"slices"
	"sync"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// keptDecisions bounds the decisions that are kept to be shown.
const keptDecisions = 400

// instance names one instance of an endpoint for ever.
type instance struct {
	ordinal    uint32
	generation uint64
}

// state is what has been heard of a Sluice. Its methods may be called at once.
type state struct {
	mu        sync.Mutex
	endpoints []*schedulerv1.Endpoint
	indices   []*schedulerv1.IndexStats
	process   schedulerv1.ProcessState
	heard     time.Time // when the endpoints were last told of
	fault     string    // why they were not since
	decisions []shown   // the newest keptDecisions, oldest first
	seen      uint64    // how many there were in all
	missed    uint64    // how many were not told of
	repeats   int       // how many of the next ones may have been told of before
	all       window
	each      map[instance]*window
	begin     time.Time // since when decisions are counted
}

// shown is a decision that was told of.
type shown struct {
	explanation *schedulerv1.Explanation
	at          time.Time
}

// newState returns a state that knows nothing.
func newState(now time.Time) *state { return &state{each: map[instance]*window{}, begin: now} }

// told takes what the server said of itself, its endpoints and indices.
func (s *state) told(answer *schedulerv1.ListEndpointsResponse, indices []*schedulerv1.IndexStats, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	endpoints := answer.GetEndpoints()
	s.endpoints, s.process, s.indices, s.heard, s.fault = endpoints, answer.GetProcess(), indices, now, ""
	there := make(map[instance]bool, len(endpoints))
	for _, e := range endpoints {
		there[instance{e.GetOrdinal(), e.GetGeneration()}] = true
	}
	for i := range s.each { // those that have gone
		if !there[i] {
			delete(s.each, i)
		}
	}
}

// failed notes that the server did not answer.
func (s *state) failed(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = why
}

// tailed notes that a stream of decisions began, of which so many are older than it.
func (s *state) tailed(older int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repeats = older
}

// same reports whether two are the same decision. A server that starts anew counts anew.
func same(a, b *decisionv1.Decision) bool {
	return a.GetId() == b.GetId() && a.GetTimeUnixNano() == b.GetTimeUnixNano()
}

// decided takes a decision that was made at a time; missed is how many were left out before it.
func (s *state) decided(x *schedulerv1.Explanation, missed uint64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := x.GetDecision()
	if s.repeats > 0 {
		s.repeats--
		if slices.ContainsFunc(s.decisions, func(b shown) bool { return same(b.explanation.GetDecision(), d) }) {
			return
		}
	}
	if len(s.decisions) == keptDecisions {
		s.decisions = slices.Delete(s.decisions, 0, keptDecisions/4)
	}
	s.decisions = append(s.decisions, shown{x, at})
	s.seen++
	s.missed += missed
	if at.Before(s.begin) {
		s.begin = at
	}
	s.all.add(at, 1+missed, 0, 0)
	pick := picked(d)
	if pick == nil {
		return
	}
	i := instance{pick.GetOrdinal(), pick.GetGeneration()}
	w := s.each[i]
	if w == nil {
		w = &window{}
		s.each[i] = w
	}
	cached, total := matched(pick)
	s.all.add(at, 0, cached, total)
	w.add(at, 1, cached, total)
}

// has reports whether a decision, or a later one, was told of; of 0 it always was.
func (s *state) has(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.decisions)
	return id == 0 || n > 0 && s.decisions[n-1].explanation.GetDecision().GetId() >= id
}

// view is what is known at a time, to be shown.
type view struct {
	now       time.Time
	endpoints []endpoint
	process   schedulerv1.ProcessState
	indices   []*schedulerv1.IndexStats
	decisions []shown // oldest first
	seen      uint64
	missed    uint64
	heard     time.Time
	fault     string
	rate      float64 // decisions per second
	hit       float64 // the share of prompts that was cached where it went; NaN where there was none
}

// endpoint is one, with what the decisions told of it.
type endpoint struct {
	*schedulerv1.Endpoint
	rate, hit float64
}

// view is the state at a time.
func (s *state) view(now time.Time) *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &view{
		now: now, process: s.process, indices: s.indices, decisions: slices.Clone(s.decisions), seen: s.seen, missed: s.missed,
		heard: s.heard, fault: s.fault, rate: s.all.rate(now, s.begin), hit: s.all.hit(now),
	}
	for _, e := range s.endpoints {
		to := endpoint{Endpoint: e, hit: noShare}
		if w := s.each[instance{e.GetOrdinal(), e.GetGeneration()}]; w != nil {
			to.rate, to.hit = w.rate(now, s.begin), w.hit(now)
		}
		v.endpoints = append(v.endpoints, to)
	}
	return v
}
