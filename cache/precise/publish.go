package precise

import (
	"sync/atomic"

	"github.com/sluice-epp/sluice/scheduling"
)

// owners are the members that sources belong to, by the sources' indices.
type owners []atomic.Pointer[member]

// own makes a source's index a member's, nil for nobody's. The lock of the indices is held.
func (h *hub) own(index uint32, m *member) {
	now := *h.owners.Load()
	if int(index) >= len(now) {
		more := make(owners, 2*index+8)
		for i := range now {
			more[i].Store(now[i].Load())
		}
		now = more
		h.owners.Store(&more)
	}
	now[index].Store(m)
}

// publish gives every candidate its match.
func (p *Producer) publish(c *scheduling.Cycle, pr *prompt, fallback int) {
	column := p.info.In(c)
	nothing := scheduling.PrefixCacheMatchInfo{TotalBlocks: pr.seen / fallback, BlockSizeTokens: fallback}
	if sizes := *p.hub.sizes.Load(); len(sizes) > 1 || len(sizes) == 1 && sizes[0] != fallback {
		p.publishAll(c, pr, fallback, nothing)
		return
	}
	// Who holds nothing is told no more than the prompt's length. Their memory is not looked at: in a large pool it is in no
	// cache of the processor's, and most hold nothing.
	for o := range c.Candidates.All() {
		column.Set(o, nothing)
	}
	owners, members := *p.hub.owners.Load(), p.hub.members.Load()
	for i, match := range pr.matches(fallback) {
		if match.Blocks == 0 || i >= len(owners) {
			continue
		}
		m := owners[i].Load()
		if m == nil || m.endpoint == nil || !c.Candidates.Has(m.endpoint.Ordinal) || !members.have(m, c.Snapshot) {
			continue
		}
		if _, f, ok := pr.bestOf(m, fallback); ok {
			column.Set(m.endpoint.Ordinal, f.info)
		}
	}
}

// publishAll is publish where endpoints have blocks of several sizes: what holds nothing has its own number of blocks, too.
func (p *Producer) publishAll(c *scheduling.Cycle, pr *prompt, fallback int, nothing scheduling.PrefixCacheMatchInfo) {
	column, members := p.info.In(c), p.hub.members.Load()
	for o := range c.Candidates.All() {
		info := nothing
		if o < len(members.byOrdinal) && members.have(members.byOrdinal[o], c.Snapshot) {
			if _, f, ok := pr.bestOf(members.byOrdinal[o], fallback); ok {
				info = f.info
			}
		}
		column.Set(o, info)
	}
}

// have reports whether a member, which may be nil, is still followed and the one that a snapshot has in its place.
func (all *members) have(m *member, s *scheduling.Snapshot) bool {
	if m == nil {
		return false
	}
	o := m.endpoint.Ordinal
	return o < len(all.byOrdinal) && all.byOrdinal[o] == m && s.Holds(o, m.endpoint.Generation)
}

// bestOf is the rank of an endpoint that holds most of the prompt. Which rank will serve, the endpoint decides.
func (p *prompt) bestOf(m *member, fallback int) (on *source, best found, ok bool) {
	ranks := *m.ranks.Load()
	for i := range ranks {
		f, known := p.of(ranks[i].source, fallback)
		if known && (!ok || f.weight > best.weight) {
			on, best, ok = ranks[i].source, f, true
		}
	}
	return on, best, ok
}
