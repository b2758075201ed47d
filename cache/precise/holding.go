package precise

import (
	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/scheduling"
)

// Stats is how large the index is.
func (p *Producer) Stats() cache.Stats {
	v := p.hub.view()
	s := &p.hub.stats
	stats := cache.Stats{
		Entries: v.sizes.Positions, HolderEntries: int(s.blocks.Load()) + v.routed, Bytes: v.sizes.Bytes + v.tables,
		Evicted: s.evicted.Load(), Sources: make(map[string]int, len(v.states)),
	}
	for state, n := range v.states {
		stats.Sources[state.String()] = n
	}
	return stats
}

// Holding is what the index knows of an endpoint's cache; ok is false where it does not know the endpoint.
func (p *Producer) Holding(e *scheduling.Endpoint) (h cache.Holding, ok bool) {
	m := p.hub.member(e.Ordinal, e.Generation)
	if m == nil {
		return h, false
	}
	worst := cursor.Live
	for _, r := range *m.ranks.Load() {
		routed, _ := r.routed.size()
		h.Blocks += routed
		if size := int(r.primary.Load()); size > 0 {
			h.BlockSizeTokens = size
		}
		if state := cursor.State(r.state.Load()); trust[state] < trust[worst] {
			worst = state
		}
	}
	h.Blocks += int(m.together.blocks.Load())
	h.Events = worst.String()
	return h, true
}

// trust orders the states: the higher, the truer is what is known.
var trust = [...]int{cursor.Silent: 0, cursor.Initial: 1, cursor.Replaying: 2, cursor.Degraded: 3, cursor.Live: 4}
