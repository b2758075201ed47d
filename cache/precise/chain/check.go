package chain

import "fmt"

// Check reports where the index's counters differ from what is there, or a block is in two places. It reads everything
// and is for tests and for finding faults; nothing must change meanwhile.
func (s *Store) Check() error {
	var want Sizes
	seen := map[uint64]bool{}
	kids := map[uint32]int32{}
	for i := range s.shards {
		sh := &s.shards[i]
		for index, c := range sh.chains {
			if c == nil {
				continue
			}
			if at, ok := sh.find(c.hashes[0]); !ok || at != uint32(index) {
				return fmt.Errorf("chain %d of shard %d is not found by its head", index, i)
			}
			want.Chains++
			if c.parent != noChain {
				kids[c.parent]++
			}
			if err := c.check(seen, &want); err != nil {
				return err
			}
		}
		for _, c := range sh.spare {
			want.Bytes += c.bytes()
		}
		want.Bytes += sh.heads.Bytes() + 12*cap(sh.chains)
	}
	for i := range s.shards {
		for index, c := range s.shards[i].chains {
			if id := uint32(i)<<indexBits | uint32(index); c != nil && c.kids != kids[id] {
				return fmt.Errorf("chain %d of shard %d has %d children, counted %d", index, i, kids[id], c.kids)
			}
		}
	}
	if got := s.Sizes(); got != want {
		return fmt.Errorf("sizes are %+v, counted %+v", want, got)
	}
	return nil
}

// check is Check for one chain; what it has is added to want.
func (c *chain) check(seen map[uint64]bool, want *Sizes) error {
	want.Positions += len(c.hashes)
	want.Bytes += c.bytes()
	counts := make([]localHolder, len(c.locals))
	for p, hash := range c.hashes {
		if seen[hash] {
			return fmt.Errorf("block %x is in two places", hash)
		}
		seen[hash] = true
		for local := range c.locals {
			if c.has(p, local) {
				want.Bits++
				counts[local].count++
				if int(counts[local].prefix) == p {
					counts[local].prefix++
				}
			}
		}
	}
	for local, n := range counts {
		l := c.locals[local]
		if n.count != l.count || n.prefix != l.prefix || (n.count == 0) != (l.holder == noHolder) {
			return fmt.Errorf("holder %d has %+v of a chain, counted %+v", l.holder, n, l)
		}
	}
	return nil
}

// Holds reports whether a holder has the block at a place, also where the place is gone or another chain's by now.
func (s *Store) Holds(h Holder, at Ref) bool {
	sh, index := s.at(at.chain())
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if int(index) >= len(sh.chains) {
		return false
	}
	c := sh.chains[index]
	if c == nil || at.pos() >= len(c.hashes) {
		return false
	}
	local := c.find(h, at.local())
	return local >= 0 && c.has(at.pos(), local)
}
