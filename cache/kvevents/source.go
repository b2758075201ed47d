package kvevents

import (
	"bytes"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// source is one data-parallel rank: its cursor, its sink, and the messages that are held for it. The feed's lock guards
// it.
type source struct {
	feed       *Feed
	rank       int  // as its publisher calls itself, once it has
	place      int  // the rank that it was configured as; -1: it was only heard of
	configured bool // it still is
	sink       Sink
	cursor     *cursor.Cursor
	state      cursor.State // that the sink knows

	link  *link // the connection that it is heard on; nil: none yet
	heard *link // the one that brought the last message

	replayAt string // host:port of the replay socket; empty for none
	replay   *replay

	held  []held
	bytes int // of held
}

// held is a copy of a message.
type held struct {
	cursor.Message
	payload []byte
}

// message is one with what was read of it.
type message struct {
	cursor.Message
	payload  []byte
	batch    *wire.Batch // nil: Unreadable
	replayed bool
}

// read makes a message of a payload. An unreadable one takes its place in the sequence all the same: a replay would bring
// the same bytes.
func read(d *wire.Decoder, seq uint64, payload []byte) (m message, err error) {
	m.Seq, m.payload, m.Print = seq, payload, xxh3.Hash(payload)
	if m.batch, err = d.Decode(payload); err != nil {
		m.Unreadable = true
		return m, err
	}
	m.Clears = m.batch.Clears()
	return m, nil
}

// do carries a step out and tells what it has changed. m is the message that it is about, nil for none.
func (s *source) do(step cursor.Step, m *message) {
	s.carryOut(step, m)
	f := s.feed
	if state := s.cursor.State(); state != s.state {
		s.state = state
		f.stats.changes[s.cursor.Reason()].Add(1)
		s.sink.State(state)
	}
	if next := s.cursor.Next(); !next.IsZero() && next.Before(f.alarm) || !f.readied && s.cursor.Settled() {
		f.rouse()
	}
}

func (s *source) carryOut(step cursor.Step, m *message) {
	stats := s.feed.stats
	if step.Forget != 0 {
		stats.forgets[step.Forget].Add(1)
		if s.feed.may(aboutForgetting) {
			s.feed.logger.Info("what was known of an engine's cache is forgotten", "rank", s.rank, "cause", step.Forget.String())
		}
		s.sink.Forget(step.Forget)
	}
	if step.Gap {
		stats.Gaps.Add(1)
	}
	if step.Held == cursor.HeldDrop {
		s.drop()
	}
	switch step.Verdict {
	case cursor.Apply:
		s.apply(m)
		if step.Keep {
			s.hold(m, true)
		}
	case cursor.Ignore:
		if !m.replayed {
			stats.Duplicates.Add(1)
		}
	case cursor.Hold:
		s.hold(m, false)
	}
	switch step.Ask {
	case cursor.AskReplay:
		s.startReplay(step.From, step.Whole)
	case cursor.AskStop:
		s.stopReplay()
	}
	if step.Held == cursor.HeldRelease {
		s.release()
	}
}

func (s *source) apply(m *message) {
	stats := s.feed.stats
	stats.Applied.Add(1)
	if m.replayed {
		stats.Replayed.Add(1)
	}
	if m.batch == nil {
		return
	}
	stats.BadEvents.Add(int64(m.batch.Bad))
	stats.UnknownEvents.Add(int64(m.batch.Unknown))
	s.sink.Apply(m.batch)
}

// hold keeps a copy of a message. One that was applied is lost only if a sign of a restart still comes; where there are too
// many of these they are let go of without a word.
func (s *source) hold(m *message, applied bool) {
	stats := s.feed.stats
	size := len(m.payload) + heldBytes
	if len(s.held) == maxHeld || s.bytes+len(m.payload) > maxHeldBytes || s.feed.held+size > maxHeldOfAll {
		if !applied {
			stats.Dropped.Add(int64(len(s.held)) + 1)
			if s.feed.may(aboutOverflow) {
				s.feed.logger.Warn("too many KV events wait for a replay and are dropped", "rank", s.rank, "messages", len(s.held)+1)
			}
		}
		s.carryOut(s.cursor.Overflowed(), nil)
		return
	}
	s.held = append(s.held, held{m.Message, bytes.Clone(m.payload)})
	s.bytes += len(m.payload)
	s.feed.held += size
	stats.Held.Add(1)
	stats.HeldBytes.Add(int64(len(m.payload)))
}

// drop forgets the held messages.
func (s *source) drop() {
	s.feed.stats.Held.Add(-int64(len(s.held)))
	s.feed.stats.HeldBytes.Add(-int64(s.bytes))
	s.feed.held -= s.bytes + len(s.held)*heldBytes
	s.held, s.bytes = nil, 0
}

// release passes the held messages to the cursor again.
func (s *source) release() {
	waiting := s.held
	s.drop()
	var d wire.Decoder // the feed's is in use: it holds the message that this step is about
	for _, h := range waiting {
		m, _ := read(&d, h.Seq, h.payload) // an error was counted when it came
		s.carryOut(s.cursor.Live(time.Now(), m.Message), &m)
	}
}

// unreachable reports whether it is no use to wait for the source's connection any longer.
func (s *source) unreachable(now time.Time) bool {
	if s.link != nil && s.link.up {
		return false
	}
	return s.link != nil && s.link.failures >= failedDials || !now.Before(s.feed.begun.Add(patience))
}

// replayFrom says where the source's replay socket is; empty for none.
func (s *source) replayFrom(address string) {
	if s.replayAt == address {
		return
	}
	s.replayAt = address
	s.do(s.cursor.CanReplay(address != "" || s.feed.options.Snapshots != nil), nil)
}
