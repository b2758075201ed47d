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

	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// Acceptor is where engines connect that publish by connecting. Whose a message is tells its topic, where that is
// kv@IP:PORT@MODEL, and else the connection's remote address, where only one endpoint has it. One Acceptor serves all feeds.
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

// only is the feed of the only endpoint with an address, nil where there is none or several.
func (h *house) only() *Feed {
	if h == nil || len(h.feeds) != 1 {
		return nil
	}
	for _, f := range h.feeds {
		return f
	}
	return nil
}

// inhabited reports whether any endpoint has the address.
func (h *house) inhabited() bool { return h != nil && len(h.feeds) > 0 }

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
	a := newAcceptor(logger)
	if err := a.listen(address, maxGuests, cmp.Or(maxMessageBytes, DefaultMaxMessageBytes)); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Acceptor) listen(address string, guests, maxMessageBytes int) (err error) {
	a.socket, err = zmtp.ListenSubscriber(address, zmtp.AcceptorOptions{
		MaxConnections: guests, Worth: a.worth,
		Options: zmtp.Options{
			MaxFrameBytes: maxMessageBytes, Budget: zmtp.NewBudget(guestsUnderWay * maxMessageBytes), HandshakeTimeout: dialTimeout,
		},
	})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	a.end = end
	go func() {
		defer close(a.done)
		a.err = a.socket.Run(ctx, a.handler)
	}()
	return nil
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
	return netip.AddrPortFrom(bare(address.Addr()), address.Port()), err
}

// ipOf is the IP address of a connection's other side, in that form.
func ipOf(remote net.Addr) netip.Addr {
	if tcp, ok := remote.(*net.TCPAddr); ok {
		return bare(tcp.AddrPort().Addr())
	}
	return netip.Addr{}
}

func bare(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

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

// whose is the feed of the messages under a topic on a connection. A topic that names an address says whose they are, one
// without an IP address of a network (such as kv@0.0.0.0:PORT) by the port alone. Without a topic's word they are those of
// the only endpoint with the connection's address. nil: nobody's. So they are too where the topic names another address
// than the connection has and an endpoint has that: one of the two is wrong. A loopback address tells nothing.
func (a *Acceptor) whose(remote netip.Addr, topic []byte) (f *Feed, by evidence) {
	address, told := named(string(topic[:min(len(topic), maxTopicBytes)]))
	a.mu.RLock()
	defer a.mu.RUnlock()
	h := a.byIP[remote]
	if !told {
		return h.only(), byRemote
	}
	ip := address.Addr()
	if ip.IsUnspecified() || ip.IsLoopback() && !remote.IsLoopback() {
		address = netip.AddrPortFrom(remote, address.Port())
	} else if ip != remote && !remote.IsLoopback() && h.inhabited() {
		return nil, byTopic
	}
	return a.feeds[address], byTopic
}

// evidence is what tells whose a connection is.
type evidence uint8

const (
	byRemote evidence = iota
	byTopic
)

// holds reports whether a connection that was a feed's still is.
func (a *Acceptor) holds(f *Feed, remote netip.Addr, by evidence) bool {
	address, err := addressOf(f.endpoint.Address)
	a.mu.RLock()
	defer a.mu.RUnlock()
	return err == nil && a.feeds[address] == f && (by == byTopic || a.byIP[remote].only() == f)
}

// What makes a connection worth something, see zmtp.AcceptorOptions: whoever can connect may take the places that nobody
// needs, and a connection from an endpoint's address always finds one.
const (
	worthUse     = 1 << iota // it brought messages of an endpoint
	worthAddress             // an endpoint has its address
)

func (a *Acceptor) worth(remote net.Addr, h zmtp.Handler) (worth int) {
	if g, ok := h.(*guest); ok && g.useful.Load() {
		worth = worthUse
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.byIP[ipOf(remote)].inhabited() {
		worth |= worthAddress
	}
	return worth
}

// nobodys counts a message that belongs to no endpoint.
func (a *Acceptor) nobodys(remote net.Addr, topic []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Messages.Add(1)
	a.stats.Unattributed.Add(1)
	if now := time.Now(); now.Sub(a.said) >= quiet {
		a.said = now
		a.logger.Warn("KV events of an engine that is no endpoint's; a topic kv@IP:PORT@MODEL must name the endpoint's address, as it has to where several endpoints share one",
			"remote", remote.String(), "topic", string(topic[:min(len(topic), 128)]))
	}
}
