package precise

import "slices"

// defaultParked bounds what one source parks, blocks whose parent it has not heard of yet, where nothing else is configured.
// parkedTokens bounds the tokens of those blocks, for each block that may be parked.
const (
	defaultParked = 2048
	parkedTokens  = 64
)

// run is a stretch of blocks that follow one another, as one event has them.
type run struct {
	names     []uint64 // the engine's
	parent    uint64
	hasParent bool
	tokens    []uint32
	blockSize int
	extra     []uint64 // by block, 0 for none; nil: none at all
	adapter   uint64   // see keys.adapter
	tier      *tier
	group     int
}

func (r *run) extraOf(block int) uint64 {
	if r.extra == nil {
		return 0
	}
	return r.extra[block]
}

// parked holds the runs whose parent is unknown, by that parent, oldest first. A run stays as it is announced: its blocks'
// hashes depend on all tokens before them and cannot be guessed.
type parked struct {
	limit    int // blocks
	byParent map[uint64][]*run
	byName   map[uint64]*run // every block of every run
	order    []*run          // oldest first; a run without names was taken
	runs     int             // in order, those that were taken left out
	blocks   int
	tokens   int
}

// add parks a copy of a run, and reports how many blocks had to go for it.
func (p *parked) add(r *run) (dropped int) {
	if len(r.names) > p.limit || len(r.tokens) > parkedTokens*p.limit {
		return len(r.names)
	}
	if p.byName == nil {
		p.byParent, p.byName = make(map[uint64][]*run), make(map[uint64]*run)
	}
	for _, name := range r.names { // an engine may repeat itself
		if p.byName[name] != nil {
			return 0
		}
	}
	for len(p.order) > 0 && (p.blocks+len(r.names) > p.limit || p.tokens+len(r.tokens) > parkedTokens*p.limit) {
		oldest := p.order[0]
		p.order = p.order[1:]
		if oldest.names != nil {
			dropped += len(oldest.names)
			p.unlink(oldest)
		}
	}
	c := *r
	c.names = append([]uint64(nil), r.names...)
	c.tokens = append([]uint32(nil), r.tokens...)
	if r.extra != nil {
		c.extra = append([]uint64(nil), r.extra...)
	}
	for i, name := range c.names {
		if p.byName[name] != nil { // one name for two blocks of a run, which no engine means
			for _, known := range c.names[:i] {
				delete(p.byName, known)
			}
			return dropped + len(c.names)
		}
		p.byName[name] = &c
	}
	p.byParent[c.parent] = append(p.byParent[c.parent], &c)
	p.order = append(p.order, &c)
	p.runs++
	p.blocks += len(c.names)
	p.tokens += len(c.tokens)
	return dropped
}

// unlink makes a run's blocks unknown; what is left of it has no names.
func (p *parked) unlink(r *run) {
	for _, name := range r.names {
		delete(p.byName, name)
	}
	siblings := p.byParent[r.parent]
	for i, s := range siblings {
		if s == r {
			siblings = append(siblings[:i], siblings[i+1:]...)
			break
		}
	}
	if len(siblings) == 0 {
		delete(p.byParent, r.parent)
	} else {
		p.byParent[r.parent] = siblings
	}
	p.blocks -= len(r.names)
	p.tokens -= len(r.tokens)
	p.runs--
	r.names = nil
}

// compact lets go of the runs that were taken, once they are more than those that were not.
func (p *parked) compact() {
	if len(p.order) <= 2*p.runs {
		return
	}
	kept := p.order[:0]
	for _, r := range p.order {
		if r.names != nil {
			kept = append(kept, r)
		}
	}
	clear(p.order[len(kept):])
	p.order = kept
}

// take takes out the runs that wait for a block of a size in tokens. Those of other sizes cannot follow it.
func (p *parked) take(name uint64, blockSize int) (taken []*run) {
	for i := 0; i < len(p.byParent[name]); {
		r := p.byParent[name][i]
		if r.blockSize != blockSize {
			i++
			continue
		}
		c := *r
		taken = append(taken, &c)
		p.unlink(r)
	}
	if taken != nil {
		p.compact()
	}
	return taken
}

// removed says that the engine removed a block: what follows it cannot be reached any more. It reports whether the block
// was parked.
func (p *parked) removed(name uint64, group int, t *tier) bool {
	r := p.byName[name]
	if r == nil || r.group != group || r.tier != t {
		return false
	}
	i := slices.Index(r.names, name)
	if i == 0 {
		p.unlink(r)
		p.compact()
		return true
	}
	for _, gone := range r.names[i:] {
		delete(p.byName, gone)
	}
	p.blocks -= len(r.names) - i
	p.tokens -= len(r.tokens) - i*r.blockSize
	r.names, r.tokens = r.names[:i], r.tokens[:i*r.blockSize]
	if cap(r.tokens) > 2*len(r.tokens) { // what was dropped is free, sooner or later
		r.names, r.tokens = slices.Clone(r.names), slices.Clone(r.tokens)
	}
	return true
}

func (p *parked) clear() { *p = parked{limit: p.limit} }
