package outlier

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// table holds a record per endpoint instance, by ordinal. It outlives a reload.
type table struct {
	// troubled is the number of records with an ejection; while it is 0, which is nearly always, nobody looks further.
	troubled atomic.Int64

	mu      sync.RWMutex
	records []*record
}

// record is what an instance did lately. The table's lock guards it.
type record struct {
	address    string
	generation uint64
	table      *table
	failures   int           // in a row
	ejections  int           // in a row
	until      time.Duration // end of the present ejection, on the clock of Cycle.Now
	gone       bool          // the endpoint has left
}

func (t *table) find(ordinal int, generation uint64) *record {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if uint(ordinal) < uint(len(t.records)) {
		if r := t.records[ordinal]; r != nil && r.generation == generation {
			return r
		}
	}
	return nil
}

// take returns an instance's record, making one where there is none. A pick on an old snapshot, of an instance that has
// been replaced, gets a record that nobody else sees.
func (t *table) take(e *scheduling.Endpoint) *record {
	if r := t.find(e.Ordinal, e.Generation); r != nil {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := &record{address: e.Address, generation: e.Generation, table: t}
	for len(t.records) <= e.Ordinal {
		t.records = append(t.records, nil)
	}
	switch old := t.records[e.Ordinal]; {
	case old == nil:
	case old.generation == e.Generation:
		return old
	case old.generation > e.Generation:
		fresh.gone = true
		return fresh
	default:
		t.drop(old)
	}
	t.records[e.Ordinal] = fresh
	return fresh
}

// drop forgets a record. The lock must be held.
func (t *table) drop(r *record) (troubled bool) {
	r.gone = true
	if r.ejections > 0 {
		t.troubled.Add(-1)
		return true
	}
	return false
}

// follow drops the records of endpoints that a snapshot no longer has, and returns those that were ejected.
func (t *table) follow(s *scheduling.Snapshot) (troubled []*record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range t.records {
		if r == nil || s.Holds(i, r.generation) {
			continue
		}
		if i < len(s.Endpoints) && s.Endpoints[i] != nil && s.Endpoints[i].Generation < r.generation {
			continue // an older snapshot than the pick's
		}
		if t.drop(r) {
			troubled = append(troubled, r)
		}
		t.records[i] = nil
	}
	return troubled
}

// tell gives the ejected endpoints of a snapshot their values.
func (t *table) tell(c *scheduling.Cycle, column *scheduling.Column[scheduling.Ejected]) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, r := range t.records {
		if r != nil && r.ejectedAt(c.Now) && c.Snapshot.Holds(i, r.generation) {
			column.Set(i, scheduling.Ejected{})
		}
	}
}

// ejectedAt needs the table's lock.
func (r *record) ejectedAt(now time.Duration) bool { return r.ejections > 0 && now < r.until }

// tried notes a pick of an instance and reports whether it is a trial: the first since an ejection ended. Until it has
// an outcome, or as much time has passed again, it stays the only one.
func (r *record) tried(now time.Duration, p Parameters) bool {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if r.ejections == 0 || now < r.until {
		return false
	}
	r.until = now + ejectionTime(r.ejections, p)
	return true
}

// failed counts a failure. It returns how long the instance is left out because of it, 0 for not at all, and whether
// that is the first ejection in a row. What fails while the instance is left out says nothing new, since it began before
// or had no choice, unless it is a trial.
func (t *table) failed(r *record, trial bool, now time.Duration, p Parameters) (left time.Duration, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.failures++
	if r.gone || r.failures < p.ConsecutiveFailures {
		return 0, false
	}
	if r.ejections > 0 && now < r.until && !trial {
		return 0, false
	}
	r.ejections++
	if r.ejections == 1 {
		t.troubled.Add(1)
	}
	left = ejectionTime(r.ejections, p)
	r.until = now + left
	return left, r.ejections == 1
}

// succeeded forgets all failures and reports whether the instance had been left out.
func (t *table) succeeded(r *record) (returned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	returned = r.ejections > 0 && !r.gone
	if returned {
		t.troubled.Add(-1)
	}
	r.failures, r.ejections, r.until = 0, 0, 0
	return returned
}

// ejectionTime is BaseEjectionTime, doubled with every ejection after the first, at most MaxEjectionTime.
func ejectionTime(ejections int, p Parameters) time.Duration {
	d := p.BaseEjectionTime
	for i := 1; i < ejections && d < p.MaxEjectionTime; i++ {
		d *= 2
	}
	return min(d, p.MaxEjectionTime)
}
