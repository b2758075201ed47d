package chain

// Match is what one source was found to hold of a prompt.
type Match struct {
	// Blocks is the number of blocks that it holds from the prompt's head on without a gap.
	Blocks int32
	// Weight is the sum of these blocks' weights, of each the best, in thousandths of a block.
	Weight int32
}

// Lookup is the memory of look-ups; it may be used again and again, by one goroutine at a time.
type Lookup struct {
	// Matches is the result, by source; sources beyond its end hold nothing.
	Matches []Match

	visits []visit // by source: the last chain that it was met in
	number uint32  // of the present chain; grows from one to the next, also across look-ups
	tiered []tier  // local holders of sources that have several in the present chain
}

// visit is what a source has of the chain with a number.
type visit struct {
	number uint32
	local  int32 // its holder; -1 where it has several, which are in tiered
}

// tier is a local holder of a source that has several in a chain.
type tier struct {
	source uint32
	weight int32
	local  int32
}

// Run looks a prompt up, given as the chained hashes of its whole blocks, for sources 0 to sources-1.
func (l *Lookup) Run(s *Store, hashes []uint64, sources int) {
	l.reset(sources)
	infos := *s.infos.Load()
	for done := 0; done < len(hashes); {
		sh := s.shardOf(hashes[done])
		sh.mu.RLock()
		index, ok := sh.find(hashes[done])
		if !ok {
			sh.mu.RUnlock()
			return
		}
		c := sh.chains[index]
		n := matching(c.hashes, hashes[done:])
		any := l.pass(c, infos, done, n)
		sh.mu.RUnlock()
		if !any {
			return
		}
		done += n
	}
}

func (l *Lookup) reset(sources int) {
	if cap(l.Matches) < sources {
		l.Matches = make([]Match, sources)
		l.visits = make([]visit, sources)
	}
	l.Matches = l.Matches[:sources]
	l.visits = l.visits[:sources]
	clear(l.Matches)
}

// pass adds n positions of a chain, before which done blocks were passed, to the matches of the sources that hold them;
// it reports whether any source holds them all.
func (l *Lookup) pass(c *chain, infos []info, done, n int) (any bool) {
	if l.number++; l.number == 0 { // after 4 billion chains the numbers begin again
		clear(l.visits[:cap(l.visits)])
		l.number = 1
	}
	l.tiered = l.tiered[:0]
	for local := range c.locals {
		lh := &c.locals[local]
		if int(lh.holder) >= len(infos) { // noHolder too
			continue
		}
		in := infos[lh.holder]
		if int(in.source) >= len(l.Matches) {
			continue
		}
		m, v := &l.Matches[in.source], &l.visits[in.source]
		if v.number == l.number {
			l.meetAgain(c, infos, in, local, n)
			continue
		}
		if int(m.Blocks) != done {
			continue
		}
		*v = visit{l.number, int32(local)}
		blocks := min(int(lh.prefix), n)
		m.Blocks += int32(blocks)
		m.Weight += int32(blocks) * in.weight
		any = any || blocks == n
	}
	if len(l.tiered) > 0 && l.passTiers(c, n) {
		any = true
	}
	return any
}

// meetAgain notes one more local holder of a source that was met in a chain: what the first one added is taken back, for
// passTiers to count them together.
func (l *Lookup) meetAgain(c *chain, infos []info, in info, local, n int) {
	v := &l.visits[in.source]
	if first := v.local; first >= 0 {
		weight := infos[c.locals[first].holder].weight
		blocks := int32(min(int(c.locals[first].prefix), n))
		m := &l.Matches[in.source]
		m.Blocks -= blocks
		m.Weight -= blocks * weight
		l.tiered = append(l.tiered, tier{in.source, weight, first})
		v.local = -1
	}
	l.tiered = append(l.tiered, tier{in.source, in.weight, int32(local)})
}

// passTiers is pass for the sources that have the blocks of a chain in several tiers: of each block the best counts.
func (l *Lookup) passTiers(c *chain, n int) (any bool) {
	for i := range l.tiered {
		t := &l.tiered[i]
		if t.local < 0 {
			continue // passed with an earlier one
		}
		blocks, weight := 0, int32(0)
		for ; blocks < n; blocks++ {
			best := l.best(c, i, blocks)
			if best < 0 {
				break
			}
			weight += best
		}
		m := &l.Matches[t.source]
		m.Blocks += int32(blocks)
		m.Weight += weight
		any = any || blocks == n
		for j := i + 1; j < len(l.tiered); j++ {
			if l.tiered[j].source == t.source {
				l.tiered[j].local = -1
			}
		}
	}
	return any
}

// best is the largest weight of the tiers, from number first on, that a source has a block in; negative where it has it
// in none.
func (l *Lookup) best(c *chain, first, pos int) int32 {
	best := int32(-1)
	source := l.tiered[first].source
	for _, t := range l.tiered[first:] {
		if t.source == source && c.has(pos, int(t.local)) {
			best = max(best, t.weight)
		}
	}
	return best
}

// Demote takes the blocks of a prompt from number first on away from some holders of an owner and gives them to another,
// as far as the prompt is known and keep does not say otherwise. It returns how many were taken.
func (s *Store) Demote(hashes []uint64, first int, from []Holder, to Holder, keep func(hash uint64) bool) (taken int) {
	for done := 0; done < len(hashes); {
		sh := s.shardOf(hashes[done])
		sh.mu.Lock()
		index, ok := sh.find(hashes[done])
		if !ok {
			sh.mu.Unlock()
			return taken
		}
		c := sh.chains[index]
		had := c.bytes()
		n := matching(c.hashes, hashes[done:])
		for p := max(0, first-done); p < n; p++ {
			if !keep(c.hashes[p]) && sh.demote(c, p, from, to) {
				taken++
			}
		}
		sh.sizes.Bytes += c.bytes() - had
		sh.mu.Unlock()
		done += n
	}
	return taken
}

func (sh *shard) demote(c *chain, pos int, from []Holder, to Holder) (taken bool) {
	for _, h := range from {
		old := c.find(h, 0)
		if old < 0 || !c.has(pos, old) {
			continue
		}
		local := c.localOf(to, 0)
		if local < 0 {
			return taken
		}
		if c.set(pos, local) {
			sh.sizes.Bits++
		}
		c.unset(pos, old)
		sh.sizes.Bits--
		taken = true
	}
	return taken
}

// Find is the place of the last block of a prompt where the index has a place for each of its blocks, whoever holds them.
// It may be gone at any time: only Insert may be told of it.
func (s *Store) Find(hashes []uint64) (last Ref, ok bool) {
	for done := 0; done < len(hashes); {
		sh := s.shardOf(hashes[done])
		sh.mu.RLock()
		index, found := sh.find(hashes[done])
		if !found {
			sh.mu.RUnlock()
			return NoRef, false
		}
		n := matching(sh.chains[index].hashes, hashes[done:])
		sh.mu.RUnlock()
		id := uint32(hashes[done]>>(64-shardBits))<<indexBits | index
		done += n
		last = newRef(id, n-1, 0)
	}
	return last, len(hashes) > 0
}
