package kvevents

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/scheduling"
)

// dialer opens a connection for a socket; zmtp.Dial is one.
type dialer func(ctx context.Context, address string, socket zmtp.Socket, o zmtp.Options) (*zmtp.Conn, error)

// Feed follows one endpoint.
type Feed struct {
	endpoint *scheduling.Endpoint
	config   Config
	options  Options
	logger   *slog.Logger
	stats    *Stats
	open     func(rank int) Sink

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex // guards what follows, and everything of the sources
	sources map[int]*source
	waiting map[string]bool // sockets that have not told anything yet
	found   bool            // where to connect is known
	ready   chan struct{}
	isReady bool
	said    map[string]time.Time // by kind of trouble
}

// Follow begins to follow an endpoint. open is called once for each data-parallel rank when it is first heard of or
// configured, and gives the sink for what the rank says; it must not call the feed.
func Follow(e *scheduling.Endpoint, c Config, o Options, open func(rank int) Sink) *Feed {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stats == nil {
		o.Stats = &Stats{}
	}
	if o.dial == nil {
		o.dial = zmtp.Dial
	}
	f := &Feed{
		endpoint: e, config: merge(c, e.KVEvents), options: o, logger: o.Logger.With("endpoint", e.Address), stats: o.Stats,
		open: open, sources: make(map[int]*source), waiting: make(map[string]bool), ready: make(chan struct{}),
		said: make(map[string]time.Time),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	switch {
	case e.KVEvents.Port < 0: // it publishes nothing
		f.locate(nil)
	case f.config.Bind:
		f.locate(nil)
		if o.Acceptor != nil {
			o.Acceptor.add(f)
		} else {
			f.complain("bind", "no address is configured for engines to connect to")
		}
	default:
		f.work.Go(f.run)
	}
	return f
}

// merge is the configuration of an endpoint that says some of it itself.
func merge(c Config, e scheduling.KVEvents) Config {
	if e.Port > 0 {
		c.Port = e.Port
	}
	switch {
	case e.ReplayPort < 0:
		c.ReplayPort = 0
	case e.ReplayPort > 0:
		c.ReplayPort = e.ReplayPort
	}
	if e.Ranks > 0 {
		c.Ranks = e.Ranks
	}
	if e.Topic != "" {
		c.Topic = e.Topic
	}
	c.Bind = e.Bind
	c.Discover = c.Discover && !e.NoDiscovery
	return c
}

// run finds the endpoint's sockets and follows them, and looks again when none can be reached for long.
func (f *Feed) run() {
	for wait := firstRetry; f.ctx.Err() == nil; wait = min(2*wait, lastRetry) {
		sockets, asked := f.discover()
		if len(sockets) == 0 {
			f.locate(nil) // nothing to wait for
			f.sleep(wait)
			continue
		}
		f.follow(sockets, asked)
		wait = firstRetry
	}
}

func (f *Feed) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.ctx.Done():
	}
}

// follow keeps connections to sockets until the feed ends or the endpoint turns out to publish elsewhere.
func (f *Feed) follow(sockets []socket, asked bool) {
	f.locate(sockets)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	lines := make([]*line, len(sockets))
	for i, s := range sockets {
		l := newLine(f, s)
		lines[i] = l
		group.Go(func() {
			sub := &zmtp.Subscriber{Address: s.publisher, Options: zmtp.Options{MaxFrameBytes: maxMessage}}
			if s.topic != "" {
				sub.Topics = [][]byte{[]byte(s.topic)}
			}
			if err := sub.Run(ctx, l); err != nil && ctx.Err() == nil {
				f.complain("address", "the endpoint's KV events cannot be followed", "error", err)
				l.Disconnected(err)
			}
		})
	}
	again := lookAgain
	if !asked {
		again = lookSoon // the engine has not spoken yet: it may be starting
	}
	for f.ctx.Err() == nil {
		f.sleep(again)
		if anyUp(lines) || !f.config.Discover || f.ctx.Err() != nil {
			continue
		}
		next, answered := f.discover()
		if answered && (!asked || !equalSockets(next, sockets)) {
			f.logger.Info("the endpoint publishes its KV events elsewhere")
			return
		}
	}
}

func equalSockets(a, b []socket) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func anyUp(lines []*line) bool {
	for _, l := range lines {
		if l.isUp() {
			return true
		}
	}
	return false
}

// locate notes the sockets that readiness waits for.
func (f *Feed) locate(sockets []socket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found {
		return
	}
	f.found = true
	for _, s := range sockets {
		f.waiting[s.publisher] = true
		f.sourceOf(s.rank, s.replay)
	}
	f.checkReady()
}

// settle says that there is nothing to wait for at a socket any more.
func (f *Feed) settle(publisher string) {
	delete(f.waiting, publisher)
	f.checkReady()
}

func (f *Feed) checkReady() {
	if f.found && !f.isReady && len(f.waiting) == 0 {
		f.isReady = true
		close(f.ready)
	}
}

// Ready is closed once the past of every rank is known, or it is clear that it will not be soon.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Restarted takes in a sign from elsewhere that the engine was started anew: everything is forgotten, and read again where
// the engine has a replay socket.
func (f *Feed) Restarted() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		s.do(s.cursor.Restarted(time.Now()), nil)
	}
}

// Close ends the feed's connections and goroutines, and returns once they are gone. The sinks hear nothing afterwards.
func (f *Feed) Close() error {
	if f.options.Acceptor != nil {
		f.options.Acceptor.remove(f)
	}
	f.cancel()
	f.work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		s.closed = true
		s.schedule()
	}
	return nil
}

// complain says something in the log, the same kind of thing once in a while only.
func (f *Feed) complain(kind, message string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.complainLocked(kind, message, args...)
}

func (f *Feed) complainLocked(kind, message string, args ...any) {
	if at, ok := f.said[kind]; ok && time.Since(at) < quiet {
		return
	}
	f.said[kind] = time.Now()
	f.logger.Warn(message, args...)
}

var errClosed = errors.New("closed")
