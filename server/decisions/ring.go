// Package decisions keeps the newest decisions of a process, so that they can be explained and watched.
package decisions

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// The bounds of a Ring.
const (
	// MaxDecisions is how many decisions are kept at most, whatever room there is.
	MaxDecisions = 4096
	// minDecisions are kept even where they take more than the room.
	minDecisions = 16
	// maxRequestID is the length to which a request's id is shortened, in bytes.
	maxRequestID = 256
	// words is what of a decision clients choose the length of, at most, in bytes: the request's id and the model's name.
	words = 2 * maxRequestID
	// comparedRequestID is the length, in bytes, up to which ids are compared letter by letter.
	comparedRequestID = 64
	// requestIDHeader is set by clients and proxies.
	requestIDHeader = "x-request-id"
)

// Options are what a Ring is given.
type Options struct {
	// MaxBytes is the room for decisions, in bytes.
	MaxBytes int
	// Now is the wall clock.
	Now func() time.Time
}

// Ring keeps decisions by their ids, the newest in the place of the oldest. Keeping one copies what it rests on and takes
// no lock that another decision needs; it becomes a record only once somebody asks. It implements extproc.Observer and is
// safe for concurrent use.
type Ring struct {
	options   Options
	slots     atomic.Pointer[[]slot]
	endpoints atomic.Int64                         // of the decisions that the number of slots is right for,
	scheduler atomic.Pointer[scheduling.Scheduler] // and whose they are
	resizing  sync.Mutex
	newest    atomic.Uint64 // id

	watching atomic.Int64
	mu       sync.Mutex // guards watchers
	watchers map[*Watcher]struct{}
}

// slot is the place of the decisions whose ids leave one remainder.
type slot struct {
	mu sync.Mutex
	kept
}

// kept is a decision; cycle is nil where there is none.
type kept struct {
	id        uint64
	cycle     *scheduling.Cycle
	requestID string
	at        time.Time
	ended     bool
	ending    record.Ending // where ended
}

// Entry is a decision that was found.
type Entry struct {
	// Decision is its record.
	Decision *decisionv1.Decision
	// Scheduler is the one that made it, to decide it again with.
	Scheduler *scheduling.Scheduler
}

// NewRing returns an empty ring.
func NewRing(o Options) *Ring {
	r := &Ring{options: o, watchers: make(map[*Watcher]struct{})}
	slots := make([]slot, minDecisions)
	r.slots.Store(&slots)
	return r
}

// Picked keeps a decision, which the caller is about to end.
func (r *Ring) Picked(c *scheduling.Cycle, _ *scheduling.Flight, _ time.Duration) {
	k := kept{id: c.Request.ID, cycle: c.Scheduler().Keep(c), at: r.options.Now()}
	if id, ok := c.Request.Header(requestIDHeader); ok {
		k.requestID = string(id[:min(len(id), maxRequestID)])
	}
	if n := int64(len(c.Snapshot.Endpoints)); n != r.endpoints.Load() || c.Scheduler() != r.scheduler.Load() {
		r.fit(n, k.cycle)
	}
	r.put(k)
	for newest := r.newest.Load(); k.id > newest && !r.newest.CompareAndSwap(newest, k.id); newest = r.newest.Load() {
	}
	if r.watching.Load() > 0 {
		r.tell(k.id)
	}
}

func (r *Ring) put(k kept) {
	slots := *r.slots.Load()
	s := &slots[k.id%uint64(len(slots))]
	s.mu.Lock()
	if s.id < k.id {
		s.kept, k = k, s.kept
	}
	s.mu.Unlock()
	k.free()
}

func (k kept) free() {
	if k.cycle != nil {
		k.cycle.Scheduler().End(k.cycle)
	}
}

// fit makes as many slots as there is room for decisions like one.
func (r *Ring) fit(endpoints int64, like *scheduling.Cycle) {
	if !r.resizing.TryLock() {
		return // somebody is at it
	}
	defer r.resizing.Unlock()
	r.endpoints.Store(endpoints)
	r.scheduler.Store(like.Scheduler())
	n := max(minDecisions, min(MaxDecisions, r.options.MaxBytes/max(1, like.Bytes()+words)))
	old := *r.slots.Load()
	if n == len(old) {
		return
	}
	slots := make([]slot, n)
	r.slots.Store(&slots)
	for i := range old {
		s := &old[i]
		s.mu.Lock()
		k := s.kept
		s.kept = kept{}
		s.mu.Unlock()
		if k.cycle != nil {
			r.put(k)
		}
	}
}

// Ended notes how a request ended whose decision is still there.
func (r *Ring) Ended(f *scheduling.Flight, o scheduling.Outcome, firstToken, total time.Duration) {
	ending := record.EndingOf(f, o, firstToken, total)
	slots := *r.slots.Load()
	s := &slots[f.ID%uint64(len(slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == f.ID {
		s.ended, s.ending = true, ending
	}
}

// Noted keeps nothing.
func (r *Ring) Noted(string) {}

// Get is the decision with an id, if it is still there.
func (r *Ring) Get(id uint64) (Entry, bool) {
	slots := *r.slots.Load()
	s := &slots[id%uint64(len(slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != id || s.cycle == nil {
		return Entry{}, false
	}
	return r.entry(&s.kept), true
}

func (r *Ring) entry(k *kept) Entry {
	scheduler := k.cycle.Scheduler()
	e := Entry{Scheduler: scheduler, Decision: record.Of(scheduler, k.cycle, record.Meta{
		ClientRequestID: k.requestID, UnixNano: k.at.UnixNano(), ConfigHash: scheduler.ConfigHash(),
	})}
	if k.ended {
		e.Decision.Outcome = k.ending.Record()
	}
	return e
}

// Find returns the newest decisions whose requests carry an id, or all where it is empty, newest first; left is how many
// more there are than limit.
func (r *Ring) Find(requestID string, limit int) (found []Entry, left int) {
	requestID = requestID[:min(len(requestID), maxRequestID)]
	var ids []uint64
	slots := *r.slots.Load()
	for i := range slots {
		s := &slots[i]
		s.mu.Lock()
		if s.cycle != nil && (requestID == "" || s.requestID == requestID) {
			ids = append(ids, s.id)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(ids, func(a, b uint64) int { return cmp.Compare(b, a) })
	for _, id := range ids {
		if len(found) == limit {
			break
		}
		if e, ok := r.Get(id); ok {
			found = append(found, e)
		}
	}
	return found, max(0, len(ids)-limit)
}

// Brief is what is told of a decision without making its record.
type Brief struct {
	// ID is the decision's, to Get it by.
	ID uint64
	// At is when it was made.
	At time.Time
	// Ended says whether its request has ended, and Ending how.
	Ended  bool
	Ending record.Ending
	// Gates are its gates' verdicts, valid until the call that is told of it returns.
	Gates []scheduling.GateReport
}

// Newest tells of the decisions that are kept, newest first, until look has enough. It costs a small part of what their
// records would. look is called under a lock and has to return soon.
func (r *Ring) Newest(look func(b Brief) (more bool)) {
	slots := *r.slots.Load()
	newest := r.newest.Load()
	for i := range min(newest, uint64(len(slots))) {
		id := newest - i
		if !slots[id%uint64(len(slots))].show(id, look) {
			return
		}
	}
}

func (s *slot) show(id uint64, look func(b Brief) (more bool)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != id || s.cycle == nil {
		return true // of a request that was refused, or tried only
	}
	return look(Brief{ID: id, At: s.at, Ended: s.ended, Ending: s.ending, Gates: s.cycle.Gates})
}

// Size is how many decisions are kept, how many there is room for, and about how many bytes they take.
func (r *Ring) Size() (decisions, room, bytes int) {
	slots := *r.slots.Load()
	for i := range slots {
		s := &slots[i]
		s.mu.Lock()
		if s.cycle != nil {
			decisions++
			bytes += s.cycle.Bytes() + len(s.requestID)
		}
		s.mu.Unlock()
	}
	return decisions, len(slots), bytes
}

// Near are request ids that look like one that is not there, for an error: those that begin alike, else the one that is
// written most alike.
func (r *Ring) Near(requestID string) []string {
	var near, all []string
	slots := *r.slots.Load()
	for i := range slots {
		s := &slots[i]
		s.mu.Lock()
		id := s.requestID
		s.mu.Unlock()
		switch {
		case id == "" || requestID == "":
		case strings.HasPrefix(id, requestID), strings.HasPrefix(requestID, id):
			near = append(near, id)
		case len(id) <= comparedRequestID:
			all = append(all, id)
		}
	}
	if len(near) == 0 && len(requestID) <= comparedRequestID {
		if most := scheduling.Nearest(requestID, all); most != "" {
			near = append(near, most)
		}
	}
	slices.Sort(near)
	near = slices.Compact(near)
	return near[:min(len(near), 5)]
}
