package precise

import (
	"slices"

	"github.com/sluice-epp/sluice/scheduling"
)

// owners say whose the sources are, so that what was found can be told without a look at the memory of every endpoint,
// which in a large pool is in no cache of the processor's. It is immutable.
type owners struct {
	next     uint64  // as in members
	bySource []owner // by the sources' indices
}

// owner is the endpoint instance that a source belongs to.
type owner struct {
	ordinal    int32 // -1: nobody
	several    bool  // the endpoint has other sources, too
	generation uint64
}

// tellOwners makes owners follow the members and their ranks.
func (h *hub) tellOwners() {
	h.indices.Lock()
	defer h.indices.Unlock()
	all := h.members.Load()
	next := &owners{next: all.next, bySource: make([]owner, h.sources.Load())}
	for i := range next.bySource {
		next.bySource[i].ordinal = -1
	}
	for o, m := range all.byOrdinal {
		if m == nil {
			continue
		}
		ranks := *m.ranks.Load()
		for i := range ranks {
			next.bySource[ranks[i].index] = owner{int32(o), len(ranks) > 1, m.endpoint.Generation}
		}
	}
	h.owners.Store(next)
}

// disown makes an index nobody's until tellOwners. The lock of the indices is held.
func (h *hub) disown(index uint32) {
	old := h.owners.Load()
	if int(index) >= len(old.bySource) || old.bySource[index].ordinal < 0 {
		return
	}
	next := &owners{next: old.next, bySource: slices.Clone(old.bySource)}
	next.bySource[index].ordinal = -1
	h.owners.Store(next)
}

// maxLookUps is how often a prompt is looked up at most.
const maxLookUps = 3

// lookUp looks a hashed prompt up and gives every candidate its match. Where a source got the index of one that is gone
// meanwhile, what was found under it may be either's, and it is done again.
func (p *Producer) lookUp(c *scheduling.Cycle, pr *prompt, fallback int) {
	h := p.hub
	for range maxLookUps {
		pr.reuses = h.reuses.Load()
		count := int(h.sources.Load())
		for i := range pr.cuts {
			if cut := &pr.cuts[i]; cut.size > 0 {
				cut.lookup.Run(h.store, cut.hashes, count)
			}
		}
		p.publish(c, pr, fallback)
		if h.reuses.Load() == pr.reuses {
			return
		}
	}
	pr.findNothing()
	p.publish(c, pr, fallback)
}

// publish gives every candidate its match.
func (p *Producer) publish(c *scheduling.Cycle, pr *prompt, fallback int) {
	nothing := scheduling.PrefixCacheMatchInfo{TotalBlocks: pr.seen / fallback, BlockSizeTokens: fallback}
	sizes := *p.hub.sizes.Load()
	if cut := pr.cutOf(fallback); cut >= 0 && (len(sizes) == 0 || len(sizes) == 1 && sizes[0] == fallback) {
		p.publishFound(c, pr, cut, nothing)
		return
	}
	column, all := p.info.In(c), p.hub.members.Load()
	for o := range c.Candidates.All() {
		column.Set(o, pr.infoOf(all, c.Snapshot, o, fallback, nothing))
	}
}

// publishFound is publish where all blocks have one size.
func (p *Producer) publishFound(c *scheduling.Cycle, pr *prompt, cut int, nothing scheduling.PrefixCacheMatchInfo) {
	column := p.info.In(c)
	for o := range c.Candidates.All() {
		column.Set(o, nothing)
	}
	owners := p.hub.owners.Load()
	current := owners.next == c.Snapshot.Version+1
	for i, match := range pr.cuts[cut].lookup.Matches {
		if match.Blocks == 0 || i >= len(owners.bySource) {
			continue
		}
		of := &owners.bySource[i]
		o := int(of.ordinal)
		if !c.Candidates.Has(o) || !current && !c.Snapshot.Holds(o, of.generation) {
			continue
		}
		info := nothing
		if of.several {
			info = pr.infoOf(p.hub.members.Load(), c.Snapshot, o, nothing.BlockSizeTokens, nothing)
		} else {
			info.MatchBlocks, info.CachedBlockCount = int(match.Weight)/1000, int(match.Blocks)
		}
		column.Set(o, info)
	}
}

// infoOf is what an endpoint holds, nothing where it is not followed (any more).
func (p *prompt) infoOf(all *members, s *scheduling.Snapshot, ordinal, fallback int, nothing scheduling.PrefixCacheMatchInfo) scheduling.PrefixCacheMatchInfo {
	if ordinal >= len(all.byOrdinal) || all.byOrdinal[ordinal] == nil || !s.Holds(ordinal, all.byOrdinal[ordinal].endpoint.Generation) {
		return nothing
	}
	if _, f, ok := p.bestOf(all.byOrdinal[ordinal], fallback); ok {
		return f.info
	}
	return nothing
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
