package kvevents

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// Acceptor is where engines connect that publish by connecting. Whose a connection is tells its remote address, where only
// one endpoint has it, and else the topic, kv@IP:PORT@MODEL. One Acceptor serves all feeds.
type Acceptor struct {
	socket *zmtp.Acceptor
	logger *slog.Logger
	end    context.CancelFunc
	done   chan struct{}
	err    error // once done is closed

	changed atomic.Uint64 // how often feeds came or went

	mu    sync.RWMutex
	feeds map[netip.AddrPort]*Feed // by the endpoint's address
	byIP  map[netip.Addr]*house
	stats *Stats    // of the feed that came last
	said  time.Time // when the log last told of messages of nobody
}

// house is what has one IP address: endpoints, and connections that engines made.
type house struct {
	feeds  map[netip.AddrPort]*Feed
	guests map[*guest]struct{}
}

// at is what has an address; the lock is held.
func (a *Acceptor) at(ip netip.Addr) *house {
	h := a.byIP[ip]
	if h == nil {
		h = &house{feeds: make(map[netip.AddrPort]*Feed), guests: make(map[*guest]struct{})}
		a.byIP[ip] = h
	}
	return h
}

// tidy drops an address that nothing has any more; the lock is held.
func (a *Acceptor) tidy(ip netip.Addr) {
	if h := a.byIP[ip]; h != nil && len(h.feeds)+len(h.guests) == 0 {
		delete(a.byIP, ip)
	}
}

// Listen opens an Acceptor on host:port; an empty host means every address. maxMessageBytes bounds a message, as in Config.
// Acceptor.Close ends it.
func Listen(address string, maxMessageBytes int, logger *slog.Logger) (*Acceptor, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	maxMessageBytes = cmp.Or(maxMessageBytes, DefaultMaxMessageBytes)
	socket, err := zmtp.ListenSubscriber(address, zmtp.AcceptorOptions{
		Options: zmtp.Options{
			MaxFrameBytes: maxMessageBytes, Budget: zmtp.NewBudget(guestsUnderWay * maxMessageBytes), HandshakeTimeout: dialTimeout,
		},
	})
	if err != nil {
		return nil, err
	}
	a := newAcceptor(logger)
	a.socket = socket
	ctx, end := context.WithCancel(context.Background())
	a.end = end
	go func() {
		defer close(a.done)
		a.err = socket.Run(ctx, a.handler)
	}()
	return a, nil
}

func newAcceptor(logger *slog.Logger) *Acceptor {
	return &Acceptor{
		logger: logger, done: make(chan struct{}), feeds: make(map[netip.AddrPort]*Feed), byIP: make(map[netip.Addr]*house),
		stats: &Stats{},
	}
}

// Addr is where it listens.
func (a *Acceptor) Addr() net.Addr { return a.socket.Addr() }

// Counts tells how the connections fared.
func (a *Acceptor) Counts() zmtp.Counts { return a.socket.Counts() }

// Close ends all connections and returns once their goroutines are gone.
func (a *Acceptor) Close() error {
	a.end()
	<-a.done
	if errors.Is(a.err, context.Canceled) {
		return nil
	}
	return a.err
}

// add makes a feed known, to connections that stand as well. Of two for one address the later one counts: it is of a later
// instance.
func (a *Acceptor) add(f *Feed) {
	address, err := addressOf(f.endpoint.Address)
	if err != nil {
		f.logger.Warn("KV events of an engine that connects by itself need an endpoint with an IP address", "error", err)
		return
	}
	a.mu.Lock()
	h := a.at(address.Addr())
	a.feeds[address], h.feeds[address] = f, f
	a.stats = f.stats
	a.changed.Add(1)
	guests := slices.Collect(maps.Keys(h.guests))
	a.mu.Unlock()
	for _, g := range guests {
		g.mu.Lock()
		if !g.gone {
			g.look()
		}
		g.mu.Unlock()
	}
}

func (a *Acceptor) remove(f *Feed) {
	address, err := addressOf(f.endpoint.Address)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || a.feeds[address] != f {
		return
	}
	delete(a.feeds, address)
	delete(a.at(address.Addr()).feeds, address)
	a.tidy(address.Addr())
	a.changed.Add(1)
}

// addressOf is an ip:port in the one form that is compared.
func addressOf(s string) (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(s)
	return netip.AddrPortFrom(address.Addr().Unmap().WithZone(""), address.Port()), err
}

// named is the address in a topic kv@IP:PORT@MODEL.
func named(topic string) (netip.AddrPort, bool) {
	rest, ok := strings.CutPrefix(topic, "kv@")
	if !ok {
		return netip.AddrPort{}, false
	}
	text, _, _ := strings.Cut(rest, "@")
	address, err := addressOf(text)
	return address, err == nil
}

// byRemote is the feed of the only endpoint with a remote address, nil where there is none or several.
func (a *Acceptor) byRemote(ip netip.Addr) *Feed {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if h := a.byIP[ip]; h != nil && len(h.feeds) == 1 {
		for _, f := range h.feeds {
			return f
		}
	}
	return nil
}

func (a *Acceptor) byTopic(topic string) *Feed {
	address, ok := named(topic)
	if !ok {
		return nil
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.feeds[address]
}

// nobodys counts a message that belongs to no endpoint.
func (a *Acceptor) nobodys(remote net.Addr, topic []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Messages.Add(1)
	a.stats.Unattributed.Add(1)
	if now := time.Now(); now.Sub(a.said) >= quiet {
		a.said = now
		a.logger.Warn("KV events of an engine that is no endpoint's; where several endpoints share an address the topic must be kv@IP:PORT@MODEL",
			"remote", remote.String(), "topic", string(topic[:min(len(topic), 128)]))
	}
}

func (a *Acceptor) handler(remote net.Addr) zmtp.Handler {
	g := &guest{acceptor: a, remote: remote, links: make(map[string]*link)}
	if address, err := addressOf(remote.String()); err == nil {
		g.ip = address.Addr()
	}
	return g
}

// guest is a connection that an engine made, or something between engines and this process that passes on what several
// publish. It implements zmtp.Handler.
type guest struct {
	acceptor *Acceptor
	remote   net.Addr
	ip       netip.Addr

	mu    sync.Mutex // taken before the acceptor's and the feeds'
	gone  bool
	seen  uint64           // acceptor.changed when links were made
	whole *link            // of all messages; nil: the topic tells
	links map[string]*link // by topic; nil values: nobody's
}

// maxTopics is the most topics of one connection that are told apart, and maxTopicBytes the longest of them: kv@ with an
// address and a model's name.
const (
	maxTopics     = 4096
	maxTopicBytes = 1024
)

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
	f := g.acceptor.byRemote(g.ip)
	if f == nil {
		g.leave(&g.whole)
	} else if g.whole == nil || g.whole.feed != f {
		g.leave(&g.whole)
		g.whole = g.connect(f)
	}
	for topic, l := range g.links {
		if l == nil || f != nil || g.acceptor.byTopic(topic) != l.feed {
			delete(g.links, topic)
			g.leave(&l) // again where it has several topics, which says nothing new
		}
	}
}

func (g *guest) connect(f *Feed) *link {
	l := f.accept(g.remote)
	if l != nil {
		l.Connected(g.remote)
	}
	return l
}

// leave tells a feed that it is no longer its connection.
func (g *guest) leave(l **link) {
	if *l != nil {
		(*l).Disconnected(nil)
	}
	*l = nil
}

// Message implements zmtp.Handler.
func (g *guest) Message(frames [][]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.acceptor.changed.Load() != g.seen {
		g.look()
	}
	l := g.whole
	if l == nil {
		l = g.byTopic(frames)
	}
	if l == nil {
		var topic []byte
		if len(frames) > 0 {
			topic = frames[0]
		}
		g.acceptor.nobodys(g.remote, topic)
		return
	}
	l.Message(frames)
}

// byTopic is the link of a message's topic, nil where that names no endpoint.
func (g *guest) byTopic(frames [][]byte) *link {
	topic, _, _, err := wire.ParseFrames(frames)
	if err != nil || len(topic) > maxTopicBytes {
		return nil
	}
	l, known := g.links[string(topic)]
	if known || len(g.links) == maxTopics {
		return l
	}
	f := g.acceptor.byTopic(string(topic))
	for _, other := range g.links {
		if other != nil && other.feed == f {
			l = other // an engine may use several topics
		}
	}
	if l == nil && f != nil {
		l = g.connect(f)
	}
	g.links[string(topic)] = l
	return l
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
	if g.whole != nil {
		g.whole.Disconnected(err)
	}
	for _, l := range g.links {
		if l != nil {
			l.Disconnected(err)
		}
	}
}
