package sim

// tier is the offload tier in the CPU's memory, as vLLM's OffloadingConnector keeps one: whole
// blocks by their hash, each once, the least recently used evicted first. A block whose copy is
// under way takes its place already, but is neither found nor evicted.
type tier struct {
	nodes []node // the first one is the sentinel of the list of use, longest unused first
	free  []int32
	index map[uint64]int32
	ready int    // nodes whose copy is complete
	epoch uint32 // of the latest store
}

type node struct {
	hash       uint64
	prev, next int32
	ready      bool
	kept       uint32 // the epoch of the store that must not evict it
}

func newTier(n int) *tier {
	t := &tier{nodes: make([]node, n+1), index: make(map[uint64]int32)}
	t.reset()
	return t
}

func (t *tier) capacity() int { return len(t.nodes) - 1 }

// reset forgets everything, copies under way included.
func (t *tier) reset() {
	clear(t.index)
	t.ready, t.free = 0, t.free[:0]
	t.nodes[0] = node{}
	for n := len(t.nodes) - 1; n > 0; n-- {
		t.free = append(t.free, int32(n)) //nolint:gosec // Validate bounds the capacity
	}
}

func (t *tier) unlink(n int32) {
	prev, next := t.nodes[n].prev, t.nodes[n].next
	t.nodes[prev].next, t.nodes[next].prev = next, prev
}

// push makes a node the most recently used one.
func (t *tier) push(n int32) {
	last := t.nodes[0].prev
	t.nodes[n].prev, t.nodes[n].next = last, 0
	t.nodes[last].next, t.nodes[0].prev = n, n
}

// match counts the leading hashes that can be loaded.
func (t *tier) match(hashes []uint64) int {
	for i, h := range hashes {
		if n, ok := t.index[h]; !ok || !t.nodes[n].ready {
			return i
		}
	}
	return len(hashes)
}

// touch makes blocks the most recently used ones, the last one first, so that the tail of a text
// is evicted before its head.
func (t *tier) touch(hashes []uint64) {
	for i := len(hashes) - 1; i >= 0; i-- {
		if n, ok := t.index[hashes[i]]; ok {
			t.unlink(n)
			t.push(n)
		}
	}
}

// store gives a place to each block that has none, evicting others than these. It returns the
// positions of the new ones and the hashes evicted; without enough room it changes nothing and ok
// is false.
func (t *tier) store(hashes []uint64) (fresh []int, evicted []uint64, ok bool) {
	t.epoch++
	idle := t.ready
	for i, h := range hashes {
		n, held := t.index[h]
		if !held {
			fresh = append(fresh, i)
			continue
		}
		t.nodes[n].kept = t.epoch
		if t.nodes[n].ready {
			idle--
		}
	}
	excess := len(fresh) - len(t.free)
	if excess > idle {
		return nil, nil, false
	}
	for n := t.nodes[0].next; len(evicted) < excess; {
		this := n
		n = t.nodes[n].next
		if t.nodes[this].ready && t.nodes[this].kept != t.epoch {
			evicted = append(evicted, t.nodes[this].hash)
			t.drop(this)
		}
	}
	for _, i := range fresh {
		n := t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
		t.nodes[n] = node{hash: hashes[i]}
		t.index[hashes[i]] = n
		t.push(n)
	}
	return fresh, evicted, true
}

func (t *tier) drop(n int32) {
	t.unlink(n)
	delete(t.index, t.nodes[n].hash)
	t.free = append(t.free, n)
	t.ready--
}

// complete makes a stored block known.
func (t *tier) complete(hash uint64) {
	t.nodes[t.index[hash]].ready = true
	t.ready++
}

// each yields the hashes that can be loaded.
func (t *tier) each(yield func(uint64) bool) {
	for h, n := range t.index {
		if t.nodes[n].ready && !yield(h) {
			return
		}
	}
}
