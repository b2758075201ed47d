package fleet

import (
	"context"
	"strconv"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Scheduled is a picker that is a scheduler, as it serves.
type Scheduled struct {
	scheduler *scheduling.Scheduler
	view      *View
	flights   map[int]*scheduling.Flight // by request number
	request   scheduling.Request
	session   []byte
	verdicts  map[scheduling.GateVerdict]int
	unwatch   func()
}

// NewScheduled returns a picker that asks a scheduler. It closes it at the end.
func NewScheduled(view *View, s *scheduling.Scheduler) *Scheduled {
	p := &Scheduled{scheduler: s, view: view, flights: map[int]*scheduling.Flight{}, verdicts: map[scheduling.GateVerdict]int{}}
	p.unwatch = view.Pool().Watch(s.SnapshotChanged)
	return p
}

// SessionHeader names the request's session, where the trace tells it.
const SessionHeader = "x-session-id"

// Pick implements Picker.
func (p *Scheduled) Pick(now time.Duration, r *Request) int {
	q := &p.request
	q.Reset()
	q.Tokens = r.Tokens
	// The seed of a decision follows from the id: runs of other seeds draw otherwise.
	q.ID, q.Operation, q.Model = p.view.Seed()<<32+uint64(r.Number)+1, scheduling.OperationCompletions, "sim"
	q.TokenCount, q.Stream = len(r.Tokens), true
	if r.Session != 0 {
		p.session = strconv.AppendUint(p.session[:0], r.Session, 16)
		q.Headers = append(q.Headers, scheduling.Header{Name: SessionHeader, Value: p.session})
	}
	c := p.scheduler.Begin(p.view.Pool().Snapshot(), q, now)
	defer p.scheduler.End(c)
	p.scheduler.Produce(context.Background(), c)
	f, err := p.scheduler.Commit(c)
	q.Tokens = nil // the request's, not ours to reuse
	for i := range c.Gates {
		p.verdicts[c.Gates[i].Verdict]++
	}
	if err != nil {
		return -1
	}
	p.flights[r.Number] = f
	return f.Endpoint.Ordinal
}

// FirstToken implements Picker.
func (p *Scheduled) FirstToken(now time.Duration, r *Request) { p.flights[r.Number].FirstToken(now) }

// Token implements TokenFollower.
func (p *Scheduled) Token(now time.Duration, r *Request) { p.flights[r.Number].Chunk(now) }

// Done implements Picker.
func (p *Scheduled) Done(now time.Duration, r *Request) {
	f := p.flights[r.Number]
	delete(p.flights, r.Number)
	outcome := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{
		PromptTokens: r.PromptTokens, CompletionTokens: r.OutputTokens, CachedTokens: r.Cached,
	}}
	if r.first == 0 { // the engine refused it
		outcome = scheduling.Outcome{Reason: scheduling.EndError, Status: 503, Usage: scheduling.UnknownUsage}
	}
	f.Done(outcome, now)
}

// Verdicts counts what the load gates decided.
func (p *Scheduled) Verdicts() map[scheduling.GateVerdict]int { return p.verdicts }

// Close closes the scheduler.
func (p *Scheduled) Close() error {
	p.unwatch()
	return p.scheduler.Close()
}
