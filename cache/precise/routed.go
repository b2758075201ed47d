package precise

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/cache/precise/table"
)

// routed is what was sent to a source's engine and not confirmed by its events: speculation for as long as an event takes,
// and, while the events of a source cannot be trusted, all that is known of what is new there. Its names are the index's
// own hashes, as the engine's are not known yet.
type routed struct {
	store *chain.Store
	limit int // blocks

	any atomic.Bool // whether there may be a block; read without the lock

	mu     sync.Mutex
	live   bool // the source's events tell the truth
	holder chain.Holder
	table  table.Table
	kept   []*record // as long as the source is not live, oldest first
	hashes int       // in kept
	forgot uint64    // how often everything was dropped
	closed bool
	refs   []chain.Ref
}

// record is one pick's share.
type record struct {
	on     *routed
	hashes []uint64
	until  time.Duration // when it ends, unless it is kept; 0: at once
	kept   bool          // among on.kept, unless everything was forgotten since
	aged   bool          // its end has come
	forgot uint64        // on.forgot when it was made: after a later one nothing of it is left
	// id is this use's of the record, 0 once it has ended; it changes with the lock of the routed that it is on held, and is
	// read by flights whose record may be another's by now.
	id atomic.Uint64
}

var (
	records   = sync.Pool{New: func() any { return new(record) }}
	recordIDs atomic.Uint64
)

// share is a flight's hold on its record.
type share struct {
	record *record
	id     uint64
}

// add makes the source's engine have the blocks of a prompt: those from number first on, as all before are known, until
// the record is ended. While the source is not live it is all of them, as nothing is known for sure, and for as long as
// there is room: the record's end then takes effect when the source becomes live. The share is empty where there is nothing
// to add, or no room.
func (r *routed) add(hashes []uint64, first, blockSize int, until time.Duration) share {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.live {
		first = 0
	}
	if r.closed || first >= len(hashes) || r.live && until == 0 {
		return share{}
	}
	parent, parentHash := chain.NoRef, uint64(0)
	if first > 0 {
		at, ok := r.store.Find(hashes[:first])
		if ok {
			parent, parentHash = at, hashes[first-1]
		} else {
			first = 0
		}
	}
	for len(r.kept) > 0 && max(r.table.Len(), r.hashes)+len(hashes)-first > r.limit {
		oldest := r.kept[0]
		r.kept = r.kept[1:]
		r.hashes -= len(oldest.hashes)
		oldest.kept = false
		r.remove(oldest)
	}
	if r.table.Len()+len(hashes)-first > r.limit {
		return share{}
	}
	if cap(r.refs) < len(hashes) {
		r.refs = make([]chain.Ref, len(hashes))
	}
	refs := r.refs[:len(hashes)-first]
	r.any.Store(true)
	n := r.store.Insert(r.holder, nil, parent, parentHash, blockSize, hashes[first:], refs)
	if n == 0 {
		return share{}
	}
	for i, hash := range hashes[first : first+n] {
		if slot, ok := r.table.Find(hash); ok {
			r.table.Again(slot)
		} else {
			r.table.Add(hash, uint64(refs[i].Bare()))
		}
	}
	rec, _ := records.Get().(*record)
	rec.on, rec.until, rec.kept, rec.aged, rec.forgot = r, until, !r.live, until == 0, r.forgot
	rec.id.Store(recordIDs.Add(1))
	rec.hashes = append(rec.hashes[:0], hashes[first:first+n]...)
	if rec.kept {
		r.kept = append(r.kept, rec)
		r.hashes += n
	}
	return share{rec, rec.id.Load()}
}

// undo takes a flight's share out, unless it has ended already.
func (r *routed) undo(s share) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.record == nil || s.record.id.Load() != s.id {
		return
	}
	if s.record.kept && s.record.forgot == r.forgot {
		s.record.kept = false
		r.hashes -= len(s.record.hashes)
		r.kept = slices.DeleteFunc(r.kept, func(rec *record) bool { return rec == s.record })
	}
	r.remove(s.record)
}

// end undoes a record whose time has come. It may be used again then, and its flight must not undo what another one makes of
// it. A record that is kept stays, and over is false. It returns the record's number of blocks.
func (r *routed) end(rec *record) (blocks int, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	blocks = len(rec.hashes)
	if rec.kept && rec.forgot == r.forgot {
		rec.aged = true
		return blocks, false
	}
	rec.id.Store(0)
	r.remove(rec)
	return blocks, true
}

// remove takes a record's blocks out, those that no other record has.
func (r *routed) remove(rec *record) {
	if rec.forgot != r.forgot {
		rec.hashes = rec.hashes[:0]
	}
	for i := len(rec.hashes) - 1; i >= 0; i-- {
		if slot, ok := r.table.Find(rec.hashes[i]); ok {
			at := chain.Ref(r.table.Place(slot))
			if r.table.Less(slot) {
				r.store.Unset(at, r.holder)
			}
		}
	}
	rec.hashes = rec.hashes[:0]
	r.any.Store(r.table.Len() > 0)
}

// drop takes blocks out that the engine turned out not to have, whoever recorded them.
func (r *routed) drop(hashes []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(hashes) - 1; i >= 0; i-- {
		if slot, ok := r.table.Find(hashes[i]); ok {
			at := chain.Ref(r.table.Place(slot))
			r.table.Drop(slot)
			r.store.Unset(at, r.holder)
		}
	}
	r.any.Store(r.table.Len() > 0)
}

// setLive takes in whether the source's events tell the truth. Once they do, they have told of the older records, which go.
// Of the younger ones the engine may have computed nothing yet: these end as if the source had been live all along.
func (r *routed) setLive(live bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live = live; !live {
		return
	}
	for _, rec := range r.kept {
		rec.kept = false
		if rec.aged {
			r.remove(rec)
		}
	}
	r.kept, r.hashes = nil, 0
}

// forget drops everything.
func (r *routed) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked()
}

func (r *routed) forgetLocked() {
	r.table.All(func(_, at uint64) bool {
		r.store.Unset(chain.Ref(at), r.holder)
		return true
	})
	r.table.Clear()
	r.any.Store(false)
	r.kept, r.hashes = nil, 0
	r.forgot++
}

func (r *routed) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.store.Disown(r.holder)
		r.forgetLocked()
		r.store.Release(r.holder)
	}
}

// size is the number of blocks and the memory of their table.
func (r *routed) size() (blocks, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.Len(), r.table.Bytes() + 8*r.hashes
}

// queue holds the records whose ends are to come, in the order of these.
type queue struct {
	next atomic.Int64 // the first one's end; 0: none

	mu    sync.Mutex
	ring  []*record
	first int
	count int
}

func (q *queue) push(rec *record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == len(q.ring) {
		wider := make([]*record, max(64, 2*len(q.ring)))
		for i := range q.count {
			wider[i] = q.ring[(q.first+i)%len(q.ring)]
		}
		q.ring, q.first = wider, 0
	}
	q.ring[(q.first+q.count)%len(q.ring)] = rec
	if q.count++; q.count == 1 {
		q.next.Store(int64(rec.until))
	}
}

// expire ends the records whose time has come, the oldest first, until those ended have so many blocks together.
func (q *queue) expire(now time.Duration, blocks int) {
	if next := q.next.Load(); next == 0 || next > int64(now) {
		return
	}
	for blocks > 0 {
		rec := q.pop(now)
		if rec == nil {
			return
		}
		ended, over := rec.on.end(rec)
		if blocks -= ended; over {
			records.Put(rec)
		}
	}
}

func (q *queue) pop(now time.Duration) *record {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == 0 || q.ring[q.first].until > now {
		return nil
	}
	rec := q.ring[q.first]
	q.ring[q.first] = nil
	q.first = (q.first + 1) % len(q.ring)
	q.count--
	q.next.Store(0)
	if q.count > 0 {
		q.next.Store(int64(q.ring[q.first].until))
	}
	return rec
}
