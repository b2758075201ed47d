package kvevents

import (
	"net"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// socket is where a rank publishes.
type socket struct {
	rank      int
	publisher string // host:port
	replay    string // host:port; empty for none
	topic     string
}

// line is a connection, kept up, to one socket. Usually it carries one rank; some engines publish all ranks on one.
type line struct {
	feed    *Feed
	socket  socket
	sources map[int]*source // that have been heard on it
	decoder wire.Decoder
	up      bool
}

func newLine(f *Feed, s socket) *line {
	l := &line{feed: f, socket: s, sources: make(map[int]*source)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if src := f.sourceOf(s.rank, s.replay); src != nil {
		l.sources[s.rank] = src
		src.onSettled = append(src.onSettled, s.publisher)
	}
	return l
}

func (l *line) isUp() bool {
	l.feed.mu.Lock()
	defer l.feed.mu.Unlock()
	return l.up
}

// Connected implements zmtp.Handler.
func (l *line) Connected(net.Addr) {
	l.feed.mu.Lock()
	defer l.feed.mu.Unlock()
	l.feed.stats.Connections.Add(1)
	l.up = true
	for _, s := range l.sources {
		s.do(s.cursor.Connected(time.Now()), nil)
	}
}

// Disconnected implements zmtp.Handler.
func (l *line) Disconnected(err error) {
	l.feed.mu.Lock()
	defer l.feed.mu.Unlock()
	l.feed.stats.ConnectFailures.Add(1)
	if !l.up {
		l.feed.complainLocked("connect", "the endpoint's KV events cannot be reached", "address", l.socket.publisher, "error", err)
	}
	l.up = false
	for _, s := range l.sources {
		s.do(s.cursor.Disconnected(time.Now()), nil)
	}
	l.feed.settle(l.socket.publisher)
}

// Message implements zmtp.Handler.
func (l *line) Message(frames [][]byte) {
	f := l.feed
	f.stats.Messages.Add(1)
	_, seq, payload, err := wire.ParseFrames(frames)
	if err != nil {
		f.bad("frames", err)
		return
	}
	f.stats.Bytes.Add(int64(len(payload)))
	batch, err := l.decoder.Decode(payload)
	if err != nil {
		// The number counts all the same: the message is lost, and a later one must not look like a gap that a replay
		// could fill.
		f.bad("payload", err)
		batch = &wire.Batch{}
	}
	f.count(batch)
	f.mu.Lock()
	defer f.mu.Unlock()
	s := l.sourceOf(batch)
	if s == nil {
		return
	}
	m := cursor.Message{Seq: seq, Print: print(payload), Clears: batch.Clears(), Unreadable: err != nil}
	s.do(s.cursor.Live(time.Now(), m), &incoming{m, payload, batch})
}

// sourceOf is the source that a message belongs to: the batch knows best, as some engines publish all ranks on one socket.
func (l *line) sourceOf(b *wire.Batch) *source {
	rank := l.socket.rank
	if b.HasRank {
		rank = b.Rank
	}
	if s := l.sources[rank]; s != nil {
		return s
	}
	if len(l.sources) == 1 && l.feed.config.Ranks <= 1 {
		// The socket's only rank calls itself otherwise than was assumed, and has said nothing before.
		if s := l.sources[l.socket.rank]; s != nil && (s.state == cursor.Silent || s.state == cursor.Initial) {
			l.sources[rank] = s
			return s
		}
	}
	s := l.feed.sourceOf(rank, "")
	if s != nil {
		l.sources[rank] = s
	}
	return s
}

func (f *Feed) count(b *wire.Batch) {
	f.stats.BadEvents.Add(int64(b.Bad))
	f.stats.UnknownEvents.Add(int64(b.Unknown))
}

func (f *Feed) bad(kind string, err error) {
	f.stats.BadMessages.Add(1)
	f.complain(kind, "a message of the endpoint's KV events cannot be read", "error", err)
}
