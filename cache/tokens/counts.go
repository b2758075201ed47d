package tokens

import (
	"sync/atomic"

	"github.com/sluice-epp/sluice/cache/tokens/render"
)

// Where exact tokens come from, as metrics show it.
const (
	sourceIDs      = "token_ids" // the body gave them
	sourceMemo     = "memo"      // rendered before
	sourceJoined   = "joined"    // a beginning rendered before and new messages
	sourceRender   = "render"    // a render route
	sourceTokenize = "tokenize"  // the tokenize route
)

// Why a request has no exact tokens, beside the reasons of package render.
const (
	reasonUnsupported = "unsupported"      // an API without a render route, or a request that goes on from a stored one
	reasonUnreadable  = "unreadable"       // a body that is no JSON object
	reasonDemoted     = "mismatch_demoted" // the model's tokens are not what its engines count
)

// What became of joining a conversation, beside using it.
const (
	joinVerified = "verified" // as the engine renders it
	joinMismatch = "mismatch" // otherwise: not used again for the model
	joinRefused  = "refused"  // its parts do not fit together: rendered as a whole
	joinFailed   = "failed"   // could not be verified
)

// counters are counters by label; the labels are fixed.
type counters map[string]*atomic.Int64

func newCounters(labels ...string) counters {
	c := counters{}
	for _, l := range labels {
		c[l] = &atomic.Int64{}
	}
	return c
}

// counts is what a producer counts of exact tokens; it outlives reloads.
type counts struct {
	exact, inexact, joins counters
	hits, misses          atomic.Int64 // of whole prompts in the memo
	learned               atomic.Int64 // prompts taken out of answers
}

func newCounts() *counts {
	reasons := []string{reasonUnsupported, reasonUnreadable, reasonDemoted}
	for r := render.ReasonNone + 1; r <= render.ReasonCanceled; r++ {
		reasons = append(reasons, r.String())
	}
	return &counts{
		exact:   newCounters(sourceIDs, sourceMemo, sourceJoined, sourceRender, sourceTokenize),
		inexact: newCounters(reasons...),
		joins:   newCounters(joinVerified, joinMismatch, joinRefused, joinFailed),
	}
}
