// Package kvevents follows engines' KV events: it finds out where an engine publishes, keeps a connection to it, reads the
// past from its replay socket, and tells a Sink what the engine holds, in order. What to make of gaps, repeats and
// restarts is decided by package cursor, frames are read by package zmtp and events by package wire.
package kvevents

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// Sink takes what one source (endpoint instance, data-parallel rank) says. Its methods are called one at a time.
type Sink interface {
	// Apply takes the events of a message, which are valid during the call only.
	Apply(b *wire.Batch)
	// Forget makes everything before void.
	Forget(cause cursor.Cause)
	// State tells how far what was applied can be trusted, whenever that changes.
	State(s cursor.State)
}

// Config says where engines publish that say nothing of it themselves.
type Config struct {
	// Port is the TCP port of rank 0's publisher; rank r has Port + r.
	Port int
	// ReplayPort is the TCP port of rank 0's replay socket; 0 for none.
	ReplayPort int
	// Ranks is the number of data-parallel ranks.
	Ranks int
	// Topic is the prefix of the topics to read.
	Topic string
	// Bind says that engines connect to this process; see Acceptor.
	Bind bool
	// Discover asks engines first.
	Discover bool
}

// Options are what a Feed is given by the process.
type Options struct {
	// Logger may be nil.
	Logger *slog.Logger
	// Client asks engines where they publish; nil for none.
	Client *http.Client
	// Acceptor is where engines connect that do so by themselves; nil for none.
	Acceptor *Acceptor
	// Stats counts; it may be shared, and nil is for nobody.
	Stats *Stats

	dial dialer // in tests
}

// Stats counts what feeds see. All are totals.
type Stats struct {
	// Messages are those of the live streams and of replays, Bytes their size.
	Messages, Bytes atomic.Int64
	// Duplicates are messages that were applied before.
	Duplicates atomic.Int64
	// BadMessages could not be read, BadEvents are single events of others, and UnknownEvents are of kinds that are not
	// known.
	BadMessages, BadEvents, UnknownEvents atomic.Int64
	// Dropped are buffered messages that were dropped because a replay took too long.
	Dropped atomic.Int64
	// Connections are connections to publishers, ConnectFailures attempts that failed or ended.
	Connections, ConnectFailures atomic.Int64
	// Replays are replays that were begun, ReplayFailures those that broke off.
	Replays, ReplayFailures atomic.Int64
	// Unattributed are messages of engines that connected by themselves and belong to no endpoint.
	Unattributed atomic.Int64

	// Gaps are messages that follow on missing ones.
	Gaps atomic.Int64

	forgets [cursor.NumCauses]atomic.Int64 // by cause
}

// Forgets is how often everything was forgotten for a cause.
func (s *Stats) Forgets(c cursor.Cause) int64 { return s.forgets[int(c)%len(s.forgets)].Load() }

// The bounds and times of a feed.
const (
	// maxBuffered and maxBufferedBytes bound the live messages that wait for a replay. Past either all are dropped, and
	// another replay brings them.
	maxBuffered      = 10_000
	maxBufferedBytes = 32 << 20
	// replayIdle is how long a replay may stand still: a publisher looks at its replay socket between two messages.
	replayIdle = 3 * time.Second
	// maxMessage is the largest message: a step of an engine announces at most what it computed.
	maxMessage = 64 << 20
	// discoverTimeout bounds one question to an engine, and firstRetry to lastRetry is how long after a failure it is
	// asked again.
	discoverTimeout = 3 * time.Second
	firstRetry      = time.Second
	lastRetry       = 30 * time.Second
	// lookAgain is how often an endpoint without a connection is asked again where it publishes, lookSoon how often one
	// that has never answered.
	lookAgain = 30 * time.Second
	lookSoon  = 2 * time.Second
	// maxDiscovery is the largest answer.
	maxDiscovery = 1 << 20
	// maxRanks is the number of data-parallel ranks of one endpoint.
	maxRanks = 256
	// quiet is how often a feed says the same in the log.
	quiet = time.Minute
)
