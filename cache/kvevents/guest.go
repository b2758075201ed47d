package kvevents

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// guest is a connection that an engine made, or something between engines and this process that passes on what several
// publish. It implements zmtp.Handler.
type guest struct {
	acceptor *Acceptor
	remote   net.Addr
	ip       netip.Addr
	useful   atomic.Bool // it brought messages of an endpoint that is still there

	mu    sync.Mutex // taken before the acceptor's and the feeds'
	gone  bool
	seen  uint64 // acceptor.changed when stays were made
	stays map[*Feed]stay
	heard bool   // it brought a message, under
	topic []byte // this topic, as far as maxTopicBytes go,
	last  *Feed  // of this feed, nil for nobody's; before that, of the feed that it is expected to bring
}

// stay is what makes a guest's connection a feed's.
type stay struct {
	link *link
	by   evidence
}

// maxTopicBytes is how much of a topic is looked at: kv@ with an address, and a model's name.
const maxTopicBytes = 1024

func (a *Acceptor) handler(remote net.Addr) zmtp.Handler {
	return &guest{acceptor: a, remote: remote, ip: ipOf(remote), stays: make(map[*Feed]stay)}
}

// Connected implements zmtp.Handler.
func (g *guest) Connected(net.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.acceptor
	a.mu.Lock()
	a.at(g.ip).guests[g] = struct{}{}
	a.mu.Unlock()
	g.look()
}

// look finds out whose the connection is, at its beginning and whenever feeds came or went.
func (g *guest) look() {
	g.seen = g.acceptor.changed.Load()
	for f, s := range g.stays {
		if !g.acceptor.holds(f, g.ip, s.by) {
			g.leave(f)
		}
	}
	g.last = g.enter(g.topic)
	g.useful.Store(g.heard && len(g.stays) > 0)
}

// enter tells the feed whose messages come under a topic that this is its connection, once; nil where they are nobody's.
func (g *guest) enter(topic []byte) *Feed {
	f, by := g.acceptor.whose(g.ip, topic)
	if f == nil {
		return nil
	}
	s, known := g.stays[f]
	if !known {
		if s.link = f.accept(g.remote); s.link == nil {
			return nil // closed
		}
		s.link.Connected(g.remote)
	}
	s.by = max(s.by, by)
	g.stays[f] = s
	return f
}

// leave tells a feed that this is no longer its connection.
func (g *guest) leave(f *Feed) {
	link := g.stays[f].link
	delete(g.stays, f)
	link.Disconnected(nil)
}

// Message implements zmtp.Handler.
func (g *guest) Message(frames [][]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.acceptor.changed.Load() != g.seen {
		g.look()
	}
	topic, _, _, err := wire.ParseFrames(frames)
	if err == nil { // else it is of the one who spoke last
		g.attribute(topic[:min(len(topic), maxTopicBytes)])
	}
	if g.last == nil {
		if err != nil && len(frames) > 0 {
			topic = frames[0]
		}
		g.acceptor.nobodys(g.remote, topic)
		return
	}
	g.stays[g.last].link.Message(frames)
}

// attribute finds out whose the messages under a topic are. Only the last topic is remembered: whoever can connect may
// send any number of them.
func (g *guest) attribute(topic []byte) {
	if g.heard && bytes.Equal(topic, g.topic) {
		return
	}
	expected := g.last
	g.last = g.enter(topic)
	if !g.heard && expected != nil && expected != g.last {
		g.leave(expected) // it shares an address with whoever this is
	}
	g.heard, g.topic = true, append(g.topic[:0], topic...)
	g.useful.Store(len(g.stays) > 0)
}

// Disconnected implements zmtp.Handler.
func (g *guest) Disconnected(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	a := g.acceptor
	a.mu.Lock()
	delete(a.at(g.ip).guests, g)
	a.tidy(g.ip)
	a.mu.Unlock()
	for _, s := range g.stays {
		s.link.Disconnected(err)
	}
}
