package chain

import (
	"slices"
	"unsafe"
)

const wordBits = 64

// noHolder marks a free local bit.
const noHolder = ^Holder(0)

// noChain is the parent of a chain that begins a prompt.
const noChain = ^uint32(0)

// chain is a run of blocks of which each follows the one before.
type chain struct {
	hashes []uint64
	locals []localHolder

	// words are the sets of local holders, stride words a position.
	words  []uint64
	stride int

	parent    uint32 // the chain that this one leaves
	blockSize int32  // tokens
	// kids is the number of chains that leave this one, and lastKid the last position that one has ever left from.
	// Positions up to there stay, as they are where a child is found to follow.
	kids    int32
	lastKid int32
}

// localHolder is a holder in a chain, noHolder where the bit is free, and how much it has.
type localHolder struct {
	holder Holder
	count  uint16 // positions in all
	// prefix is the number of positions that it has from the first one on without a gap: all that a look-up asks for.
	prefix uint16
}

const chainBytes = int(unsafe.Sizeof(chain{}))

func (c *chain) bytes() int {
	return chainBytes + 8*(cap(c.hashes)+cap(c.words)) + 8*cap(c.locals)
}

// localOf is the local bit of a holder, given where it has none; -1 where the chain has no room for one more. hint is a
// guess.
func (c *chain) localOf(h Holder, hint int) int {
	if hint < len(c.locals) && c.locals[hint].holder == h {
		return hint
	}
	free := -1
	for i := range c.locals {
		switch c.locals[i].holder {
		case h:
			return i
		case noHolder:
			if free < 0 {
				free = i
			}
		}
	}
	if free >= 0 {
		c.locals[free].holder = h
		return free
	}
	if len(c.locals) == maxHolders {
		return -1
	}
	c.locals = append(c.locals, localHolder{holder: h})
	if len(c.locals) > c.stride*wordBits {
		c.widen()
	}
	return len(c.locals) - 1
}

// find is the local bit of a holder, -1 where it holds nothing of the chain.
func (c *chain) find(h Holder, hint int) int {
	if hint < len(c.locals) && c.locals[hint].holder == h {
		return hint
	}
	return slices.IndexFunc(c.locals, func(l localHolder) bool { return l.holder == h })
}

// mark marks as owned those of the positions from pos on that a holder has.
func (c *chain) mark(refs []Ref, pos int, h Holder) {
	if len(refs) == 0 {
		return
	}
	local := c.find(h, 0)
	if local < 0 {
		return
	}
	for i := range refs {
		if c.has(pos+i, local) {
			refs[i] = owned
		}
	}
}

// widen makes room for 64 more local holders.
func (c *chain) widen() {
	stride := c.stride + 1
	words := make([]uint64, len(c.hashes)*stride, cap(c.hashes)*stride)
	for p := range c.hashes {
		copy(words[p*stride:], c.words[p*c.stride:(p+1)*c.stride])
	}
	c.words, c.stride = words, stride
}

// grow appends positions that nobody holds yet.
func (c *chain) grow(hashes []uint64) {
	c.hashes = append(c.hashes, hashes...)
	n := len(c.hashes) * c.stride
	if cap(c.words) < n {
		c.words = slices.Grow(c.words, n-len(c.words))
	}
	had := len(c.words)
	c.words = c.words[:n]
	clear(c.words[had:])
}

// has reports whether a local holder holds a position.
func (c *chain) has(pos, local int) bool {
	return c.words[pos*c.stride+local/wordBits]&(1<<(local%wordBits)) != 0
}

// set makes a local holder hold a position; it reports whether it did not before.
func (c *chain) set(pos, local int) bool {
	w := &c.words[pos*c.stride+local/wordBits]
	bit := uint64(1) << (local % wordBits)
	if *w&bit != 0 {
		return false
	}
	*w |= bit
	l := &c.locals[local]
	l.count++
	if int(l.prefix) == pos {
		for pos++; pos < len(c.hashes) && c.has(pos, local); pos++ {
		}
		l.prefix = uint16(pos)
	}
	return true
}

// unset is the opposite of set. A holder that holds nothing any more gives its local bit back.
func (c *chain) unset(pos, local int) bool {
	w := &c.words[pos*c.stride+local/wordBits]
	bit := uint64(1) << (local % wordBits)
	if *w&bit == 0 {
		return false
	}
	*w &^= bit
	l := &c.locals[local]
	l.prefix = min(l.prefix, uint16(pos))
	if l.count--; l.count == 0 {
		l.holder = noHolder
	}
	return true
}

func (c *chain) held(pos int) bool {
	for _, w := range c.words[pos*c.stride : (pos+1)*c.stride] {
		if w != 0 {
			return true
		}
	}
	return false
}

// trim drops the last positions as far as nobody holds them and nothing follows from them.
func (c *chain) trim() {
	n := len(c.hashes)
	keep := 0
	if c.kids > 0 {
		keep = int(c.lastKid) + 1
	}
	for n > keep && !c.held(n-1) {
		n--
	}
	c.hashes, c.words = c.hashes[:n], c.words[:n*c.stride]
}

// extends reports whether a block may be appended after position pos: it is the last one, and no chain leaves from it.
func (c *chain) extends(pos int) bool {
	return pos+1 == len(c.hashes) && pos+1 < maxLength && (c.kids == 0 || int(c.lastKid) < pos)
}
