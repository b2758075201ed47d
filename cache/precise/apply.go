package precise

import (
	"slices"

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
	switch {
	case len(e.Tokens) == 0 && e.BlockSize == 0:
		s.join(t, e.Group, e.Hashes)
		return
	case e.BlockSize <= 0 || len(e.Tokens)%n != 0 || len(e.Tokens)/n != e.BlockSize: // no product, which may overflow
		s.stats.uneven.Add(int64(n))
		return
	case e.BlockSize < t.size:
		s.mixed.Store(s.mixed.Load() || e.Group != t.sizedBy)
		s.stats.partial.Add(int64(n)) // a block that is not full yet, which nobody can reuse
		return
	}
	adapter := s.keys.adapter(e.LoRA)
	if adapter != 0 && !s.adapters.see(adapter) {
		s.stats.refused.Add(int64(n))
		return
	}
	if t.size != 0 && t.size != e.BlockSize && e.Group != t.sizedBy {
		s.mixed.Store(true)
	}
	s.sized(t, e.BlockSize)
	t.sizedBy = e.Group
	extra := s.extraOf(e)
	if extra == nil && !e.HasParent && s.salts.Load() && !s.tiers.isGPU(t.weights) {
		// vLLM's offload tiers leave the salt out: these may be another tenant's blocks. Those that are known by name have it.
		s.join(t, e.Group, e.Hashes)
		return
	}
	r := run{
		names: e.Hashes, parent: e.Parent, hasParent: e.HasParent, tokens: e.Tokens, blockSize: e.BlockSize,
		extra: extra, adapter: adapter, tier: t, group: e.Group,
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
			if len(e.Salt) > 0 || slices.ContainsFunc(e.Keys(0), func(it wire.Item) bool { return it.Kind == wire.ItemString }) {
				s.salts.Store(true)
			}
			extra = s.keys.salt(extra, e.Salt)
		}
		s.extra = append(s.extra, extra)
	}
	return s.extra
}

// join takes in a store that names blocks and says nothing else of them: each is where the source has it already.
func (s *source) join(t *tier, number int, names []uint64) {
	g := s.groupOf(t, number, false)
	for _, name := range names {
		if g != nil {
			if slot, ok := g.table.Find(name); ok {
				s.applied(1)
				if _, anew := s.believe(t, g, name, slot); !anew {
					g.table.Again(slot)
				}
				continue
			}
		}
		at, size, ok := s.find(name, t.size)
		if ok && g == nil { // a group is made for what it holds
			g = s.groupOf(t, number, true)
			ok = g != nil
		}
		if !ok {
			s.stats.unjoined.Add(1)
			continue
		}
		if t.size == 0 {
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
		waiting := s.parked.take(name, r.blockSize)
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
	if g == nil {
		s.stats.otherGroup.Add(int64(len(r.names)))
		return true
	}
	for i := 0; i < len(r.names); {
		name := r.names[i]
		if slot, known := g.table.Find(name); known {
			s.storedAgain(r.tier, g, name, slot)
			at = chain.Ref(g.table.Place(slot))
			var size int
			if hash, size = s.store.HashAt(at); size != r.blockSize { // the same name for something else
				s.stats.uneven.Add(int64(len(r.names) - i))
				break
			}
			i++
			continue
		}
		if found, _, known := s.find(name, r.blockSize); known {
			at = s.hold(r.tier, g, name, found)
			hash, _ = s.store.HashAt(at)
			i++
			continue
		}
		n := 1
		for i+n < len(r.names) && !s.knows(g, r.names[i+n], r.blockSize) {
			n++
		}
		if at, hash, ok = s.add(r, g, i, n, at, hash); !ok {
			break
		}
		i += n
	}
	return true
}

// knows reports whether placeOne must not take a block for a new one.
func (s *source) knows(g *group, name uint64, blockSize int) bool {
	for _, t := range s.held {
		for i := range t.groups {
			h := &t.groups[i]
			if place, ok := h.table.Get(name); ok && (h == g || s.sizeAt(place) == blockSize) {
				return true
			}
		}
	}
	place, ok := s.ghosts.table.Get(name)
	return ok && s.sizeAt(place) == blockSize
}

func (s *source) sizeAt(place uint64) int {
	_, size := s.store.HashAt(chain.Ref(place))
	return size
}

// parentOf is where a run begins: behind the place of its parent, whose hash it returns too. A block of another size does
// not do, even by the same name: an offloaded block may be called like the last of the smaller ones in it.
func (s *source) parentOf(r *run) (at chain.Ref, hash uint64, ok bool) {
	if !r.hasParent {
		return chain.NoRef, s.keys.root(r.blockSize, r.adapter), true
	}
	if at, _, ok = s.find(r.parent, r.blockSize); !ok {
		return 0, 0, false
	}
	hash, _ = s.store.HashAt(at)
	return at, hash, true
}

// maxAdded is how many blocks are put in at once: an event may have millions.
const maxAdded = 4096

// add puts n blocks of a run, from number i on, which the source does not have in any way, behind a place. It returns the
// last one's place.
func (s *source) add(r *run, g *group, i, n int, at chain.Ref, hash uint64) (_ chain.Ref, _ uint64, ok bool) {
	for end := i + n; i < end; i += maxAdded {
		if at, hash, ok = s.addSome(r, g, i, min(maxAdded, end-i), at, hash); !ok {
			return at, hash, false
		}
	}
	return at, hash, true
}

func (s *source) addSome(r *run, g *group, i, n int, at chain.Ref, hash uint64) (chain.Ref, uint64, bool) {
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
	taken := s.store.Insert(h, s.own(), parent, parentHash, r.blockSize, s.hashes, refs)
	for _, ref := range refs[:taken] {
		if ref.Owned() {
			s.aliases.name(ref)
		}
		if ref.Held() && h == r.tier.holder {
			s.aliases.hold(h, ref)
		}
	}
	for k := range taken {
		s.putNew(g, h, r.names[i+k], refs[k].Bare())
		s.noteRecent(s.hashes[k], r.names[i+k])
	}
	s.applied(taken)
	if taken < n {
		s.stats.refused.Add(int64(n - taken))
		return at, hash, false
	}
	return refs[n-1].Bare(), hash, true
}

// putNew is put for a block that the source did not have when its event began, and which a holder has now. The second of
// two of one name is given up again.
func (s *source) putNew(g *group, h chain.Holder, name uint64, at chain.Ref) {
	slot, ok := g.table.Find(name)
	if !ok {
		s.put(g, name, at)
		return
	}
	g.table.Again(slot)
	if h != s.shadow && !s.aliases.leave(h, at) {
		s.store.Move(h, s.shadow, at)
	}
	s.release(at)
}

// put adds a block to a group's table. A source that has as many blocks as it may, by itself or with the other ranks of its
// endpoint, loses another one for it: one that has so many has lost removals, and which of its blocks are stale nobody knows.
func (s *source) put(g *group, name uint64, at chain.Ref) {
	g.table.Add(name, uint64(at))
	s.blocks++
	s.stats.blocks.Add(1)
	together := s.ranks.blocks.Add(1)
	if s.blocks > s.limit || together > s.ranks.limit && s.blocks > 1 {
		s.evict(g, name)
	}
}

// evict takes some block out, of the same table as one just added where that has any other.
func (s *source) evict(added *group, besides uint64) {
	t, g := s.largest(added)
	// Anywhere: a table that is emptied from one end on would be crowded at the other.
	s.evictAt = s.evictAt*6364136223846793005 + 1442695040888963407
	slot, name, _ := g.table.After(int(s.evictAt >> 33))
	if g == added && name == besides {
		slot, name, _ = g.table.After(slot + 1)
	}
	at := chain.Ref(g.table.Place(slot))
	g.table.Drop(slot)
	s.vanished(t, g, name, at)
	s.stats.evicted.Add(1)
}

// largest is a table with more than one block, or with any but a given one: that one where it will do, else the largest.
func (s *source) largest(first *group) (t *tier, g *group) {
	most := 0
	for _, u := range s.held {
		for i := range u.groups {
			switch h := &u.groups[i]; {
			case h == first && h.table.Len() > 1:
				return u, h
			case h != first && h.table.Len() > most:
				t, g, most = u, h, h.table.Len()
			}
		}
	}
	return t, g
}

// hold makes a tier's group have a block that the source has elsewhere; it returns the block's place.
func (s *source) hold(t *tier, g *group, name uint64, at chain.Ref) chain.Ref {
	s.ghosts.take(name, at)
	if t.complete(g, name, at) {
		if ref, ok := s.store.Set(t.holder, at); ok {
			at = ref.Bare()
			if ref.Held() {
				s.aliases.hold(t.holder, at)
			}
		}
	} else if ref, ok := s.store.Set(s.shadow, at); ok {
		at = ref.Bare()
	}
	s.put(g, name, at)
	if s.recent != nil {
		hash, _ := s.store.HashAt(at)
		s.noteRecent(hash, name)
	}
	s.applied(1)
	return at
}

// complete reports whether all groups of a tier besides one have a block, at the same place.
func (t *tier) complete(besides *group, name uint64, at chain.Ref) bool {
	for i := range t.groups {
		if g := &t.groups[i]; g != besides {
			if place, ok := g.table.Get(name); !ok || chain.Ref(place).Place() != at.Place() {
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
	hash, anew := s.believe(t, g, name, slot)
	if hash != 0 && s.reports.has(hash) {
		s.stats.reported.Add(1)
		return
	}
	if !anew {
		g.table.Again(slot)
	}
}

// believe takes in that an engine has a block which a group has. One that was doubted is there anew, in one copy: all that
// was counted before had gone unheard. The block's hash is told only where somebody may ask for it, else it is 0.
func (s *source) believe(t *tier, g *group, name uint64, slot int) (hash uint64, anew bool) {
	at := chain.Ref(g.table.Place(slot))
	if s.doubted > 0 && t.complete(g, name, at) {
		if ref, ok := s.store.Set(t.holder, at); ok {
			g.table.Move(slot, uint64(ref.Bare()))
			if anew = !ref.Held(); anew {
				g.table.Settle(slot)
			}
		}
	}
	if s.recent == nil && !s.reports.open() {
		return 0, anew
	}
	hash, _ = s.store.HashAt(at)
	s.noteRecent(hash, name)
	return hash, anew
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
					s.unroute(t, at)
					s.vanished(t, g, name, at)
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

// unroute ends the speculation that a block is on the engine's GPU, where the engine itself says that it is not any more.
func (s *source) unroute(t *tier, at chain.Ref) {
	if s.tiers.isGPU(t.weights) && s.routed.any.Load() {
		hash, _ := s.store.HashAt(at)
		s.hashes = append(s.hashes[:0], hash)
		s.routed.drop(s.hashes)
	}
}

// vanished follows a group's loss of a block, whose name is no longer in the group's table.
func (s *source) vanished(t *tier, g *group, name uint64, at chain.Ref) {
	s.blocks--
	s.stats.blocks.Add(-1)
	s.ranks.blocks.Add(-1)
	if t.complete(g, name, at) && !s.aliases.leave(t.holder, at) {
		s.store.Move(t.holder, s.shadow, at)
	}
	if s.inTables(name, at) {
		return
	}
	if !s.tiers.isGPU(t.weights) {
		s.release(at)
		return
	}
	if place, lost := s.ghosts.push(name, at); lost {
		s.release(place)
	}
}

// release lets go of a place that a name of the source's has stood for, unless another one does.
func (s *source) release(at chain.Ref) {
	if !s.aliases.unname(at) && s.store.Unset(at, s.own()...) {
		s.hollow++
	}
}
