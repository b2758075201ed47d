// Package audit holds what a prefix index predicted against what engines report: for an answer that says how many of its
// prompt's tokens came out of the cache, the index had said a number for the endpoint that served, when it was picked.
package audit

import (
	"sync/atomic"

	"github.com/sluice-epp/sluice/scheduling"
)

// Answer is one complete answer that said how much of its prompt was cached.
type Answer struct {
	// Predicted are the tokens that the engine should report: what the index knew, at the pick, of the endpoint that
	// served. An engine computes the last token of every prompt, so this is at most ⌊(tokens − 1) / block⌋ blocks.
	Predicted int
	// Reported are the tokens that the engine says came out of its cache, not negative. What lies beyond the part of the
	// prompt that the index looks at is to be left out.
	Reported int
	// Block is how fine the prediction is, in tokens: the index's block, or more where it cannot tell better. What
	// differs by less is no difference. Below 1 it counts as 1.
	Block int
}

// Counts are what the audit of some answers came to. All only grow.
type Counts struct {
	// Answers were audited: FalseHits, Misses, and those whose prediction was right to the block.
	Answers int64
	// FalseHits are answers of which at least a block less was cached than predicted; Misses those with at least a block
	// more.
	FalseHits, Misses int64
	// Unconfirmed are further answers: with a hit predicted and none reported by an engine that has never reported any.
	// It may not say what is cached, or cache nothing; its word is not taken for a false hit.
	Unconfirmed int64
	// Predicted and Reported are the tokens of the audited answers.
	Predicted, Reported int64
	// Over are the tokens predicted that were not cached, Under those cached that were not predicted: Predicted − Over
	// is Reported − Under.
	Over, Under int64
}

// FalseHitRate is the share of audited answers that are false hits, MissRate that of misses; 0 where none was audited.
func (c Counts) FalseHitRate() float64 { return share(c.FalseHits, c.Answers) }

// MissRate is described with FalseHitRate.
func (c Counts) MissRate() float64 { return share(c.Misses, c.Answers) }

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func (c *Counts) add(o Counts) {
	c.Answers += o.Answers
	c.FalseHits += o.FalseHits
	c.Misses += o.Misses
	c.Unconfirmed += o.Unconfirmed
	c.Predicted += o.Predicted
	c.Reported += o.Reported
	c.Over += o.Over
	c.Under += o.Under
}

// Table holds the counts of a producer's predictions by endpoint instance. The zero value is ready to use; it must not be
// copied. It takes no lock to note an answer, and endpoints share nothing that is written.
type Table struct {
	endpoints scheduling.Instances[record]
}

// record is what is counted of one instance.
type record struct {
	exact, falseHits, misses, unconfirmed atomic.Int64
	predicted, reported, over, under      atomic.Int64
	reports                               atomic.Bool // it has said of an answer that something was cached
	_                                     [52]byte    // with the endpoint: two cache lines, which no other record is on
}

// Note audits an answer of an endpoint.
func (t *Table) Note(e *scheduling.Endpoint, a Answer) {
	r := &t.endpoints.Take(e).Value
	if a.Reported > 0 && !r.reports.Load() {
		r.reports.Store(true)
	}
	block := max(1, a.Block)
	over, under := max(0, a.Predicted-a.Reported), max(0, a.Reported-a.Predicted)
	switch {
	case over >= block && a.Reported == 0 && !r.reports.Load():
		r.unconfirmed.Add(1)
		return
	case over >= block:
		r.falseHits.Add(1)
	case under >= block:
		r.misses.Add(1)
	default:
		r.exact.Add(1)
	}
	r.predicted.Add(int64(a.Predicted))
	r.reported.Add(int64(a.Reported))
	if over > 0 {
		r.over.Add(int64(over))
	}
	if under > 0 {
		r.under.Add(int64(under))
	}
}

func (r *record) counts() Counts {
	c := Counts{
		FalseHits: r.falseHits.Load(), Misses: r.misses.Load(), Unconfirmed: r.unconfirmed.Load(),
		Predicted: r.predicted.Load(), Reported: r.reported.Load(), Over: r.over.Load(), Under: r.under.Load(),
	}
	c.Answers = r.exact.Load() + c.FalseHits + c.Misses
	return c
}

// Of are the counts of one endpoint instance; none where nothing is known of it.
func (t *Table) Of(e *scheduling.Endpoint) Counts {
	if in := t.endpoints.Find(e.Ordinal, e.Generation); in != nil {
		return in.Value.counts()
	}
	return Counts{}
}

// Sum are the counts of all endpoints that there are now; those of one that went go with it.
func (t *Table) Sum() (sum Counts) {
	for _, in := range t.endpoints.All() {
		if in != nil {
			sum.add(in.Value.counts())
		}
	}
	return sum
}

// SnapshotChanged makes the table know the endpoints, and forgets those that went.
func (t *Table) SnapshotChanged(s *scheduling.Snapshot) { t.endpoints.Follow(s) }
