package kvevents

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// Acceptor is where engines connect that publish by connecting. Which endpoint a connection belongs to is told by its
// remote address, where one endpoint only has it, and else by the topic, kv@ADDRESS:PORT@MODEL.
type Acceptor struct {
	socket *zmtp.Acceptor
	logger *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed

	mu    sync.Mutex
	feeds map[*Feed]netip.AddrPort
}

// Listen opens an Acceptor on host:port.
func Listen(address string, logger *slog.Logger) (*Acceptor, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	socket, err := zmtp.ListenSubscriber(address, zmtp.AcceptorOptions{Options: zmtp.Options{MaxFrameBytes: maxMessage}})
	if err != nil {
		return nil, err
	}
	a := &Acceptor{socket: socket, logger: logger, done: make(chan struct{}), feeds: make(map[*Feed]netip.AddrPort)}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go func() {
		defer close(a.done)
		a.err = socket.Run(ctx, func(remote net.Addr) zmtp.Handler { return &guest{acceptor: a, remote: remote} })
	}()
	return a, nil
}

// Addr is where it listens.
func (a *Acceptor) Addr() net.Addr { return a.socket.Addr() }

// Close ends all connections and returns once their goroutines are gone.
func (a *Acceptor) Close() error {
	a.cancel()
	<-a.done
	if errors.Is(a.err, context.Canceled) {
		return nil
	}
	return a.err
}

func (a *Acceptor) add(f *Feed) {
	address, err := netip.ParseAddrPort(f.endpoint.Address)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds[f] = address
}

func (a *Acceptor) remove(f *Feed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.feeds, f)
}

// feedOf is the feed that a message belongs to, nil for none.
func (a *Acceptor) feedOf(remote net.Addr, topic []byte) *Feed {
	a.mu.Lock()
	defer a.mu.Unlock()
	var byIP *Feed
	several := false
	if ap, err := netip.ParseAddrPort(remote.String()); err == nil {
		for f, address := range a.feeds {
			if address.Addr().Unmap() == ap.Addr().Unmap() {
				several = several || byIP != nil
				byIP = f
			}
		}
	}
	if byIP != nil && !several {
		return byIP
	}
	named, ok := addressOf(string(topic))
	if !ok {
		return nil
	}
	for f, address := range a.feeds {
		if address == named {
			return f
		}
	}
	return nil
}

// addressOf is the address in a topic kv@ADDRESS:PORT@MODEL.
func addressOf(topic string) (netip.AddrPort, bool) {
	rest, ok := strings.CutPrefix(topic, "kv@")
	if !ok {
		return netip.AddrPort{}, false
	}
	address, _, _ := strings.Cut(rest, "@")
	ap, err := netip.ParseAddrPort(address)
	return ap, err == nil
}

// guest is a publisher that connected. It becomes a line once it is known whose.
type guest struct {
	acceptor *Acceptor
	remote   net.Addr
	lines    map[*Feed]*line
}

// Connected implements zmtp.Handler.
func (g *guest) Connected(remote net.Addr) { g.remote = remote }

// Message implements zmtp.Handler.
func (g *guest) Message(frames [][]byte) {
	topic, _, _, err := wire.ParseFrames(frames)
	if err != nil {
		return
	}
	f := g.acceptor.feedOf(g.remote, topic)
	if f == nil {
		g.acceptor.logger.Debug("KV events of no endpoint", "remote", g.remote.String(), "topic", string(topic))
		return
	}
	l := g.lines[f]
	if l == nil {
		if g.lines == nil {
			g.lines = make(map[*Feed]*line)
		}
		l = newLine(f, socket{rank: f.endpoint.Rank, publisher: g.remote.String(), replay: f.boundReplay()})
		g.lines[f] = l
		l.Connected(g.remote)
	}
	l.Message(frames)
}

// Disconnected implements zmtp.Handler.
func (g *guest) Disconnected(err error) {
	for _, l := range g.lines {
		l.Disconnected(err)
	}
}

// boundReplay is the replay socket of an engine that connects to publish; it listens all the same.
func (f *Feed) boundReplay() string {
	host, _, err := net.SplitHostPort(f.endpoint.Address)
	if err != nil || f.config.ReplayPort == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(f.config.ReplayPort))
}
