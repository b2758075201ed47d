package scorer

import (
	"slices"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
)

// coldOrder are the endpoint instances that got cold requests, in the order of their latest ones. It holds no more than the
// newest snapshot has. The zero value is ready to use.
//
// Its lock is held for a pass over it at most; the picks of one configuration take it one after the other anyway, but two
// configurations share it while one replaces the other.
type coldOrder struct {
	mu       sync.Mutex
	snapshot *scheduling.Snapshot // the newest heard of
	used     []coldUse            // who got the latest one is last
}

type coldUse struct {
	ordinal    int
	generation uint64
}

// rank gives every candidate its rank.
func (o *coldOrder) rank(c *scheduling.Cycle, ranks *scheduling.Column[scheduling.ColdRank]) {
	for e := range c.Candidates.All() {
		ranks.Set(e, 0)
	}
	next := scheduling.ColdRank(c.Candidates.Len() - 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, use := range slices.Backward(o.used) {
		if c.Candidates.Has(use.ordinal) && c.Snapshot.Endpoints[use.ordinal].Generation == use.generation {
			ranks.Set(use.ordinal, next)
			next--
		}
	}
}

// touch makes an endpoint the one that got the latest. One that is not in the newest snapshot is not remembered.
func (o *coldOrder) touch(e *scheduling.Endpoint, size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	use := coldUse{e.Ordinal, e.Generation}
	if !use.in(o.snapshot) {
		return
	}
	if i := slices.Index(o.used, use); i >= 0 {
		o.used = slices.Delete(o.used, i, i+1)
	}
	o.used = append(o.used, use)
	o.used = slices.Delete(o.used, 0, max(0, len(o.used)-size))
}

// follow forgets the endpoints that a newer snapshot does not have.
func (o *coldOrder) follow(s *scheduling.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.snapshot != nil && s.Version <= o.snapshot.Version {
		return
	}
	o.snapshot = s
	o.used = slices.DeleteFunc(o.used, func(use coldUse) bool { return !use.in(s) })
}

func (u coldUse) in(s *scheduling.Snapshot) bool {
	return s != nil && u.ordinal < len(s.Endpoints) && s.Endpoints[u.ordinal] != nil && s.Endpoints[u.ordinal].Generation == u.generation
}
