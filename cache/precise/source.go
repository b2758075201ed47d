package precise

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/cache/precise/table"
)

// source is what one engine (an endpoint instance's data-parallel rank) holds, by its own events. It implements
// kvevents.Sink.
type source struct {
	index    uint32 // its number in look-ups
	store    *chain.Store
	keys     *keys
	tiers    *tierWeights
	stats    *stats
	limit    int    // blocks; see put
	ranks    *ranks // of its endpoint
	adapters *adapters
	salts    *atomic.Bool // the hub's
	routed   routed
	logger   *slog.Logger // nil before anything was heard
	// resized is called when the source's block sizes change.
	resized func()

	state   atomic.Int32  // cursor.State
	primary atomic.Int32  // tokens of a block on the GPU, or wherever the source has blocks; 0: not known yet
	other   atomic.Int32  // tokens of a block in the tiers whose blocks have another size; 0: none
	taken   atomic.Uint32 // tick of the last batch that was taken in
	memory  atomic.Int64  // bytes of the tables when they were last counted
	leaving atomic.Bool   // no longer wanted
	mixed   atomic.Bool   // groups of one tier have blocks of several sizes, which do not go together

	unpredicted atomic.Int32 // answers in a row with cached tokens of which none was predicted

	// The watch's own:
	spoke        time.Time    // when its events were heard last, at first when it was found
	answeredThen int64        // how many requests its engine had answered by then
	said         [alarms]bool // what the log has been told of

	mu      sync.Mutex // guards what follows
	held    []*tier
	shadow  chain.Holder // keeps the places of blocks that do not count: ghosts and doubted ones
	ghosts  ghosts
	parked  parked
	aliases aliases
	groups  map[int]bool // groups that the engine has named, and whether they are of full attention
	// recent are blocks stored last; nil until somebody doubts.
	recent  *recent
	doubted int // blocks that were taken for lost and are still in a table, at most
	blocks  int // in all tables
	hollow  int // places that were left behind while nobody held them, at most; see hollowed
	heard   int // blocks in events since the engine began, and events that could not be read
	used    int // ... that told something
	tick    uint32
	// watchedFrom is the tick after which every block that is stored is among recent.
	watchedFrom uint32
	reports     reports
	evictAt     uint64 // a random number: where something to evict is looked for
	slept       bool   // the engine was put to sleep, and has not told anything since
	closed      bool

	hashes []uint64 // scratch
	refs   []chain.Ref
	extra  []uint64

	holders []chain.Holder
}

// tier is a source's blocks in one kind of memory.
type tier struct {
	weights int // index in tierWeights
	holder  chain.Holder
	size    int // tokens of a block; 0: not known yet
	sizedBy int // the number of the group that told the size last
	groups  []group
}

// group is a tier's blocks of one KV cache group. A block counts where every group of the tier has it.
type group struct {
	number int
	table  table.Table
}

// maxGroups is the number of groups of full attention that an engine may have.
const maxGroups = 8

// ranks are the sources of one endpoint, as far as they share a bound.
type ranks struct {
	blocks atomic.Int64 // in all tables of all of them
	limit  int64
}

func newSource(index uint32, h *hub, of *ranks) *source {
	s := &source{
		spoke: time.Now(),
		index: index, store: h.store, keys: &h.keys, tiers: h.tiers, stats: &h.stats, limit: h.maxBlocks, ranks: of,
		resized: h.sizesChanged, adapters: &h.adapters, salts: &h.salts,
		routed: routed{store: h.store, limit: h.maxRouted, holder: h.store.Register(index, 1000)},
		parked: parked{limit: h.maxParked},
	}
	s.shadow = s.store.Register(chain.NoSource, 0)
	s.state.Store(int32(cursor.Silent))
	return s
}

// State says how far the source's knowledge can be trusted.
func (s *source) State(state cursor.State) {
	s.state.Store(int32(state))
	s.mu.Lock()
	if state == cursor.Degraded {
		s.watchRecent()
	}
	blocks := s.blocks
	s.mu.Unlock()
	if s.logger != nil {
		s.logger.Info("what an endpoint's KV events tell of its cache", "state", state.String(), "blocks", blocks)
	}
	s.routed.setLive(state == cursor.Live)
}

func (s *source) is(state cursor.State) bool { return cursor.State(s.state.Load()) == state }

// Apply takes the events of a batch in, in their order.
func (s *source) Apply(b *wire.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.tick++
	defer s.taken.Store(s.tick)
	s.heard += b.Bad + b.Unknown
	replayed := s.is(cursor.Replaying)
	for i := range b.Events {
		if s.leaving.Load() { // a batch may have millions of events, and somebody waits
			return
		}
		e := &b.Events[i]
		if s.slept && e.Kind != wire.Cleared {
			if replayed {
				continue // of before the engine went to sleep
			}
			s.slept = false // what is told live is told by an engine that is awake
		}
		s.heard += len(e.Hashes)
		switch e.Kind {
		case wire.Stored:
			s.stored(e)
		case wire.Removed:
			s.removed(e)
		case wire.Cleared:
			s.stats.cleared.Add(1)
			s.slept = false
			s.forget()
			s.routed.forget()
		}
		if s.hollow >= hollowCheck {
			s.hollowed()
		}
	}
}

// A place stays, 16 bytes or more, as long as any place follows it that somebody holds, so a single block may keep the
// places of a whole prompt. Engines evict a prompt's end first and leave few of these behind. Whenever a source has left
// hollowCheck, all are counted; where they are more than maxHollow and hollowRatio times the blocks that are there, what
// the source holds goes.
const (
	hollowCheck = 1 << 20
	maxHollow   = 4 << 20
	hollowRatio = 4
)

func (s *source) hollowed() {
	s.hollow = 0
	if n := int64(s.store.Hollow()); n > maxHollow+hollowRatio*s.stats.blocks.Load() {
		s.stats.evicted.Add(int64(s.blocks))
		s.forget()
	}
}

// Forget makes everything that is known of the source void. What was sent to the engine stays where it is still the same
// one, of which only the events are read again.
func (s *source) Forget(cause cursor.Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if cause == cursor.CauseRebuild || cause == cursor.CauseSnapshot {
		s.forget()
		s.heard, s.used = 0, 0
		return
	}
	s.lose()
}

// lost is Forget for an engine whose metrics say that its process was started anew, or else that it was put to sleep. One
// that sleeps has lost its cache and tells so only once it is awake: until then what is replayed is of before.
func (s *source) lost(restarted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose()
	s.slept = !restarted
}

func (s *source) lose() {
	if !s.closed {
		s.forget()
		s.routed.forget()
		s.heard, s.used = 0, 0
	}
}

// disown makes the source's blocks count for nothing, at once.
func (s *source) disown() {
	s.leaving.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.held {
		s.store.Disown(t.holder)
	}
	s.store.Disown(s.routed.holder)
}

// close frees everything that the source has; it takes no more events.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.forget()
	for _, t := range s.held {
		s.store.Release(t.holder)
	}
	s.held, s.ghosts = nil, ghosts{}
	s.routed.close()
	s.store.Release(s.shadow)
}

// forget drops all blocks, and all that was learnt of how the engine cuts its cache; the tables keep their memory for what
// comes next.
func (s *source) forget() {
	for _, t := range s.held {
		for i := range t.groups {
			s.sweep(&t.groups[i].table)
			if i > 0 { // most engines have one
				t.groups[i] = group{}
			}
		}
		t.groups, t.size = t.groups[:0], 0
	}
	s.sweep(&s.ghosts.table)
	s.ghosts.ring, s.ghosts.next = s.ghosts.ring[:0], 0
	s.stats.blocks.Add(-int64(s.blocks))
	s.ranks.blocks.Add(-int64(s.blocks))
	s.stats.parked.Add(-int64(s.parked.blocks))
	s.blocks, s.hollow, s.doubted = 0, 0, 0
	s.parked.clear()
	s.aliases.clear()
	clear(s.groups)
	s.mixed.Store(false)
}

// own are the source's holders, those for routed blocks left out, until the next call.
func (s *source) own() []chain.Holder {
	s.holders = append(s.holders[:0], s.shadow)
	for _, t := range s.held {
		s.holders = append(s.holders, t.holder)
	}
	return s.holders
}

func (s *source) sweep(t *table.Table) {
	holders := s.own()
	t.All(func(_, at uint64) bool {
		s.store.Unset(chain.Ref(at), holders...)
		return true
	})
	t.Clear()
}

// tierOf is the tier of a medium; it is made where there is none and create says so.
func (s *source) tierOf(medium string, create bool) *tier {
	w := s.tiers.indexOf(medium)
	for _, t := range s.held {
		if t.weights == w {
			return t
		}
	}
	if !create {
		return nil
	}
	t := &tier{weights: w, holder: s.store.Register(s.index, s.tiers.weights[w])}
	s.held = append(s.held, t)
	return t
}

// groupOf is the table of a group; it is made where there is none and create says so. A second group makes all blocks
// incomplete, as only the first has them.
func (s *source) groupOf(t *tier, number int, create bool) *group {
	for i := range t.groups {
		if t.groups[i].number == number {
			return &t.groups[i]
		}
	}
	if !create || len(t.groups) == maxGroups {
		return nil
	}
	for i := range t.groups {
		t.groups[i].table.All(func(_, at uint64) bool {
			s.store.Move(t.holder, s.shadow, chain.Ref(at))
			return true
		})
	}
	s.aliases.drop(t.holder)
	n := len(t.groups)
	if n < cap(t.groups) {
		t.groups = t.groups[:n+1] // with a table that forget has emptied
		t.groups[n].number = number
	} else {
		t.groups = append(t.groups, group{number: number})
	}
	return &t.groups[n]
}

// find is where a block of the source is, in whichever tier or among its ghosts, and its size in tokens; one of another
// size than blockSize does not count, unless that is 0.
func (s *source) find(name uint64, blockSize int) (at chain.Ref, size int, ok bool) {
	for _, t := range s.held {
		for i := range t.groups {
			if at, size, ok = s.in(&t.groups[i].table, name, blockSize); ok {
				return at, size, true
			}
		}
	}
	return s.in(&s.ghosts.table, name, blockSize)
}

func (s *source) in(t *table.Table, name uint64, blockSize int) (at chain.Ref, size int, ok bool) {
	place, ok := t.Get(name)
	if !ok {
		return 0, 0, false
	}
	size = s.sizeAt(place)
	return chain.Ref(place), size, blockSize == 0 || size == blockSize
}

// inTables reports whether the engine still has a block, at a place, in any tier.
func (s *source) inTables(name uint64, at chain.Ref) bool {
	for _, t := range s.held {
		for i := range t.groups {
			if place, ok := t.groups[i].table.Get(name); ok && chain.Ref(place).Place() == at.Place() {
				return true
			}
		}
	}
	return false
}

// sized notes the size of a tier's blocks as its events have it.
func (s *source) sized(t *tier, blockSize int) {
	if t.size == blockSize {
		return
	}
	if t.size != 0 {
		s.stats.resized.Add(1)
	}
	t.size = blockSize
	primary, other := blockSize, 0
	for _, u := range s.held {
		if s.tiers.isGPU(u.weights) && u.size != 0 {
			primary = u.size
		}
	}
	for _, u := range s.held {
		if u.size != 0 && u.size != primary {
			other = u.size
		}
	}
	before, beside := s.primary.Swap(int32(primary)), s.other.Swap(int32(other))
	if before != int32(primary) || beside != int32(other) {
		s.resized()
	}
}

// applied counts blocks of events that told something.
func (s *source) applied(blocks int) {
	s.used += blocks
	s.stats.applied.Add(int64(blocks))
}

// unapplied reports whether events arrive and none tells anything that can be used: the sign of a dialect that is not
// understood, or of a history that is missing.
func (s *source) unapplied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard >= unappliedBlocks && s.used == 0
}

// unappliedBlocks is how many blocks of events must have told nothing before that is said.
const unappliedBlocks = 64

// report notes that a request for a prompt makes the engine announce again what it reuses; endReport ends that for what
// report returned.
func (s *source) report(hashes []uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports.begin(hashes)
}

func (s *source) endReport(hashes []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports.end(hashes)
}

// bytes is the memory of the source's tables; of one that is busy with a long batch, what it was before.
func (s *source) bytes() int {
	if !s.mu.TryLock() {
		return int(s.memory.Load())
	}
	defer s.mu.Unlock()
	n := s.ghosts.table.Bytes() + 8*cap(s.ghosts.ring) + 4*s.parked.tokens + 64*s.parked.blocks + s.aliases.bytes()
	for _, t := range s.held {
		for _, g := range t.groups[:cap(t.groups)] { // what was forgotten has memory still
			n += g.table.Bytes()
		}
	}
	n += 8*cap(s.hashes) + 8*cap(s.refs) + 8*cap(s.extra)
	if s.recent != nil {
		n += recentBytes
	}
	s.memory.Store(int64(n))
	return n
}
