package kvevents

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// Sink takes what one source (endpoint instance, data-parallel rank) says. Its methods are called one at a time, and must
// not call the Feed.
type Sink interface {
	// Apply takes the events of a message, which are valid during the call only. Of a message that cannot be read it takes,
	// when that comes, a batch without events and Bad 1: it tells that the source was heard, and has no place in the order.
	Apply(b *wire.Batch)
	// Forget makes everything before void.
	Forget(cause cursor.Cause)
	// State tells how far what was applied can be trusted, whenever that changes. It begins as cursor.Initial.
	State(s cursor.State)
}

// Config says where engines publish that say nothing of it themselves, and whose endpoints say nothing either.
type Config struct {
	// Port is the TCP port of rank 0's publisher; rank r has Port + r. 0: none.
	Port int
	// ReplayPort is the TCP port of rank 0's replay socket; rank r has ReplayPort + r. 0: none.
	ReplayPort int
	// Ranks is the number of data-parallel ranks behind one address; 0 stands for 1.
	Ranks int
	// Topic is the prefix of the topics to read.
	Topic string
	// Bind says that engines may connect to Options.Acceptor by themselves.
	Bind bool
	// Discover asks engines first.
	Discover bool
	// MaxMessageBytes bounds one message with its topic, in bytes; 0 stands for DefaultMaxMessageBytes.
	MaxMessageBytes int
}

// Options are what a Feed is given by the process.
type Options struct {
	// Logger may be nil.
	Logger *slog.Logger
	// Client asks engines where they publish; nil asks none.
	Client *http.Client
	// Acceptor is where engines connect that do so by themselves; nil for none.
	Acceptor *Acceptor
	// Stats counts; it may be shared, and nil is for nobody.
	Stats *Stats
	// Snapshots reads whole caches from engines that offer that; nil for none.
	Snapshots Snapshotter
	// DialContext opens the connections to publishers and replay sockets; nil dials TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Snapshotter is a hook for protocols by which an engine hands out the whole content of its cache. It is asked before a
// replay of everything.
type Snapshotter interface {
	// Snapshot returns batches, as on the wire, which applied in order to nothing give what the rank's cache holds, and the
	// sequence number of the first message that follows on them. Any error, such as errors.ErrUnsupported, makes the feed
	// ask the replay socket instead.
	Snapshot(ctx context.Context, e *scheduling.Endpoint, rank int) (batches [][]byte, next uint64, err error)
}
