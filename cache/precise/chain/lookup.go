package chain

import "math/bits"

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

	alive  []uint64 // local holders of the present chain whose source holds all blocks before
	locals []int32  // by source: its local holder in the present chain, plus one, if several the last one found
	seen   []uint32 // sources that have an entry in locals
	tiered []tier   // local holders of sources that have several in the present chain
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
		index, ok := sh.heads[hashes[done]]
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
		l.locals = make([]int32, sources)
	}
	l.Matches = l.Matches[:sources]
	l.locals = l.locals[:sources]
	clear(l.Matches)
}

// pass adds n positions of a chain, before which done blocks were passed, to the matches of the sources that hold them;
// it reports whether any source holds them all.
func (l *Lookup) pass(c *chain, infos []info, done, n int) (any bool) {
	if cap(l.alive) < c.stride {
		l.alive = make([]uint64, c.stride)
	}
	l.alive = l.alive[:c.stride]
	clear(l.alive)
	l.enter(c, infos, done)
	count := 0
	for _, w := range l.alive {
		count += bits.OnesCount64(w)
	}
	if count > 0 && l.narrow(c, infos, n, count) {
		any = true
	}
	if len(l.tiered) > 0 && l.passTiers(c, n) {
		any = true
	}
	return any
}

// enter finds the local holders whose sources hold all blocks so far.
func (l *Lookup) enter(c *chain, infos []info, done int) {
	l.tiered, l.seen = l.tiered[:0], l.seen[:0]
	for i, h := range c.holders {
		if int(h) >= len(infos) { // noHolder too
			continue
		}
		in := infos[h]
		if int(in.source) >= len(l.Matches) || int(l.Matches[in.source].Blocks) != done {
			continue
		}
		switch before := l.locals[in.source]; {
		case before == 0:
			l.locals[in.source] = int32(i) + 1
			l.seen = append(l.seen, in.source)
			l.alive[i/wordBits] |= 1 << (i % wordBits)
		default:
			if before > 0 {
				first := before - 1
				l.alive[first/wordBits] &^= 1 << (first % wordBits)
				l.tiered = append(l.tiered, tier{in.source, infos[c.holders[first]].weight, first})
				l.locals[in.source] = -1
			}
			l.tiered = append(l.tiered, tier{in.source, in.weight, int32(i)})
		}
	}
	for _, source := range l.seen {
		l.locals[source] = 0
	}
}

// narrow drops the sources in alive, count of them, at the first position that each lacks; it reports whether any holds
// all n positions.
func (l *Lookup) narrow(c *chain, infos []info, n, count int) bool {
	if c.stride == 1 {
		alive := l.alive[0]
		for p, w := range c.words[:n] {
			if gone := alive &^ w; gone != 0 {
				l.tell(c, infos, 0, gone, p)
				if alive &= w; alive == 0 {
					return false
				}
			}
		}
		l.tell(c, infos, 0, alive, n)
		return true
	}
	stride := c.stride
	alive := l.alive
	for p := range n {
		words := c.words[p*stride : p*stride+stride : p*stride+stride]
		for k, a := range alive {
			if gone := a &^ words[k]; gone != 0 {
				alive[k] = a &^ gone
				l.tell(c, infos, k, gone, p)
				if count -= bits.OnesCount64(gone); count == 0 {
					return false
				}
			}
		}
	}
	for k, a := range alive {
		l.tell(c, infos, k, a, n)
	}
	return true
}

// tell adds blocks to the matches of the sources of a word of local holders.
func (l *Lookup) tell(c *chain, infos []info, word int, set uint64, blocks int) {
	for ; set != 0; set &= set - 1 {
		in := infos[c.holders[word*wordBits+bits.TrailingZeros64(set)]]
		m := &l.Matches[in.source]
		m.Blocks += int32(blocks)
		m.Weight += int32(blocks) * in.weight
	}
}

// passTiers is narrow for the sources that have the blocks of a chain in several tiers: of each block the best counts.
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
	words := c.words[pos*c.stride:]
	for _, t := range l.tiered[first:] {
		if t.source == source && words[t.local/wordBits]&(1<<(t.local%wordBits)) != 0 {
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
		index, ok := sh.heads[hashes[done]]
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
		if old < 0 || c.words[pos*c.stride+old/wordBits]&(1<<(old%wordBits)) == 0 {
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
