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
	local  int32 // its holder; where it has several, ^i for the best of them, number i in tiered
}

// tier is a local holder of a source that has several in a chain.
type tier struct {
	source uint32
	weight int32
	local  int32
	next   int32 // in tiered, of no more weight; -1 for none
	first  bool  // the one that was met first
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
		l.tiered = append(l.tiered, tier{source: in.source, weight: weight, local: first, next: -1, first: true})
		v.local = ^int32(len(l.tiered) - 1)
	}
	at := int32(len(l.tiered))
	l.tiered = append(l.tiered, tier{source: in.source, weight: in.weight, local: int32(local)})
	best := ^v.local
	if l.tiered[best].weight < in.weight {
		l.tiered[at].next = best
		v.local = ^at
		return
	}
	for before := best; ; before = l.tiered[before].next {
		if next := l.tiered[before].next; next < 0 || l.tiered[next].weight < in.weight {
			l.tiered[before].next, l.tiered[at].next = at, next
			return
		}
	}
}

// passTiers is pass for the sources that have the blocks of a chain in several tiers: of each block the best counts.
func (l *Lookup) passTiers(c *chain, n int) (any bool) {
	for i := range l.tiered {
		t := &l.tiered[i]
		if !t.first {
			continue
		}
		m := &l.Matches[t.source]
		blocks, weight := l.union(c, ^l.visits[t.source].local, n)
		m.Blocks += int32(blocks)
		m.Weight += weight
		any = any || blocks == n
	}
	return any
}

// union is how many of the first n positions of a chain are in some tier of a source without a gap, and their weight. Its
// tiers are linked from the best on.
func (l *Lookup) union(c *chain, best int32, n int) (blocks int, weight int32) {
	for blocks < n {
		run, worth := 0, int32(0)
		better := true // no tier that is worth more has anything from here on
		for i := best; i >= 0; i = l.tiered[i].next {
			t := &l.tiered[i]
			h := &c.locals[t.local]
			if prefix := min(int(h.prefix), n); blocks < prefix {
				if run, worth = 1, t.weight; better {
					run = prefix - blocks
				}
				break
			}
			if h.count == h.prefix { // nothing behind its first gap
				continue
			}
			if c.has(blocks, int(t.local)) {
				run, worth = 1, t.weight
				break
			}
			better = false
		}
		if run == 0 {
			break
		}
		blocks += run
		weight += int32(run) * worth
	}
	return blocks, weight
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
