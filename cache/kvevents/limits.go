package kvevents

import "time"

// DefaultMaxMessageBytes is the largest message in bytes where nothing else is configured. A step that computes 8,192 tokens
// makes one of 30 kB, the largest prompts by one store of a few MB.
const DefaultMaxMessageBytes = 64 << 20

// The bounds of a feed.
const (
	// maxRanks is the number of data-parallel ranks of one endpoint. Messages of further ones are counted and dropped.
	maxRanks = 256
	// maxHeld and maxHeldBytes bound the messages of which a source holds copies: live ones while a replay runs (one of
	// 10,000 batches takes about a second, in which an engine publishes a few hundred at most), or young ones where there
	// is no replay. What a replay has overflowed is replayed again.
	maxHeld      = 4096
	maxHeldBytes = 16 << 20
	// maxHeldOfAll bounds them over all ranks of an endpoint, in bytes, with heldBytes for what each takes besides.
	maxHeldOfAll = 4 * maxHeldBytes
	heldBytes    = 128
	// underWay bounds the messages that arrive at the same time on the connections of one feed, and guestsUnderWay those of
	// all engines that connect by themselves, in largest messages, without the first 256 KiB of each.
	underWay       = 2
	guestsUnderWay = 8
	// maxGuests is the most engines that may be connected by themselves, handshakes included.
	maxGuests = 4096
	// maxAnswer is the most bytes of an answer to a question where an engine publishes.
	maxAnswer = 1 << 20
	// maxSnapshot is the most bytes of the batches of one snapshot.
	maxSnapshot = 256 << 20
)

// The times of a feed.
const (
	// dialTimeout bounds a dial, and again the handshake.
	dialTimeout = 3 * time.Second
	// replayIdle is how long a replay may bring nothing new. A publisher looks at its replay socket between two waits of
	// 100 ms for something to publish; three attempts together stay below readyAfter.
	replayIdle = 2500 * time.Millisecond
	// snapshotTimeout bounds the reading of a snapshot.
	snapshotTimeout = 5 * time.Second
	// askTimeout bounds one question to an engine where it publishes.
	askTimeout = 2 * time.Second
	// askFirst is how long after an unanswered question an engine is asked again, as it may be starting; it doubles up to
	// askLast.
	askFirst, askLast = 2 * time.Second, 30 * time.Second
	// askAgain is how long a publisher is out of reach before the engine is asked again; it doubles up to askAgainLast.
	askAgain, askAgainLast = 30 * time.Second, 5 * time.Minute
	// readyAfter is when a feed is ready whatever is still missing, and failedDials or patience without a connection is
	// when it no longer waits for a publisher.
	readyAfter  = 10 * time.Second
	patience    = 5 * time.Second
	failedDials = 3
	// quiet is how often a feed says the same kind of thing in the log.
	quiet = time.Minute
)
