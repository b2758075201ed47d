package precise

import (
	"testing"

	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
)

// What the index tells operators of itself and of each endpoint is what its events told, and how far they can be trusted is
// what its worst rank says.
func TestHolding(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing = false })
	h.endpoints("a:1", "b:1")
	a := h.site.at("a:1")
	a.live()
	a.say(t, store(16, upTo(160), 1))
	for address, want := range map[string]cache.Holding{
		"a:1": {Blocks: 10, BlockSizeTokens: 16, Events: "live"}, "b:1": {Events: "silent"},
	} {
		if got, ok := h.producer().Holding(h.endpoint(address)); !ok || got != want {
			t.Errorf("%s: %+v, want %+v", address, got, want)
		}
	}
	s := h.producer().Stats()
	if s.Entries != 10 || s.HolderEntries != 10 || s.Bytes == 0 || s.Sources["live"] != 1 || s.Sources["silent"] != 1 {
		t.Errorf("%+v", s)
	}
	a.rank(1).State(cursor.Degraded)
	if got, _ := h.producer().Holding(h.endpoint("a:1")); got.Events != "degraded" {
		t.Errorf("with a degraded rank it is %q", got.Events)
	}
	gone := h.endpoint("a:1")
	h.endpoints("b:1")
	if _, ok := h.producer().Holding(gone); ok {
		t.Error("an endpoint that went is known")
	}
}
