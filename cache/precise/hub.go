package precise

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/scheduling"
)

// hub is the index with everything that feeds it. It outlives reloads that leave its settings as they are.
type hub struct {
	virtual   bool // see Options
	store     *chain.Store
	keys      keys
	tiers     *tierWeights
	maxBlocks int // of a source
	maxRouted int
	maxParked int // of a source, in blocks
	adapters  adapters
	stats     stats
	feeds     kvevents.Stats
	queue     queue
	salts     atomic.Bool          // cache salts are in use
	clock     func() time.Duration // that of scheduling.Cycle.Now
	alarms    [alarms]atomic.Int64 // sources for which each is on

	cacheConfig CacheConfig  // nil: no engine says anything
	configured  atomic.Int32 // tokens of a block as somebody has configured them, 0 where nobody has
	logger      *slog.Logger
	client      *http.Client
	follow      Follower
	config      kvevents.Config
	bind        string    // where engines may connect; empty for nowhere
	listener    *listener // nil: not listening (yet)

	members atomic.Pointer[members]
	owners  atomic.Pointer[owners] // follows members and their ranks
	sources atomic.Int32           // one more than the largest index of a source
	reuses  atomic.Uint64          // how often a source got the index of one that is gone
	sizes   atomic.Pointer[[]int]

	ctx    context.Context // ends with the hub
	cancel context.CancelFunc
	work   sync.WaitGroup

	indices sync.Mutex // guards free, and the replacement of owners
	free    []uint32   // indices of sources that are gone
	sizing  sync.Mutex // guards the replacement of sizes

	mu      sync.Mutex // guards what follows, and the replacement of members; taken before all other locks
	users   int
	closed  bool
	unbound bool      // it could not listen the last time
	waiting []*member // not waited for yet
}

// maxRoutedBlocks bounds what is kept of one engine without its word.
const maxRoutedBlocks = 1 << 15

// newHub returns a hub without endpoints, which follows nobody yet.
func newHub(seed blockhash.Seed, tiers *tierWeights, maxBlocks int) *hub {
	h := &hub{
		store: chain.New(), keys: newKeys(seed), tiers: tiers, maxBlocks: maxBlocks,
		maxRouted: min(maxRoutedBlocks, maxBlocks), maxParked: defaultParked,
	}
	h.members.Store(&members{})
	h.owners.Store(&owners{})
	h.sizes.Store(&[]int{})
	return h
}

// Follower starts to follow an endpoint's events, as kvevents.Follow does.
type Follower func(e *scheduling.Endpoint, c kvevents.Config, o kvevents.Options, open func(rank int) kvevents.Sink) Feed

// Feed is what the index needs of a kvevents.Feed.
type Feed interface {
	// Restarted says that the engine seems to have been started anew.
	Restarted()
	// Ready is closed once what the engine has published before is known, or will not be.
	Ready() <-chan struct{}
	// Close ends it; nothing reaches the sinks any more once it returns.
	Close() error
}

// members are the endpoint instances that the hub follows, by ordinal. It is immutable.
type members struct {
	next      uint64 // the lowest snapshot version that has not been adopted
	byOrdinal []*member
}

// member is one endpoint instance.
type member struct {
	endpoint *scheduling.Endpoint
	feed     Feed
	ranks    atomic.Pointer[[]rank]
	together ranks
	answered atomic.Int64       // requests for blocks that the endpoint has answered
	cancel   context.CancelFunc // ends the questions to its engine
	mu       sync.Mutex         // guards the replacement of ranks
	gone     bool
	bases    []string // models that the engine has listed
}

// rank is the source of a data-parallel rank. The first one is there before anybody has heard of it.
type rank struct {
	number int // -1: not known yet
	*source
}

// maxRanks is the number of data-parallel ranks of one endpoint that are told apart. All that it says it has may hold as many
// blocks together as so many, or as those that are configured, may each.
const (
	maxRanks     = 256
	ranksAtLeast = 8
)

// adopt makes the hub follow the endpoints of a snapshot, unless it knows them or later ones already.
func (h *hub) adopt(s *scheduling.Snapshot) {
	if h.members.Load().next > s.Version {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.members.Load()
	if old.next > s.Version || h.closed {
		return
	}
	next := &members{next: s.Version + 1, byOrdinal: make([]*member, len(s.Endpoints))}
	for i, m := range old.byOrdinal {
		if m == nil {
			continue
		}
		if s.Holds(i, m.endpoint.Generation) && s.Endpoints[i].KVEvents == m.endpoint.KVEvents && s.Endpoints[i].Engine == m.endpoint.Engine {
			next.byOrdinal[i] = m
		} else {
			h.forgo(m)
		}
	}
	if h.listen() {
		h.invite(next)
	}
	for i, e := range s.Endpoints {
		if e != nil && next.byOrdinal[i] == nil {
			next.byOrdinal[i] = h.newMember(e)
		}
	}
	h.members.Store(next)
	h.tellOwners()
	h.sizesChanged() // a new one may have told its size before it was a member
}

// listen opens the address for engines that connect, with the first endpoints: a configuration that is only looked at
// opens nothing. Where that fails it is tried again from time to time; began says that it did not listen before. The hub's
// lock is held.
func (h *hub) listen() (began bool) {
	if h.bind == "" || h.listener != nil {
		return false
	}
	l, err := listenOn(h.bind, h.config.MaxMessageBytes, h.logger)
	if err != nil {
		if !h.unbound {
			h.logger.Error("engines cannot connect to send KV events; this is tried again", "bind", h.bind, "error", err)
		}
		h.unbound = true
		return false
	}
	if h.unbound {
		h.logger.Info("engines can connect to send KV events", "bind", h.bind)
	}
	h.unbound, h.listener = false, l
	return true
}

// listenAgain listens where that has failed before.
func (h *hub) listenAgain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.members.Load()
	if h.closed || old.next == 0 || !h.listen() {
		return
	}
	next := &members{next: old.next, byOrdinal: slices.Clone(old.byOrdinal)}
	h.invite(next)
	h.members.Store(next)
	h.tellOwners()
}

// invite follows those endpoints anew whose engines may connect, now that they can. The hub's lock is held.
func (h *hub) invite(all *members) {
	for i, m := range all.byOrdinal {
		if m != nil && (h.config.Bind || m.endpoint.KVEvents.Bind) {
			h.forgo(m)
			all.byOrdinal[i] = h.newMember(m.endpoint)
		}
	}
}

// forgo ends the following of a member. The hub's lock is held.
func (h *hub) forgo(m *member) {
	h.waiting = slices.DeleteFunc(h.waiting, func(w *member) bool { return w == m })
	h.work.Go(func() { h.bury(m) })
}

// newMember begins to follow an endpoint. The hub's lock is held.
func (h *hub) newMember(e *scheduling.Endpoint) *member {
	ctx, cancel := context.WithCancel(h.ctx)
	m := &member{endpoint: e, cancel: cancel}
	m.together.limit = int64(max(h.maxBlocks, defaultCapacity)) * int64(max(ranksAtLeast, e.KVEvents.Ranks, h.config.Ranks))
	m.ranks.Store(&[]rank{{-1, h.newRank(&m.together)}})
	m.feed = h.follow(e, h.config, kvevents.Options{
		Logger: h.logger, Client: h.client, Acceptor: h.listener.acceptor(), Stats: &h.feeds,
	}, func(number int) kvevents.Sink { return h.open(m, number) })
	h.waiting = append(h.waiting, m)
	h.work.Go(func() { h.listModels(ctx, m) })
	return m
}

// newSource makes a source that shares no bound with any other.
func (h *hub) newSource() *source { return h.newRank(&ranks{limit: math.MaxInt64}) }

// newRank makes a source with an index of its own.
func (h *hub) newRank(of *ranks) *source {
	h.indices.Lock()
	defer h.indices.Unlock()
	var index uint32
	if n := len(h.free); n > 0 {
		index = h.free[n-1]
		h.free = h.free[:n-1]
		h.disown(index)
		h.reuses.Add(1)
	} else {
		index = uint32(h.sources.Load())
		h.sources.Add(1)
	}
	return newSource(index, h, of)
}

// open is the source of a rank that a feed has heard of; of ranks beyond any bound all that is heard is dropped.
func (h *hub) open(m *member, number int) kvevents.Sink {
	m.mu.Lock()
	defer m.mu.Unlock()
	ranks := *m.ranks.Load()
	for i := range ranks {
		if ranks[i].number == number {
			return ranks[i].source
		}
	}
	next := slices.Clone(ranks)
	if ranks[0].number < 0 {
		next[0].number = number
		next[0].logger = h.logger.With("endpoint", m.endpoint.Address, "rank", number)
		m.ranks.Store(&next)
		return next[0].source
	}
	if len(ranks) == maxRanks || m.gone {
		return deaf{}
	}
	s := h.newRank(&m.together)
	s.logger = h.logger.With("endpoint", m.endpoint.Address, "rank", number)
	next = append(next, rank{number, s})
	m.ranks.Store(&next)
	h.tellOwners()
	return s
}

// deaf is the sink of ranks beyond any bound.
type deaf struct{}

func (deaf) Apply(*wire.Batch)   {}
func (deaf) Forget(cursor.Cause) {}
func (deaf) State(cursor.State)  {}

// bury frees what an endpoint that went has: its connections, its goroutines and its blocks.
func (h *hub) bury(m *member) {
	m.cancel()
	for _, r := range *m.ranks.Load() {
		r.disown() // at once; what follows may take a moment
	}
	if err := m.feed.Close(); err != nil {
		h.logger.Warn("closing an endpoint's KV events", "endpoint", m.endpoint.Address, "error", err)
	}
	m.mu.Lock()
	m.gone = true
	ranks := *m.ranks.Load()
	m.mu.Unlock()
	h.adapters.unlist(m.bases) // which nobody changes any more
	for _, r := range ranks {
		r.close()
	}
	h.indices.Lock()
	for _, r := range ranks {
		h.free = append(h.free, r.index)
	}
	h.indices.Unlock()
	h.sizesChanged()
}

// member is the member behind an endpoint instance, nil where there is none (any more).
func (h *hub) member(ordinal int, generation uint64) *member {
	all := h.members.Load()
	if uint(ordinal) < uint(len(all.byOrdinal)) {
		if m := all.byOrdinal[ordinal]; m != nil && m.endpoint.Generation == generation {
			return m
		}
	}
	return nil
}

// cacheLost takes in that an engine has lost its cache. One that was started anew publishes from the beginning, and what
// it has published since can be had again; one that sleeps will tell later what it holds.
func (h *hub) cacheLost(ordinal int, generation uint64, restarted bool) {
	m := h.member(ordinal, generation)
	if m == nil {
		return
	}
	for _, r := range *m.ranks.Load() {
		r.lost(restarted)
	}
	if restarted {
		m.feed.Restarted()
	}
}

// sizesChanged collects the block sizes in use again, the most used first.
func (h *hub) sizesChanged() {
	h.sizing.Lock()
	defer h.sizing.Unlock()
	counts := map[int]int{}
	for _, m := range h.members.Load().byOrdinal {
		if m == nil {
			continue
		}
		own := map[int]int{} // a size counts once for an endpoint, however many ranks it says it has
		for _, r := range *m.ranks.Load() {
			own[int(r.other.Load())] = max(own[int(r.other.Load())], 1)
			own[int(r.primary.Load())] = 2
		}
		for size, weight := range own {
			counts[size] += weight
		}
	}
	delete(counts, 0)
	sizes := make([]int, 0, len(counts))
	for size := range counts {
		sizes = append(sizes, size)
	}
	slices.SortFunc(sizes, func(a, b int) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return a - b
	})
	h.sizes.Store(&sizes)
}

// readyIn waits until the endpoints that are known have been replayed or have given up, at most until ctx is over; it
// reports how many are still at it.
func (h *hub) readyIn(ctx context.Context) (late int) {
	h.mu.Lock()
	waiting := h.waiting
	h.waiting = nil
	h.mu.Unlock()
	for i, m := range waiting {
		select {
		case <-m.feed.Ready():
		case <-ctx.Done():
			return len(waiting) - i
		}
	}
	return 0
}

// join makes a producer a user, unless the hub has ended; leave ends that, and the last one to leave ends the hub.
func (h *hub) join() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.users++
	return true
}

func (h *hub) leave() error {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.closed = h.closed || last
	h.mu.Unlock()
	if !last {
		return nil
	}
	h.cancel()
	for _, m := range h.members.Load().byOrdinal {
		if m != nil {
			h.work.Go(func() { h.bury(m) })
		}
	}
	h.work.Wait()
	return h.listener.leave()
}
