package kvevents

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// source is one rank of an endpoint: its cursor, its sink, and what waits for a replay. The feed's lock guards it.
type source struct {
	feed   *Feed
	rank   int
	replay string // address of its replay socket; empty for none
	cursor *cursor.Cursor
	sink   Sink
	state  cursor.State
	closed bool

	buffer      []held
	bytes       int
	attempt     int                // counts replays; a message of an earlier one is stale
	stopReplay  context.CancelFunc // nil: none is under way
	onSettled   []string // sockets that wait for this source's past
	decoder     wire.Decoder
	timer       *time.Timer
}

// held is a message that waits for a replay.
type held struct {
	message cursor.Message
	payload []byte
}

// sourceOf is the source of a rank; it is made where there is none, nil beyond any bound.
func (f *Feed) sourceOf(rank int, replay string) *source {
	if s := f.sources[rank]; s != nil {
		if replay != "" && s.replay != replay {
			s.replay = replay
			s.do(s.cursor.CanReplay(true), nil)
		}
		return s
	}
	if len(f.sources) == maxRanks {
		return nil
	}
	s := &source{feed: f, rank: rank, replay: replay, sink: f.open(rank)}
	s.cursor = cursor.New(cursor.Config{CanReplay: replay != "", Jitter: jitter}, time.Now())
	f.sources[rank] = s
	return s
}

// do carries a step out. b is the message that it is about, nil for none.
func (s *source) do(step cursor.Step, b *incoming) {
	if s.closed {
		return
	}
	if step.Forget != 0 {
		s.feed.stats.forgets[step.Forget].Add(1)
		s.feed.logger.Info("what was known of an engine's cache is forgotten", "rank", s.rank, "cause", step.Forget.String())
		s.sink.Forget(step.Forget)
	}
	if step.Held == cursor.HeldDrop {
		s.drop()
	}
	if step.Gap {
		s.feed.stats.Gaps.Add(1)
	}
	switch step.Verdict {
	case cursor.Apply:
		s.sink.Apply(b.batch)
		if step.Keep {
			s.hold(b)
		}
	case cursor.Ignore:
		s.feed.stats.Duplicates.Add(1)
	case cursor.Hold:
		s.hold(b)
	}
	switch step.Ask {
	case cursor.AskReplay:
		s.startReplay(step.From)
	case cursor.AskStop:
		s.endReplay()
	}
	if step.Held == cursor.HeldRelease {
		s.release()
	}
	s.tellState()
}

// tellState passes on what the step has changed.
func (s *source) tellState() {
	if now := s.cursor.State(); now != s.state {
		s.state = now
		s.sink.State(now)
	}
	if s.cursor.Settled() {
		for _, publisher := range s.onSettled {
			s.feed.settle(publisher)
		}
		s.onSettled = nil
	}
	s.schedule()
}

// schedule wakes the source when its cursor has something to do.
func (s *source) schedule() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	next := s.cursor.Next()
	if next.IsZero() || s.closed {
		return
	}
	s.timer = time.AfterFunc(max(0, time.Until(next)), func() {
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		if !s.closed {
			s.do(s.cursor.Tick(time.Now()), nil)
		}
	})
}

// incoming is a message with what was read of it.
type incoming struct {
	message cursor.Message
	payload []byte
	batch   *wire.Batch
}

// hold keeps a copy of a message until a replay is over.
func (s *source) hold(b *incoming) {
	if len(s.buffer) >= maxBuffered || s.bytes+len(b.payload) > maxBufferedBytes {
		s.feed.stats.Dropped.Add(int64(len(s.buffer)) + 1)
		s.do(s.cursor.Overflowed(), nil)
		return
	}
	s.buffer = append(s.buffer, held{b.message, append([]byte(nil), b.payload...)})
	s.bytes += len(b.payload)
}

func (s *source) drop() { s.buffer, s.bytes = nil, 0 }

// release passes the held messages to the cursor again.
func (s *source) release() {
	waiting := s.buffer
	s.drop()
	for _, h := range waiting {
		batch, err := s.decoder.Decode(h.payload)
		if err != nil {
			batch = &wire.Batch{}
		}
		s.do(s.cursor.Live(time.Now(), h.message), &incoming{h.message, h.payload, batch})
	}
}

// jitter spreads a delay by a quarter either way.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + rand.Float64()/2))
}

// print is what messages are told apart by.
func print(payload []byte) uint64 { return xxh3.Hash(payload) }
