package metrics

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Options are what a Store is given by the process.
type Options struct {
	// Now is the process's monotonic clock, that of scheduling.Cycle.Now.
	Now func() time.Duration
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer is where the scrapes' metrics go; nil means nowhere.
	Registerer prometheus.Registerer
	// Transport carries the scrapes; nil means a transport of the Store's own.
	Transport http.RoundTripper
	// Fed means that nobody is asked: what engines say comes through Feed, as in a simulation, whose engines have no pages.
	Fed bool
}

// Store holds what the engines of a process's endpoints last said of themselves. There is one per process, so that what
// was read outlives a reload of the configuration; it is filled as long as a plugin of Types is in force, and empty
// otherwise. Reading it takes no lock. All its methods may be called at any time from any goroutine.
type Store struct {
	now       func() time.Duration
	logger    *slog.Logger
	transport http.RoundTripper
	own       *connections   // transport where it is the Store's own
	fed       bool           // by Feed alone
	random    func() float64 // in [0, 1)
	offset    float64

	table atomic.Pointer[[]*record] // by ordinal, with nil holes

	mu      sync.Mutex // guards what follows, and serialises changes of the table
	version uint64     // of the snapshot behind the table
	users   []*poller
	lost    []*func(ordinal int, generation uint64, restarted bool)

	stats stats
}

// NewStore returns an empty store. To be called once per Registerer.
func NewStore(o Options) *Store {
	s := &Store{now: o.Now, logger: o.Logger, transport: o.Transport, fed: o.Fed, random: rand.Float64, offset: rand.Float64()}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.transport == nil {
		s.own = newConnections(s.now)
		s.transport = s.own
	}
	s.table.Store(&[]*record{})
	s.stats.init()
	if o.Registerer != nil {
		o.Registerer.MustRegister(&collector{s})
	}
	return s
}

// Feed takes over what an endpoint instance says, as a scrape would. Of one that the Store does not follow nothing is kept.
func (s *Store) Feed(ordinal int, generation uint64, r Reading) {
	table := *s.table.Load()
	if ordinal < 0 || ordinal >= len(table) || table[ordinal] == nil || table[ordinal].generation != generation {
		return
	}
	for _, cause := range table[ordinal].take(&r) {
		s.announceLoss(table[ordinal], cause)
	}
}

// Reading returns what an endpoint instance last said, however long ago; ok is false where it has said nothing yet.
func (s *Store) Reading(ordinal int, generation uint64) (r Reading, ok bool) {
	if p := s.last(ordinal, generation); p != nil {
		return *p, true
	}
	return r, false
}

// CacheConfig returns an endpoint instance's block size in tokens and its number of KV blocks, as its engine last said
// them; ok is false where it has not. A number of 0 blocks is unknown.
func (s *Store) CacheConfig(ordinal int, generation uint64) (blockSizeTokens, numBlocks int, ok bool) {
	p := s.last(ordinal, generation)
	if p == nil || p.BlockSizeTokens == 0 {
		return 0, 0, false
	}
	return p.BlockSizeTokens, p.NumBlocks, true
}

// StaleAfter is the age from which on a reading counts as unknown: the limit of the plugin that was built last and reads
// the load, else of the one that was built first. 0 where no plugin of Types is in force.
func (s *Store) StaleAfter() (limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.users {
		if of := p.staleAfter(); limit == 0 || p.settings.pace == loadPace {
			limit = of
		}
	}
	return limit
}

// last is the newest reading of an instance, or nil.
func (s *Store) last(ordinal int, generation uint64) *Reading {
	table := *s.table.Load()
	if ordinal < 0 || ordinal >= len(table) || table[ordinal] == nil || table[ordinal].generation != generation {
		return nil
	}
	return table[ordinal].last.Load()
}

// loss is why an engine no longer holds what its KV cache held.
type loss uint8

const (
	lostByRestart loss = iota // the engine's process was started anew under the same address
	lostBySleep               // the engine sleeps and has put its cache away, whatever the level of its sleep
)

// String is the cause's name as logs and metrics show it.
func (l loss) String() string {
	if l == lostBySleep {
		return "sleep"
	}
	return "restart"
}

// OnCacheLost makes f be called whenever an endpoint instance that stays turns out to have lost its cache, so that an
// index can forget what it believed: the engine's process was started anew, which restarted says, or it sleeps. f is called
// between two scrapes of that endpoint and should return soon. The returned function ends it.
func (s *Store) OnCacheLost(f func(ordinal int, generation uint64, restarted bool)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &f
	s.lost = append(slices.Clone(s.lost), p)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost = slices.DeleteFunc(slices.Clone(s.lost), func(q *func(int, uint64, bool)) bool { return q == p })
	}
}

func (s *Store) announceLoss(r *record, cause loss) {
	s.stats.losses[cause].Add(1)
	s.logger.Info("an engine's cache is lost", "endpoint", r.address, "cause", cause.String())
	s.mu.Lock()
	watchers := s.lost
	s.mu.Unlock()
	for _, f := range watchers {
		(*f)(r.ordinal, r.generation, cause == lostByRestart)
	}
}

// join makes a plugin a user of the store; the store is emptied when the last one leaves.
func (s *Store) join(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, p)
}

func (s *Store) leave(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = slices.DeleteFunc(s.users, func(q *poller) bool { return q == p })
	if len(s.users) > 0 {
		return
	}
	s.table.Store(&[]*record{})
	s.version = 0
	if s.own != nil {
		s.own.CloseIdleConnections()
	}
}

// follow makes the table fit a snapshot, unless a newer one came first, and returns it. Instances that stay keep their
// records.
func (s *Store) follow(snapshot *scheduling.Snapshot) []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.table.Load()
	if snapshot.Version <= s.version {
		return old
	}
	next := make([]*record, len(snapshot.Endpoints))
	for i, e := range snapshot.Endpoints {
		switch {
		case e == nil:
		case i < len(old) && old[i] != nil && old[i].generation == e.Generation:
			next[i] = old[i]
		default:
			next[i] = &record{ordinal: i, generation: e.Generation, address: e.Address}
		}
	}
	for i, r := range old {
		if r != nil && (i >= len(next) || next[i] != r) {
			r.gone.Store(true)
		}
	}
	s.version = snapshot.Version
	s.table.Store(&next)
	return next
}
