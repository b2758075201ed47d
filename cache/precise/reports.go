package precise

// reports are the prompts for which the engine was asked to announce again what it reuses (kv_cache_report_mode "full"):
// such an announcement is no further copy of a block.
type reports struct {
	hashes map[uint64]int // of open requests' prompts
}

// maxReported bounds the hashes that are kept, over all such requests of a source.
const maxReported = 1 << 17

func (r *reports) open() bool           { return len(r.hashes) > 0 }
func (r *reports) has(hash uint64) bool { return r.hashes[hash] > 0 }

// begin notes a prompt; it returns how much of it was noted, for end.
func (r *reports) begin(hashes []uint64) int {
	if r.hashes == nil {
		r.hashes = make(map[uint64]int)
	}
	n := min(len(hashes), max(0, maxReported-len(r.hashes)))
	for _, h := range hashes[:n] {
		r.hashes[h]++
	}
	return n
}

func (r *reports) end(hashes []uint64) {
	for _, h := range hashes {
		if r.hashes[h]--; r.hashes[h] <= 0 {
			delete(r.hashes, h)
		}
	}
}
