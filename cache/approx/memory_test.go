package approx

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// C24: memory has a ceiling that follows from a formula: what sluice_prefix_index_bytes says is within a factor of 1.4 of
// what the heap holds, whether prefixes are shared or not, and all of it comes back.
func TestC24_MemoryFollowsTheFormula(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	if strconv.IntSize == 32 {
		t.Skip("the formula counts 64-bit pointers")
	}
	for _, tc := range []struct {
		name      string
		endpoints int
		own       bool // every endpoint holds prompts of its own, or all the same
		blocks    int
	}{
		{"own prompts", 8, true, 31250},
		{"own prompts, tables just grown", 8, true, 20000},
		{"shared prompts", 8, false, 31250},
		{"shared by many", 200, false, 2000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			names := manyEndpoints(h, tc.endpoints)
			x := h.producer().index.Load()
			x.adopt(h.pool.Snapshot())
			before := heap()
			hashes := make([]uint64, 250)
			for i := range names {
				in := x.members.Load().byOrdinal[i]
				for at := 0; at < tc.blocks; at += len(hashes) {
					for j := range hashes {
						hashes[j] = scheduling.Mix64(uint64(at + j))
						if tc.own {
							hashes[j] = scheduling.Mix64(hashes[j] + uint64(i))
						}
					}
					x.record(in, hashes, 0)
				}
			}
			grown := heap() - before
			entries, distinct, words, _ := x.size()
			formula := memory(entries, distinct, words)
			if entries != tc.endpoints*tc.blocks {
				t.Fatalf("%d entries", entries)
			}
			if ratio := float64(formula) / float64(grown); ratio < 1/1.4 || ratio > 1.4 {
				t.Errorf("formula %d B, heap %d B", formula, grown)
			}
			h.endpoints("last:1")
			if left := heap() - before; left > grown/50 {
				t.Errorf("%d of %d B are left of endpoints that went", left, grown)
			}
			runtime.KeepAlive(h)
		})
	}
}
