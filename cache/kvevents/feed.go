package kvevents

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/scheduling"
)

// Feed follows one endpoint instance.
type Feed struct {
	endpoint *scheduling.Endpoint
	host     string // the endpoint's own
	topic    []byte // prefix of the topics to read
	config   Config
	options  Options
	logger   *slog.Logger
	stats    *Stats
	open     func(rank int) Sink
	begun    time.Time
	underWay *zmtp.Budget

	ctx   context.Context
	end   context.CancelFunc
	work  sync.WaitGroup
	wake  chan struct{} // something is due earlier than run knows
	ready chan struct{} // closed once, see readied

	// restarted is a sign of a restart that nobody has taken in yet.
	restarted atomic.Bool

	mu      sync.Mutex // guards what follows, the sources and the links
	closed  bool
	readied bool
	alarm   time.Time // when run wakes up by itself
	asking
	sources []*source
	held    int     // bytes that the sources hold
	links   []*link // dialled ones
	// visitors are the connections that the engine made, and guests is how many there were ever.
	visitors []*link
	guests   int
	decoder  wire.Decoder
	said     [subjects]time.Time
}

// Follow begins to follow an endpoint; what its KVEvents say goes before what the engine says of itself, and that before c.
// open is called once for each data-parallel rank when it is first configured or heard of, and gives the sink for what the
// rank says.
func Follow(e *scheduling.Endpoint, c Config, o Options, open func(rank int) Sink) *Feed {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stats == nil {
		o.Stats = &Stats{}
	}
	f := &Feed{
		endpoint: e, config: c, options: o, logger: o.Logger.With("endpoint", e.Address), stats: o.Stats, open: open,
		topic: []byte(cmp.Or(e.KVEvents.Topic, c.Topic)), begun: time.Now(), wake: make(chan struct{}, 1), ready: make(chan struct{}),
		underWay: zmtp.NewBudget(underWay * cmp.Or(c.MaxMessageBytes, DefaultMaxMessageBytes)),
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	var err error
	if f.host, _, err = net.SplitHostPort(e.Address); err != nil || e.KVEvents.Port < 0 {
		f.readied = true
		close(f.ready)
		if err != nil {
			f.logger.Error("the endpoint's KV events cannot be followed", "error", err)
		}
		return f
	}
	if f.guestsMay() {
		o.Acceptor.add(f)
	} else if e.KVEvents.Bind {
		f.logger.Error("the endpoint's engine is to connect by itself, and no address is configured for that")
	}
	f.work.Go(f.run)
	return f
}

// guestsMay reports whether the engine may connect by itself.
func (f *Feed) guestsMay() bool {
	return f.options.Acceptor != nil && (f.config.Bind || f.endpoint.KVEvents.Bind)
}

// Ready is closed once every known rank was replayed or has given that up, for now or for good; that takes 10 s at most.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Restarted takes a sign from elsewhere (the engine's metrics) that its process was started anew: what is known is
// forgotten, and replayed from the beginning where there is a replay socket. Whatever the engine says after the call is
// taken as the new process's. Where its publishers are out of reach it is asked at once where they are now.
//
// It is not for an engine that lost its cache and runs on, such as one that sleeps: a replay would bring back what is gone.
func (f *Feed) Restarted() {
	f.restarted.Store(true)
	f.rouse()
}

// Close ends the feed's connections and goroutines and returns once they are gone. The sinks hear nothing afterwards.
func (f *Feed) Close() error {
	f.mu.Lock()
	f.closed = true
	for _, s := range f.sources {
		s.drop()
	}
	f.mu.Unlock()
	if f.guestsMay() {
		f.options.Acceptor.remove(f)
	}
	f.end()
	f.work.Wait()
	return nil
}

// run does what is due by time.
func (f *Feed) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		alarm, ok := f.tick()
		if !ok {
			return
		}
		timer.Reset(time.Until(alarm))
		select {
		case <-timer.C:
		case <-f.wake:
		case <-f.ctx.Done():
			return
		}
	}
}

// tick does what is due, and says when the next thing is; it is not ok once the feed ended.
func (f *Feed) tick() (alarm time.Time, ok bool) {
	if !f.enter() {
		return time.Time{}, false
	}
	defer f.mu.Unlock()
	now := time.Now()
	alarm = now.Add(time.Hour)
	sooner := func(at time.Time) {
		if !at.IsZero() && at.Before(alarm) {
			alarm = at
		}
	}
	for _, s := range f.sources {
		if next := s.cursor.Next(); !next.IsZero() && !next.After(now) {
			s.do(s.cursor.Tick(now), nil)
		}
		sooner(s.cursor.Next())
	}
	if at := f.locateAt(now); !at.IsZero() && !at.After(now) {
		f.locating = true
		f.work.Go(f.locate)
	} else {
		sooner(at)
	}
	sooner(f.checkReady(now))
	f.alarm = alarm
	return alarm, true
}

// rouse makes run look again at what is due.
func (f *Feed) rouse() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// enter takes the lock and takes in a sign of a restart that came before; it reports false, and does not hold the lock,
// where the feed is closed.
func (f *Feed) enter() bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	if f.restarted.Load() && f.restarted.Swap(false) {
		f.hurry = true
		for _, s := range f.sources {
			s.do(s.cursor.Restarted(time.Now()), nil)
		}
	}
	return true
}

// checkReady closes Ready as soon as there is nothing to wait for any more, and returns when to look again otherwise.
func (f *Feed) checkReady(now time.Time) (again time.Time) {
	if f.readied {
		return time.Time{}
	}
	deadline := f.begun.Add(readyAfter)
	waiting := !f.located
	for _, s := range f.sources {
		waiting = waiting || s.configured && !s.cursor.Settled() && !s.unreachable(now)
	}
	if waiting && now.Before(deadline) {
		if at := f.begun.Add(patience); at.After(now) {
			return at
		}
		return deadline
	}
	f.readied = true
	close(f.ready)
	return time.Time{}
}

// find is the source of a rank, nil where there is none.
func (f *Feed) find(rank int) *source {
	for _, s := range f.sources {
		if s.rank == rank {
			return s
		}
	}
	return nil
}

// add opens the source of a rank; nil beyond the bound.
func (f *Feed) add(rank int) *source {
	if len(f.sources) == maxRanks {
		return nil
	}
	s := &source{feed: f, rank: rank, place: -1, sink: f.open(rank)}
	s.cursor = cursor.New(cursor.Config{CanReplay: f.options.Snapshots != nil, Jitter: jitter}, time.Now())
	f.sources = append(f.sources, s)
	return s
}

// zmtpOptions bound a connection to an engine.
func (f *Feed) zmtpOptions() zmtp.Options {
	return zmtp.Options{
		MaxFrameBytes: cmp.Or(f.config.MaxMessageBytes, DefaultMaxMessageBytes), Budget: f.underWay, HandshakeTimeout: dialTimeout, DialContext: f.options.DialContext,
	}
}

// SourceInfo is how things stand with one source.
type SourceInfo struct {
	Rank      int
	State     cursor.State
	Reason    cursor.Reason // of the state
	Publisher string        // host:port, of the engine's side; empty where none is connected or dialled
	Replay    string        // host:port; empty for none
	Last      uint64        // sequence number of the last message applied, where Any
	Any       bool
}

// Sources tells how things stand with every rank, in the order in which they were heard of.
func (f *Feed) Sources() []SourceInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]SourceInfo, len(f.sources))
	for i, s := range f.sources {
		list[i] = SourceInfo{Rank: s.rank, State: s.cursor.State(), Reason: s.cursor.Reason(), Replay: s.replayAt}
		list[i].Last, list[i].Any = s.cursor.Last()
		if s.link != nil {
			list[i].Publisher = s.link.address
		}
	}
	return list
}

// subject is a kind of thing to say in the log.
type subject uint8

const (
	aboutConnection subject = iota
	aboutReplay
	aboutForgetting
	aboutMessages
	aboutOverflow
	aboutRanks
	aboutPlaces
	subjects
)

// may reports whether a kind of thing may be said in the log again.
func (f *Feed) may(about subject) bool {
	now := time.Now()
	if at := f.said[about]; !at.IsZero() && now.Sub(at) < quiet {
		return false
	}
	f.said[about] = now
	return true
}

// jitter spreads a delay by a quarter either way.
func jitter(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}
