package kvevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// link is the way to one publisher: kept up by this side, or a connection that an engine made. Usually it brings one rank;
// some engines publish all ranks on one socket. It implements zmtp.Handler; the feed's lock guards it.
type link struct {
	feed    *Feed
	address string // host:port of the engine's side
	rank    int    // of messages that do not tell theirs
	placed  int    // the rank whose place it is, where dialled
	guest   int    // which connection of an engine it is, counted from 1; 0: dialled
	stop    context.CancelFunc

	up       bool
	gone     bool      // no longer of interest
	failures int       // dials in a row
	down     time.Time // since when it is not up
}

// dial begins to keep a link to a source's place up.
func (f *Feed) dial(p place, s *source) {
	ctx, stop := context.WithCancel(f.ctx)
	l := &link{feed: f, address: p.publisher, rank: s.rank, placed: p.rank, stop: stop, down: time.Now()}
	f.links = append(f.links, l)
	if s.link == nil || !s.link.up {
		s.link = l
	}
	sub := &zmtp.Subscriber{Address: p.publisher, Topics: [][]byte{f.topic}, Options: f.zmtpOptions()}
	f.work.Go(func() {
		defer stop()
		if err := sub.Run(ctx, l); ctx.Err() == nil {
			l.Disconnected(err)
		}
	})
}

// accept makes a link of a connection that an engine made; nil where the feed is closed.
func (f *Feed) accept(remote net.Addr) *link {
	if !f.enter() {
		return nil
	}
	defer f.mu.Unlock()
	f.guests++
	return &link{feed: f, address: remote.String(), rank: f.endpoint.Rank, guest: f.guests, stop: func() {}}
}

// Connected implements zmtp.Handler.
func (l *link) Connected(net.Addr) {
	f := l.feed
	if !f.enter() {
		return
	}
	defer f.mu.Unlock()
	if l.gone {
		return
	}
	f.stats.Connections.Add(1)
	l.up, l.failures = true, 0
	if l.guest > 0 {
		f.visitors = append(f.visitors, l)
		f.welcome()
		return
	}
	if s := f.find(l.rank); s != nil && (s.link == nil || !s.link.up) {
		s.link = l
	}
	for _, s := range f.sources {
		if s.link == l {
			s.do(s.cursor.Connected(time.Now()), nil)
		}
	}
}

// welcome gives the connection that an engine made last to the only source, before anything was said on it. Where there
// are several only the batches can tell.
func (f *Feed) welcome() {
	if len(f.sources) != 1 || len(f.visitors) == 0 {
		return
	}
	if s := f.sources[0]; s.link == nil || !s.link.up {
		s.link = f.visitors[len(f.visitors)-1]
		s.link.rank = s.rank
		s.do(s.cursor.Connected(time.Now()), nil)
	}
}

// Disconnected implements zmtp.Handler.
func (l *link) Disconnected(err error) {
	f := l.feed
	if !f.enter() {
		return
	}
	defer f.mu.Unlock()
	if l.gone {
		return
	}
	f.stats.ConnectFailures.Add(1)
	if errors.Is(err, zmtp.ErrTooLarge) {
		f.oversized(l.address, err)
	}
	if l.up {
		l.fall()
		return
	}
	if l.failures++; l.failures == failedDials {
		f.rouse() // there is nothing to wait for
	}
	if f.may(aboutConnection) {
		if unfit := (*zmtp.SocketError)(nil); errors.As(err, &unfit) && unfit.Peer == zmtp.ROUTER {
			err = fmt.Errorf("%w: a replay socket; port and replayPort may be the wrong way round", err)
		}
		f.logger.Warn("an engine's KV events cannot be reached", "rank", l.rank, "address", l.address, "error", err)
	}
}

// oversized tells of a message that was not read because it was larger than the bound.
func (f *Feed) oversized(address string, err error) {
	f.stats.TooLarge.Add(1)
	if f.may(aboutMessages) {
		f.logger.Warn("a message with KV events is larger than kvEvents.maxMessageBytes", "address", address, "error", err)
	}
}

// fall notes that the connection is gone.
func (l *link) fall() {
	l.up, l.down = false, time.Now()
	if l.guest > 0 { // one that returns comes on another link
		l.gone = true
		l.feed.visitors = slices.DeleteFunc(l.feed.visitors, func(v *link) bool { return v == l })
	}
	for _, s := range l.feed.sources {
		if s.link != l {
			continue
		}
		if l.guest > 0 {
			s.link = nil
		}
		s.do(s.cursor.Disconnected(time.Now()), nil)
	}
	l.feed.welcome() // it may be back already
	l.feed.rouse()   // the engine may have to be asked where it is now
}

// leave ends a link.
func (l *link) leave() {
	l.stop()
	if l.up {
		l.fall()
	}
	l.gone = true
	for _, s := range l.feed.sources {
		if s.link == l {
			s.link = nil
		}
	}
}

// Message implements zmtp.Handler.
func (l *link) Message(frames [][]byte) {
	f := l.feed
	f.stats.Messages.Add(1)
	topic, seq, payload, err := wire.ParseFrames(frames)
	if !f.enter() {
		return
	}
	defer f.mu.Unlock()
	if l.gone {
		return
	}
	if err != nil {
		f.bad(l.only(), faultOf(err), err)
		return
	}
	f.stats.Bytes.Add(int64(len(payload)))
	if seq == wire.ReplayEnd {
		f.bad(l.only(), FaultSequence, nil)
		return
	}
	if !bytes.HasPrefix(topic, f.topic) {
		return // an engine that connected sends all that it has
	}
	m, err := read(&f.decoder, seq, payload)
	s := l.source(&m)
	if err != nil {
		f.bad(s, faultOf(err), err)
	}
	if s != nil {
		s.heard = l
		s.do(s.cursor.Live(time.Now(), m.Message), &m)
	}
}

// bad counts a message that cannot be read, and tells its source, nil where that is not known.
func (f *Feed) bad(s *source, fault Fault, err error) {
	f.stats.fault(fault)
	if s != nil {
		s.sink.Apply(&wire.Batch{Bad: 1})
	}
	if f.may(aboutMessages) {
		f.logger.Warn("a message with KV events cannot be read", "fault", fault.String(), "error", err)
	}
}

// source is whose a message is, nil where that cannot be told. The batch's own word goes before the socket's.
func (l *link) source(m *message) *source {
	f := l.feed
	if m.batch == nil {
		return l.only()
	}
	rank := l.rank
	if m.batch.HasRank {
		rank = m.batch.Rank
	}
	s := f.find(rank)
	if s == nil {
		if s = l.only(); s == nil || !s.rename(rank) {
			s = f.add(rank)
		}
		if s == nil {
			f.bad(nil, FaultRank, nil)
			return nil
		}
	}
	if s.link == l {
		return s
	}
	if s.link != nil && s.link.up && s.heard == s.link && !l.precedes(s) {
		f.stats.RankConflicts.Add(1)
		if f.may(aboutRanks) {
			f.logger.Warn("two publishers of KV events call themselves the same rank", "rank", rank,
				"address", l.address, "heard", s.link.address)
		}
		if own := f.find(l.rank); own != nil && own.link == l {
			return own
		}
		return nil
	}
	s.link = l
	if !s.configured && s.replayAt == "" {
		s.replayFrom(l.replay(rank))
	}
	s.do(s.cursor.Connected(time.Now()), nil)
	return s
}

// replay is where to ask for the past of a rank that is not configured: where the publisher's own rank is asked, or where the
// configuration has it.
func (l *link) replay(rank int) string {
	f := l.feed
	if own := f.find(l.rank); l.guest == 0 && own != nil {
		return own.replayAt
	}
	kv := f.endpoint.KVEvents
	switch {
	case kv.ReplayPort > 0:
		return f.at("", kv.ReplayPort+rank-f.endpoint.Rank)
	case kv.ReplayPort == 0 && f.config.ReplayPort > 0:
		return f.at("", f.config.ReplayPort+rank)
	}
	return ""
}

// precedes reports whether the link, rather than the one that it is heard on, speaks for a source: a publisher that is
// configured as the rank goes before one that only calls itself so, and of an engine's own connections the newest counts.
func (l *link) precedes(s *source) bool {
	if l.guest > 0 && s.link.guest > 0 {
		return l.guest > s.link.guest
	}
	return l.guest == 0 && l.rank == s.rank
}

// only is the source that a link brings, if it brings one.
func (l *link) only() (only *source) {
	for _, s := range l.feed.sources {
		if s.link == l {
			if only != nil {
				return nil
			}
			only = s
		}
	}
	return only
}

// rename makes the source another rank's, as which the only publisher turns out to call itself; false where it has said
// something before, or is not the only one.
func (s *source) rename(rank int) bool {
	f := s.feed
	if _, any := s.cursor.Last(); any || s.heard != nil || len(f.sources) > 1 || f.endpoint.KVEvents.Ranks > 1 {
		return false
	}
	s.rank = rank
	if s.link != nil {
		s.link.rank = rank
	}
	return true
}
