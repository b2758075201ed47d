package kvevents

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// Stats counts what feeds see. All are totals, except for Held and HeldBytes.
type Stats struct {
	// Messages are those of the live streams and of replays, Bytes the size of their payloads.
	Messages, Bytes atomic.Int64
	// Applied are messages that were passed on, Replayed those of them that a replay brought.
	Applied, Replayed atomic.Int64
	// Duplicates are live messages that were applied before.
	Duplicates atomic.Int64
	// BadMessages could not be read, see Faults; BadEvents are malformed events of others, and UnknownEvents are of kinds
	// that are not known.
	BadMessages, BadEvents, UnknownEvents atomic.Int64
	// TooLarge are messages that were not read because they were larger than the bound, or than what was left for them.
	TooLarge atomic.Int64
	// Gaps are live messages that follow on missing ones.
	Gaps atomic.Int64
	// Held are messages of which copies are held now, HeldBytes their payloads; Dropped are those that waited for a replay
	// and were dropped because they were too many.
	Held, HeldBytes, Dropped atomic.Int64
	// Connections are connections to publishers, ConnectFailures attempts that failed and connections that ended.
	Connections, ConnectFailures atomic.Int64
	// Replays are attempts at a replay, ReplayFailures those that failed or broke off.
	Replays, ReplayFailures atomic.Int64
	// Snapshots are snapshots that were taken in.
	Snapshots atomic.Int64
	// Questions are those to engines where they publish, Unanswered the ones without any answer.
	Questions, Unanswered atomic.Int64
	// RankConflicts are messages in which two publishers of one endpoint call themselves the same rank.
	RankConflicts atomic.Int64
	// Unattributed are messages of engines that connected by themselves and belong to no endpoint.
	Unattributed atomic.Int64

	forgets [cursor.NumCauses]atomic.Int64
	changes [cursor.NumReasons]atomic.Int64
	faults  [numFaults]atomic.Int64
}

// Forgets is how often everything was forgotten for a cause.
func (s *Stats) Forgets(c cursor.Cause) int64 { return at(s.forgets[:], int(c)) }

// Changes is how often a source's state changed for a reason.
func (s *Stats) Changes(r cursor.Reason) int64 { return at(s.changes[:], int(r)) }

// Faults is how many messages could not be read for a fault.
func (s *Stats) Faults(f Fault) int64 { return at(s.faults[:], int(f)) }

func at(counters []atomic.Int64, i int) int64 {
	if i < len(counters) {
		return counters[i].Load()
	}
	return 0
}

// Fault is why a message could not be read.
type Fault uint8

// The faults of messages.
const (
	// FaultFrames: the number of frames is wrong.
	FaultFrames Fault = iota
	// FaultSequence: the sequence number has not 8 bytes, or is the one that ends a replay.
	FaultSequence
	// FaultTruncated: the payload ends inside a value.
	FaultTruncated
	// FaultBatch: the payload is no batch of events.
	FaultBatch
	// FaultRank: there are too many ranks.
	FaultRank

	numFaults
)

var faultNames = [numFaults]string{"frames", "sequence", "truncated", "batch", "rank"}

// String is the fault's name in metrics.
func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return "unknown"
}

// Faults are all faults, in order.
func Faults() []Fault {
	list := make([]Fault, numFaults)
	for i := range list {
		list[i] = Fault(i)
	}
	return list
}

// faultOf is the fault behind an error of package wire.
func faultOf(err error) Fault {
	switch {
	case errors.Is(err, wire.ErrFrames):
		return FaultFrames
	case errors.Is(err, wire.ErrSequence):
		return FaultSequence
	case errors.Is(err, wire.ErrTruncated):
		return FaultTruncated
	}
	return FaultBatch
}

func (s *Stats) fault(f Fault) {
	s.BadMessages.Add(1)
	s.faults[f].Add(1)
}
