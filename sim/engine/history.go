package engine

import (
	"cmp"
	"slices"
	"sync"
)

// maxHistoryBytes bounds the payloads kept for replay beside their number.
const maxHistoryBytes = 256 << 20

// history keeps the latest batches of events for who asks for them again, bounded by number and
// bytes; the oldest go first. Methods may be called by several goroutines.
type history struct {
	steps, maxBytes int

	mu    sync.Mutex
	kept  []batch // oldest first
	bytes int
}

// batch is one published payload under its sequence number. Payloads are never written to again.
type batch struct {
	seq     uint64
	payload []byte
}

func (h *history) add(b batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, b)
	h.bytes += len(b.payload)
	for len(h.kept) > h.steps || h.bytes > h.maxBytes && len(h.kept) > 1 {
		h.bytes -= len(h.kept[0].payload)
		h.kept[0] = batch{}
		h.kept = h.kept[1:]
	}
}

// from puts batches kept from a sequence number on into buf, as many as fit. Numbers are ascending; what the model's
// goroutine waits for is a search and this copy.
func (h *history) from(seq uint64, buf []batch) []batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.kept, seq, func(b batch, seq uint64) int { return cmp.Compare(b.seq, seq) })
	return buf[:copy(buf[:cap(buf)], h.kept[i:])]
}

// size is the number of batches kept and their bytes.
func (h *history) size() (batches, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.kept), h.bytes
}
