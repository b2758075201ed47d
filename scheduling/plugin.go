package scheduling

import (
	"context"
	"time"
)

// Producer fills the columns and values that it declared, before the decision and outside any lock. It may do I/O,
// bounded by ctx; whatever it could not find out stays absent. An error is counted by the caller and never fails the
// request; where it is that ctx is over, it is ctx's cause, which decisions show.
type Producer interface {
	Produce(ctx context.Context, c *Cycle) error
}

// Filler fills columns inside the critical section that all picks of a pool share, so that simultaneous picks see one
// another. It must not block, allocate or take long.
type Filler interface {
	Fill(c *Cycle)
}

// Filter narrows the candidates in place. An empty set after a filter ends the decision without a pick.
type Filter interface {
	Filter(c *Cycle, candidates Set)
}

// Scorer writes a score in [0, 1] for every candidate, higher is better, in one pass. scores is indexed by ordinal and
// zero at the start; what is outside [0, 1] or not a number is clamped by the profile.
type Scorer interface {
	Score(c *Cycle, candidates Set, scores []float64)
}

// Picker appends up to c.MaxPicks ordinals of candidates to picks, best first, and returns it. totals, indexed by
// ordinal, holds the weighted sums of the scores. Ties are broken by c.Rand, never by order.
type Picker interface {
	Pick(c *Cycle, candidates Set, totals []float64, picks []int) []int
}

// Charger records a pick inside the critical section, so that the next pick sees it. The same rules as for Filler.
type Charger interface {
	Charge(c *Cycle, f *Flight)
}

// Follower learns what becomes of a pick. The calls for one flight come in order, each at most once, and Done always
// comes, from whichever goroutine serves the stream. now is on the clock of Cycle.Now.
type Follower interface {
	// Committed follows the pick, outside the critical section. The request's buffers are valid only until it returns.
	Committed(c *Cycle, f *Flight)
	// FirstToken follows the first generated token of a streamed answer.
	FirstToken(f *Flight, now time.Duration)
	// Done follows the end of the stream, however it ends; f.Outcome says how.
	Done(f *Flight, now time.Duration)
}

// ChunkFollower is a Follower that is told of every piece of a streamed answer after its first token, too. Pieces arrive as the
// engine's steps end. It must not block.
type ChunkFollower interface {
	Chunk(f *Flight, now time.Duration)
}

// Mover is told that the proxy was served by another endpoint than the one charged (a retry, a fallback):
// f.Endpoint is already the new one. now is when the proxy reported it, later than the other endpoint was asked.
type Mover interface {
	Moved(f *Flight, from *Endpoint, now time.Duration)
}

// Answerer adds a header to the answer that a request's client gets. AnswerHeader is called when the answer begins, at most
// once for a flight; f.Endpoint is who served. An empty name adds none. The same rules as for Follower; it must not block.
type Answerer interface {
	AnswerHeader(f *Flight) (name, value string)
}

// Watcher is told every new snapshot, so that it can drop what it keeps for endpoints that went.
type Watcher interface {
	SnapshotChanged(s *Snapshot)
}

// Closer is a plugin with goroutines or connections of its own; Close ends them and returns once they are gone.
type Closer interface {
	Close() error
}
