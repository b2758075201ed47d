package kvevents

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// startReplay asks the replay socket for the messages from a number on, in the background. A replay that is under way
// ends.
func (s *source) startReplay(from uint64) {
	s.endReplay()
	s.feed.stats.Replays.Add(1)
	s.attempt++
	attempt := s.attempt
	ctx, cancel := context.WithCancel(s.feed.ctx)
	s.stopReplay = cancel
	s.feed.work.Go(func() {
		defer cancel()
		err := s.readReplay(ctx, from, attempt)
		f := s.feed
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.attempt != attempt || s.closed || f.ctx.Err() != nil {
			return
		}
		if err == nil {
			s.do(s.cursor.ReplayEnded(time.Now()), nil)
			return
		}
		f.stats.ReplayFailures.Add(1)
		f.complainLocked("replay", "the past of the endpoint's KV events cannot be read", "address", s.replay, "error", err)
		s.do(s.cursor.ReplayFailed(time.Now()), nil)
	})
}

// endReplay makes what a replay that is under way still brings stale.
func (s *source) endReplay() {
	s.attempt++
	if s.stopReplay != nil {
		s.stopReplay()
		s.stopReplay = nil
	}
}

// readReplay reads one replay to its end.
func (s *source) readReplay(ctx context.Context, from uint64, attempt int) error {
	c, err := s.feed.options.dial(ctx, s.replay, zmtp.DEALER, zmtp.Options{MaxFrameBytes: maxMessage})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // it was read to its end or has failed
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var start [8]byte
	binary.BigEndian.PutUint64(start[:], from)
	if err := c.Send(nil, start[:]); err != nil {
		return err
	}
	var d wire.Decoder
	for {
		if err := c.SetReadDeadline(time.Now().Add(replayIdle)); err != nil {
			return err
		}
		frames, err := c.Receive()
		if err != nil {
			return err
		}
		seq, payload, err := wire.ParseReply(frames)
		if err != nil {
			s.feed.bad("reply", err)
			return err
		}
		if seq == wire.ReplayEnd {
			return nil
		}
		if !s.replayed(&d, seq, payload, attempt) {
			return errClosed
		}
	}
}

// replayed takes one message of a replay in; it reports false where nobody waits for it any more.
func (s *source) replayed(d *wire.Decoder, seq uint64, payload []byte, attempt int) bool {
	f := s.feed
	f.stats.Messages.Add(1)
	f.stats.Bytes.Add(int64(len(payload)))
	batch, err := d.Decode(payload)
	if err != nil {
		f.bad("payload", err)
		batch = &wire.Batch{}
	}
	f.count(batch)
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.attempt != attempt || s.closed {
		return false
	}
	m := cursor.Message{Seq: seq, Print: print(payload), Clears: batch.Clears(), Unreadable: err != nil}
	s.do(s.cursor.Replayed(time.Now(), m), &incoming{m, payload, batch})
	return s.attempt == attempt
}
