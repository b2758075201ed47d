package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// replay is one attempt at a replay, on a connection of its own, so that nothing of an earlier attempt can come in between.
type replay struct {
	source  *source
	address string
	from    uint64
	whole   bool
	stop    context.CancelFunc
}

var (
	errNoReplay   = errors.New("there is no replay socket")
	errSuperseded = errors.New("the replay is no longer wanted")
)

// startReplay begins an attempt, in place of one that runs.
func (s *source) startReplay(from uint64, whole bool) {
	s.stopReplay()
	ctx, stop := context.WithCancel(s.feed.ctx)
	r := &replay{source: s, address: s.replayAt, from: from, whole: whole, stop: stop}
	s.replay = r
	s.feed.stats.Replays.Add(1)
	s.feed.work.Go(func() { r.run(ctx) })
}

// stopReplay drops an attempt; what it still brings is void.
func (s *source) stopReplay() {
	if s.replay != nil {
		s.replay.stop()
		s.replay = nil
	}
}

func (r *replay) run(ctx context.Context) {
	defer r.stop()
	if r.whole && r.source.feed.options.Snapshots != nil && r.snapshot(ctx) {
		return
	}
	err := r.read(ctx)
	f, s := r.source.feed, r.source
	if !f.enter() {
		return
	}
	defer f.mu.Unlock()
	if s.replay != r {
		return
	}
	s.replay = nil
	if err == nil {
		s.do(s.cursor.ReplayEnded(time.Now()), nil)
		return
	}
	f.stats.ReplayFailures.Add(1)
	if f.may(aboutReplay) {
		f.logger.Warn("past KV events cannot be read", "rank", s.rank, "address", r.address, "from", r.from, "error", err)
	}
	s.do(s.cursor.ReplayFailed(time.Now()), nil)
}

// read asks the replay socket and reads the replies up to the mark of their end. The socket is a DEALER: to a REQ only the
// first reply would come.
func (r *replay) read(ctx context.Context) error {
	if r.address == "" {
		return errNoReplay
	}
	o := r.source.feed.zmtpOptions()
	o.HandshakeTimeout = replayIdle
	c, err := zmtp.Dial(ctx, r.address, zmtp.DEALER, o)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing was written that could be lost
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, r.from)); err != nil {
		return err
	}
	var d wire.Decoder
	for progress := time.Now(); ; {
		// Replies that bring nothing new do not move the deadline.
		if err := c.SetReadDeadline(progress.Add(replayIdle)); err != nil {
			return err
		}
		frames, err := c.Receive()
		if err != nil {
			return err
		}
		if time.Since(progress) > replayIdle {
			return fmt.Errorf("nothing new for %v", replayIdle)
		}
		seq, payload, err := wire.ParseReply(frames)
		if err != nil {
			return err
		}
		if seq == wire.ReplayEnd {
			return nil
		}
		moved, err := r.reply(&d, seq, payload)
		if err != nil {
			return err
		}
		if moved {
			progress = time.Now()
		}
	}
}

// reply takes one reply in; moved says that it brought something new.
func (r *replay) reply(d *wire.Decoder, seq uint64, payload []byte) (moved bool, err error) {
	f, s := r.source.feed, r.source
	f.stats.Messages.Add(1)
	f.stats.Bytes.Add(int64(len(payload)))
	m, readErr := read(d, seq, payload)
	m.replayed = true
	if !f.enter() {
		return false, errSuperseded
	}
	defer f.mu.Unlock()
	if s.replay != r {
		return false, errSuperseded
	}
	if readErr != nil {
		f.bad(s, faultOf(readErr), readErr)
	}
	if b := m.batch; b != nil && b.HasRank && b.Rank != s.rank && !(f.find(b.Rank) == nil && s.rename(b.Rank)) {
		return false, nil // of another rank on the same socket
	}
	step := s.cursor.Replayed(time.Now(), m.Message)
	s.do(step, &m)
	if s.replay != r {
		return false, errSuperseded
	}
	return step.Verdict == cursor.Apply, nil
}

// snapshot takes a snapshot in; false: there is none.
func (r *replay) snapshot(ctx context.Context) bool {
	f, s := r.source.feed, r.source
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	batches, next, err := f.options.Snapshots.Snapshot(ctx, f.endpoint, s.rank)
	messages := make([]message, len(batches))
	size := 0
	for i := range batches {
		size += len(batches[i])
	}
	if err == nil && size > maxSnapshot {
		err = fmt.Errorf("a snapshot of %d bytes, at most %d are taken", size, maxSnapshot)
	}
	for i := range batches {
		if err == nil {
			messages[i], err = read(new(wire.Decoder), 0, batches[i])
		}
	}
	if !f.enter() {
		return true
	}
	defer f.mu.Unlock()
	if s.replay != r {
		return true
	}
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) && f.may(aboutReplay) {
			f.logger.Warn("a snapshot of an engine's cache cannot be read", "rank", s.rank, "error", err)
		}
		return false
	}
	f.stats.Snapshots.Add(1)
	step := s.cursor.Snapshotted(time.Now(), next)
	held := step.Held
	step.Held = cursor.HeldStay
	s.carryOut(step, nil)
	for i := range messages {
		s.apply(&messages[i])
	}
	s.do(cursor.Step{Held: held}, nil)
	return true
}
