package approx

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/scheduling"
)

// What the index tells operators of itself and of each endpoint is what it believes.
func TestStats(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.BlockSizeTokens = 16 })
	h.endpoints("a:1", "b:1")
	prompt := tokenRun(1, 16*40)
	h.serve(ids("m", prompt), "a:1")
	h.serve(ids("m", prompt[:16*8]), "b:1")
	a, b := h.pool.Snapshot().ByAddress("a:1"), h.pool.Snapshot().ByAddress("b:1")
	for e, blocks := range map[*scheduling.Endpoint]int{a: 40, b: 8} {
		got, ok := h.producer().Holding(e)
		if want := (cache.Holding{Blocks: blocks, BlockSizeTokens: 16}); !ok || got != want {
			t.Errorf("%s: %+v, want %+v", e.Address, got, want)
		}
	}
	s := h.producer().Stats()
	if s.Entries == 0 || s.HolderEntries <= s.Entries || s.Bytes < s.Entries || s.Evicted != 0 || s.Sources != nil {
		t.Errorf("%+v", s)
	}
	h.endpoints("b:1")
	if _, ok := h.producer().Holding(a); ok {
		t.Error("an endpoint that went is known")
	}
	h.endpoints("b:1", "a:1")
	if got, ok := h.producer().Holding(h.pool.Snapshot().ByAddress("a:1")); ok && got.Blocks != 0 {
		t.Errorf("a new instance inherits %+v", got)
	}
	if diff := cmp.Diff(0, h.producer().Stats().HolderEntries-h.producer().Stats().Entries); diff != "" {
		t.Error("one endpoint holds more entries than there are", diff)
	}
}
