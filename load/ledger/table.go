package ledger

import (
	"sync/atomic"

	"github.com/sluice-epp/sluice/scheduling"
)

// counter holds what is in flight on one endpoint instance. A flight keeps a pointer to the counter that it charged; a
// counter that is no longer in the table lives until its last flight ends, and nobody else sees it.
type counter struct {
	requests atomic.Int64
	tokens   atomic.Int64
	decoding atomic.Int64
	_        [32]byte // a cache line each, with the endpoint: counters of different endpoints are written by different streams
}

func (k *counter) load() scheduling.InFlightLoad {
	return scheduling.InFlightLoad{Requests: k.requests.Load(), Tokens: k.tokens.Load(), Decoding: k.decoding.Load()}
}

// endReasons is the number of values of scheduling.EndReason.
const endReasons = int(scheduling.EndUnseen) + 1

// table holds the counters of the current endpoints. It outlives the plugin that made it: the plugin of the next
// configuration takes it over, while flights of the old one still release through it.
type table struct {
	counters scheduling.Instances[counter]

	withoutMatch  atomic.Uint64
	withoutTokens atomic.Uint64
	releases      [endReasons]atomic.Uint64
}

// find returns the counter of an instance, or nil when the table has none.
func (t *table) find(ordinal int, generation uint64) *counter {
	return counterOf(t.counters.Find(ordinal, generation))
}

// take returns the counter to charge for an instance.
func (t *table) take(e *scheduling.Endpoint) *counter { return counterOf(t.counters.Take(e)) }

func counterOf(in *scheduling.Instance[counter]) *counter {
	if in == nil {
		return nil
	}
	return &in.Value
}
