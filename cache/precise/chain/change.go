package chain

// Insert makes a holder hold a run of blocks that follow one another and the block at parent, whose hash is parentHash;
// NoRef for the first block of a prompt. The places go to refs, which is as long as hashes, marked where the block was
// there already by the holder (Held) or by it or one of its owner's others (Owned). It returns how many blocks were taken:
// fewer than all where an absolute bound was reached, or where the parent is not there (any more).
func (s *Store) Insert(h Holder, others []Holder, parent Ref, parentHash uint64, blockSize int, hashes []uint64, refs []Ref) int {
	done := 0
	for last := parent; done < len(hashes); {
		n, left, ok := 0, noChain, true // left is the chain that the rest leaves
		if last != NoRef {
			n, left, ok = s.continueChain(h, others, last, parentHash, hashes[done:], refs[done:])
		}
		if done += n; done == len(hashes) || !ok {
			break
		}
		if n = s.enterChain(h, others, left, blockSize, hashes[done:], refs[done:]); n == 0 {
			break
		}
		done += n
		last, parentHash = refs[done-1], hashes[done-1]
	}
	return done
}

// continueChain holds what follows parent in its own chain, and appends to it where it may. Where blocks remain, the
// chain counts one more that leaves it; ok is false where it has no room for the holder, or is not there any more.
func (s *Store) continueChain(h Holder, others []Holder, parent Ref, parentHash uint64, hashes []uint64, refs []Ref) (done int, left uint32, ok bool) {
	id := parent.chain()
	sh, index := s.at(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, pos := sh.chains[index], parent.pos()
	if c == nil || pos >= len(c.hashes) || c.hashes[pos] != parentHash {
		return 0, noChain, false
	}
	if c.extends(pos) || (pos+1 < len(c.hashes) && c.hashes[pos+1] == hashes[0]) {
		if done = sh.hold(c, id, h, others, parent.local(), pos+1, hashes, refs); done == 0 {
			return 0, noChain, false
		}
		pos += done
	}
	if done < len(hashes) {
		c.kids++
		c.lastKid = max(c.lastKid, int32(pos))
	}
	return done, id, true
}

// enterChain holds the chain that begins with hashes[0], which leaves another one; it is made where there is none. It
// returns 0 where there is no room.
func (s *Store) enterChain(h Holder, others []Holder, parent uint32, blockSize int, hashes []uint64, refs []Ref) (done int) {
	sh := s.shardOf(hashes[0])
	sh.mu.Lock()
	index, known := sh.find(hashes[0])
	if !known {
		var ok bool
		if index, ok = sh.make(parent, blockSize, hashes[:1]); !ok {
			sh.mu.Unlock()
			s.leave(parent)
			return 0
		}
	}
	id := uint32(hashes[0]>>(64-shardBits))<<indexBits | index
	done = sh.hold(sh.chains[index], id, h, others, 0, 0, hashes, refs)
	sh.mu.Unlock()
	if known { // its parent has counted it already
		s.leave(parent)
	}
	return done
}

// leave undoes the counting of a child.
func (s *Store) leave(id uint32) {
	for id != noChain {
		sh, index := s.at(id)
		sh.mu.Lock()
		c := sh.chains[index]
		c.kids--
		if c.kids == 0 {
			c.lastKid = -1
		}
		id = sh.drop(c, index, noChain)
		sh.mu.Unlock()
	}
}

// matching is how many of the first hashes of two runs are equal.
func matching(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i, x := range a {
		if x != b[i] {
			return i
		}
	}
	return n
}

// find is the index of the chain that begins with a hash.
func (sh *shard) find(head uint64) (index uint32, ok bool) {
	at, ok := sh.heads.Get(head)
	return uint32(at), ok
}

// make returns the index of a new chain of one block.
func (sh *shard) make(parent uint32, blockSize int, head []uint64) (index uint32, ok bool) {
	var c *chain
	if n := len(sh.spare); n > 0 {
		c = sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
	} else {
		c = &chain{stride: 1}
		sh.sizes.Bytes += c.bytes()
	}
	if n := len(sh.unused); n > 0 {
		index = sh.unused[n-1]
		sh.unused = sh.unused[:n-1]
		sh.chains[index] = c
	} else if len(sh.chains) < maxChains {
		index = uint32(len(sh.chains))
		sh.chains = append(sh.chains, c)
	} else {
		sh.sizes.Bytes -= c.bytes()
		return 0, false
	}
	c.parent, c.blockSize, c.lastKid = parent, int32(blockSize), -1
	had := c.bytes()
	c.grow(head)
	sh.sizes.Bytes += c.bytes() - had
	sh.heads.Add(head[0], uint64(index))
	sh.sizes.Chains++
	sh.sizes.Positions++
	return index, true
}

// hold makes a holder hold the positions from pos on as far as they are hashes, the first of which must be so or may be
// appended, and appends the rest where that is allowed. It returns how many it holds then: 0 where the chain has no room
// for one more holder, which a new one always has.
func (sh *shard) hold(c *chain, id uint32, h Holder, others []Holder, hint, pos int, hashes []uint64, refs []Ref) int {
	had := c.bytes()
	local := c.localOf(h, hint)
	if local < 0 {
		return 0
	}
	n := matching(c.hashes[pos:], hashes)
	clear(refs[:n])
	for _, o := range others {
		c.mark(refs[:n], pos, o)
	}
	if n < len(hashes) && pos+n == len(c.hashes) && c.extends(pos+n-1) {
		more := min(len(hashes), maxLength-pos)
		sh.sizes.Positions += more - n
		c.grow(hashes[n:more])
		clear(refs[n:more])
		n = more
	}
	for i := range n {
		if c.set(pos+i, local) {
			sh.sizes.Bits++
		} else {
			refs[i] = held | owned
		}
		refs[i] |= newRef(id, pos+i, local)
	}
	sh.sizes.Bytes += c.bytes() - had
	return n
}

// Set makes a holder hold the block at a place that the caller keeps, and returns the place with the holder's bit, marked
// where the holder had the block before (Held); ok is false where the chain has no room for one more holder.
func (s *Store) Set(h Holder, at Ref) (ref Ref, ok bool) {
	sh, index := s.at(at.chain())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.chains[index]
	had := c.bytes()
	local := c.localOf(h, at.local())
	if local < 0 {
		return at, false
	}
	ref = newRef(at.chain(), at.pos(), local)
	if c.set(at.pos(), local) {
		sh.sizes.Bits++
	} else {
		ref |= held
	}
	sh.sizes.Bytes += c.bytes() - had
	return ref, true
}

// Move takes the block at a place from one holder and gives it to another of the same owner.
func (s *Store) Move(from, to Holder, at Ref) (ref Ref, ok bool) {
	sh, index := s.at(at.chain())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.chains[index]
	had := c.bytes()
	local := c.localOf(to, 0)
	if local < 0 {
		return at, false
	}
	if c.set(at.pos(), local) {
		sh.sizes.Bits++
	}
	if old := c.find(from, at.local()); old >= 0 && c.unset(at.pos(), old) {
		sh.sizes.Bits--
	}
	sh.sizes.Bytes += c.bytes() - had
	return newRef(at.chain(), at.pos(), local), true
}

// Unset makes some holders of one owner not hold the block at a place any more. The place may be gone then, unless
// another holder keeps it, or stay although nobody does (hollow): for the places that follow it. Where it is gone already,
// nothing happens.
func (s *Store) Unset(at Ref, holders ...Holder) (hollow bool) {
	sh, index := s.at(at.chain())
	sh.mu.Lock()
	c := sh.chains[index]
	if c == nil || at.pos() >= len(c.hashes) {
		sh.mu.Unlock()
		return false
	}
	changed := false
	for _, h := range holders {
		if local := c.find(h, at.local()); local >= 0 && c.unset(at.pos(), local) {
			sh.sizes.Bits--
			changed = true
		}
	}
	parent := noChain
	if changed {
		parent = sh.drop(c, index, noChain)
		hollow = at.pos() < len(c.hashes) && !c.held(at.pos())
	}
	sh.mu.Unlock()
	s.leave(parent)
	return hollow
}

// drop frees what nobody holds at the end of a chain, and the chain itself where nothing is left: then it returns the
// chain that it left, else otherwise.
func (sh *shard) drop(c *chain, index uint32, otherwise uint32) (parent uint32) {
	head, n := c.hashes[0], len(c.hashes)
	c.trim()
	sh.sizes.Positions -= n - len(c.hashes)
	if len(c.hashes) > 0 {
		return otherwise
	}
	if slot, ok := sh.heads.Find(head); ok {
		sh.heads.Drop(slot)
	}
	sh.chains[index] = nil
	sh.unused = append(sh.unused, index)
	sh.sizes.Chains--
	parent = c.parent
	if len(sh.spare) < maxSpare && c.bytes() <= maxSpareBytes {
		c.locals = c.locals[:0]
		sh.spare = append(sh.spare, c)
	} else {
		sh.sizes.Bytes -= c.bytes()
	}
	return parent
}

// The bounds of the chains that a shard keeps for use again: what most prompts need.
const (
	maxSpare      = 16
	maxSpareBytes = 4096
)

// HashAt is the chained hash of the block at a place that the caller keeps, and the size of its blocks in tokens.
func (s *Store) HashAt(at Ref) (hash uint64, blockSize int) {
	sh, index := s.at(at.chain())
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	c := sh.chains[index]
	return c.hashes[at.pos()], int(c.blockSize)
}
