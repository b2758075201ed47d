package precise

import (
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
)

// fullAttention are the kinds of KV cache group whose blocks stand for a prefix by themselves. A window's or a state's
// blocks say nothing of what lies before them.
var fullAttention = map[string]bool{
	"": true, "full_attention": true, "mla_attention": true, "mla": true, "sink_full_attention": true,
}

// full reports whether an event is about a group of full attention; the engine names the kind in some events only.
func (s *source) full(e *wire.Event) bool {
	if e.Spec == "" {
		full, known := s.groups[e.Group]
		return full || !known
	}
	full := fullAttention[e.Spec]
	if s.groups == nil {
		s.groups = make(map[int]bool)
	}
	if _, known := s.groups[e.Group]; known || len(s.groups) < maxNamedGroups {
		s.groups[e.Group] = full
	}
	return full
}

// maxNamedGroups bounds the groups whose kind is remembered.
const maxNamedGroups = 64

func (s *source) stored(e *wire.Event) {
	n := len(e.Hashes)
	if n == 0 {
		return
	}
	if !s.full(e) {
		s.stats.otherGroup.Add(int64(n))
		return
	}
	t := s.tierOf(e.Medium, true)
	g := s.groupOf(t, e.Group, true)
	switch {
	case g == nil:
		s.stats.otherGroup.Add(int64(n))
		return
	case len(e.Tokens) == 0 && e.BlockSize == 0:
		s.join(t, g, e.Hashes)
		return
	case e.BlockSize <= 0 || len(e.Tokens) != n*e.BlockSize:
		s.stats.uneven.Add(int64(n))
		return
	case e.BlockSize < t.size:
		s.stats.partial.Add(int64(n)) // a block that is not full yet, which nobody can reuse
		return
	}
	adapter := s.keys.adapter(e.LoRA)
	if adapter != 0 && !s.adapters.see(adapter) {
		s.stats.refused.Add(int64(n))
		return
	}
	s.sized(t, e.BlockSize)
	r := run{
		names: e.Hashes, parent: e.Parent, hasParent: e.HasParent, tokens: e.Tokens, blockSize: e.BlockSize,
		extra: s.extraOf(e), adapter: adapter, tier: t, group: e.Group,
	}
	s.place(&r)
}

// extraOf are the extra keys of an event's blocks; nil for none.
func (s *source) extraOf(e *wire.Event) []uint64 {
	if len(e.ExtraEnd) == 0 && (len(e.Salt) == 0 || e.HasParent) {
		return nil
	}
	s.extra = s.extra[:0]
	for i := range e.Hashes {
		extra := s.keys.ofItems(e.Keys(i))
		if i == 0 && !e.HasParent {
			extra = s.keys.salt(extra, e.Salt)
		}
		s.extra = append(s.extra, extra)
	}
	return s.extra
}

// join takes in a store that names blocks and says nothing else of them: each is where the source has it already.
func (s *source) join(t *tier, g *group, names []uint64) {
	for _, name := range names {
		if slot, ok := g.table.Find(name); ok {
			g.table.Again(slot)
			continue
		}
		at, ok := s.find(name)
		if !ok {
			s.stats.unjoined.Add(1)
			continue
		}
		if t.size == 0 {
			_, size := s.store.HashAt(at)
			s.sized(t, size)
		}
		s.hold(t, g, name, at)
		s.stats.joined.Add(1)
	}
}

// place puts a run where it belongs, or parks it until its parent is known; then the runs that waited for it follow.
func (s *source) place(r *run) {
	if !s.placeOne(r) {
		s.park(r)
		return
	}
	if s.parked.blocks == 0 {
		return
	}
	names := append([]uint64(nil), r.names...)
	for len(names) > 0 && s.parked.blocks > 0 {
		name := names[len(names)-1]
		names = names[:len(names)-1]
		before := s.parked.blocks
		waiting := s.parked.take(name)
		s.stats.parked.Add(int64(s.parked.blocks - before))
		for _, w := range waiting {
			if s.placeOne(w) {
				names = append(names, w.names...)
			} else {
				s.park(w)
			}
		}
	}
}

func (s *source) park(r *run) {
	before := s.parked.blocks
	s.stats.orphans.Add(int64(len(r.names)))
	s.stats.orphansDropped.Add(int64(s.parked.add(r)))
	s.stats.parked.Add(int64(s.parked.blocks - before))
}

// placeOne puts a run's blocks where they belong; it reports whether the run's parent is known.
func (s *source) placeOne(r *run) bool {
	at, hash, ok := s.parentOf(r)
	if !ok {
		return false
	}
	g := s.groupOf(r.tier, r.group, true)
	for i := 0; i < len(r.names); {
		name := r.names[i]
		if slot, known := g.table.Find(name); known {
			s.storedAgain(r.tier, g, name, slot)
			at = chain.Ref(g.table.Place(slot))
			hash, _ = s.store.HashAt(at)
			i++
			continue
		}
		if found, known := s.find(name); known {
			at = s.hold(r.tier, g, name, found)
			hash, _ = s.store.HashAt(at)
			i++
			continue
		}
		n := 1
		for i+n < len(r.names) && !s.knows(r.names[i+n]) {
			n++
		}
		if at, hash, ok = s.add(r, g, i, n, at, hash); !ok {
			break
		}
		i += n
	}
	return true
}

func (s *source) knows(name uint64) bool {
	_, ok := s.find(name)
	return ok
}

// parentOf is where a run begins: behind the place of its parent, whose hash it returns too.
func (s *source) parentOf(r *run) (at chain.Ref, hash uint64, ok bool) {
	if !r.hasParent {
		return chain.NoRef, s.keys.root(r.blockSize, r.adapter), true
	}
	if at, ok = s.find(r.parent); !ok {
		return 0, 0, false
	}
	hash, size := s.store.HashAt(at)
	return at, hash, size == r.blockSize
}

// add puts n blocks of a run, from number i on, which the source does not have in any way, behind a place. It returns the
// last one's place.
func (s *source) add(r *run, g *group, i, n int, at chain.Ref, hash uint64) (chain.Ref, uint64, bool) {
	parent, parentHash := at, hash
	s.hashes = s.hashes[:0]
	for k := i; k < i+n; k++ {
		hash = next(hash, r.extraOf(k), r.tokens[k*r.blockSize:(k+1)*r.blockSize])
		s.hashes = append(s.hashes, hash)
	}
	if cap(s.refs) < n {
		s.refs = make([]chain.Ref, n)
	}
	refs := s.refs[:n]
	h := r.tier.holder
	if len(r.tier.groups) > 1 {
		h = s.shadow // until every group has them
	}
	taken := s.store.Insert(h, parent, parentHash, r.blockSize, s.hashes, refs)
	for k := range taken {
		s.put(r.tier, g, r.names[i+k], refs[k])
		s.noteRecent(s.hashes[k], r.names[i+k])
	}
	s.applied(taken)
	if taken < n {
		s.stats.refused.Add(int64(n - taken))
		return at, hash, false
	}
	return refs[n-1], hash, true
}

// put adds a block to a group's table. A source that has as many blocks as it may loses another one for it: one that has
// so many has lost removals, and which of its blocks are stale nobody knows.
func (s *source) put(t *tier, g *group, name uint64, at chain.Ref) {
	if slot, ok := g.table.Find(name); ok { // twice in one event
		g.table.Again(slot)
		return
	}
	if s.blocks >= s.limit {
		s.evict(t, g)
	}
	g.table.Add(name, uint64(at))
	s.blocks++
	s.stats.blocks.Add(1)
}

// evict takes some block of a table out.
func (s *source) evict(t *tier, g *group) {
	slot, name, ok := g.table.After(s.evictAt)
	if !ok {
		return
	}
	at := chain.Ref(g.table.Place(slot))
	g.table.Drop(slot)
	s.evictAt = slot + 1
	s.vanished(t, name, at)
	s.stats.evicted.Add(1)
}

// hold makes a tier's group have a block that the source has elsewhere; it returns the block's place.
func (s *source) hold(t *tier, g *group, name uint64, at chain.Ref) chain.Ref {
	s.ghosts.take(name)
	if t.complete(g, name) {
		if ref, ok := s.store.Set(t.holder, at); ok {
			at = ref
		}
	} else if ref, ok := s.store.Set(s.shadow, at); ok {
		at = ref
	}
	s.put(t, g, name, at)
	if s.recent != nil {
		hash, _ := s.store.HashAt(at)
		s.noteRecent(hash, name)
	}
	s.applied(1)
	return at
}

// complete reports whether all groups of a tier besides one have a block.
func (t *tier) complete(besides *group, name uint64) bool {
	for i := range t.groups {
		if g := &t.groups[i]; g != besides {
			if _, ok := g.table.Find(name); !ok {
				return false
			}
		}
	}
	return true
}

// storedAgain takes in a store of a block that a group has: one more physical copy, unless the engine only repeats itself
// because a request asked it to.
func (s *source) storedAgain(t *tier, g *group, name uint64, slot int) {
	s.applied(1)
	if s.doubted > 0 && t.complete(g, name) {
		if ref, ok := s.store.Set(t.holder, chain.Ref(g.table.Place(slot))); ok { // it is true again
			g.table.Move(slot, uint64(ref))
		}
	}
	if s.recent != nil || s.reports.open() {
		hash, _ := s.store.HashAt(chain.Ref(g.table.Place(slot)))
		s.noteRecent(hash, name)
		if s.reports.has(hash) {
			s.stats.reported.Add(1)
			return
		}
	}
	g.table.Again(slot)
}

func (s *source) removed(e *wire.Event) {
	if !s.full(e) {
		return
	}
	t := s.tierOf(e.Medium, false)
	var g *group
	if t != nil {
		g = s.groupOf(t, e.Group, false)
	}
	for _, name := range e.Hashes {
		if g != nil {
			if slot, ok := g.table.Find(name); ok {
				s.applied(1)
				at := chain.Ref(g.table.Place(slot))
				if g.table.Less(slot) {
					s.vanished(t, name, at)
				}
				continue
			}
		}
		before := s.parked.blocks
		if s.parked.removed(name, e.Group, t) {
			s.stats.parked.Add(int64(s.parked.blocks - before))
		} else {
			s.stats.unknownRemovals.Add(1)
		}
	}
}

// vanished follows a group's loss of a block, whose name is no longer in the group's table.
func (s *source) vanished(t *tier, name uint64, at chain.Ref) {
	s.blocks--
	s.stats.blocks.Add(-1)
	if s.inTables(name) { // in another group or tier
		s.store.Move(t.holder, s.shadow, at)
		return
	}
	if !s.tiers.isGPU(t.weights) {
		if _, ok := s.ghosts.table.Get(name); ok {
			s.store.Move(t.holder, s.shadow, at)
		} else {
			s.store.Unset(at, t.holder, s.shadow)
		}
		return
	}
	s.store.Move(t.holder, s.shadow, at)
	if oldest, place, full := s.ghosts.push(name, at); full && !s.inTables(oldest) {
		s.store.Unset(place, s.shadow)
	}
}
