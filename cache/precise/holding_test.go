package precise

import (
	"testing"

	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/scheduling"
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

// Entries whose blocks are held because a prompt was sent have holders too, and those whose blocks are gone keep their
// places without one, which what comes back takes again.
func TestEntriesAndHolders(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	a := h.site.at("a:1")
	a.live()
	expect := func(when string, entries, holders int) {
		t.Helper()
		if s := h.producer().Stats(); s.Entries != entries || s.HolderEntries != holders {
			t.Errorf("%s: %d entries, %d of holders; want %d and %d", when, s.Entries, s.HolderEntries, entries, holders)
		}
	}
	f := h.send(ids("m", upTo(160)), "a:1")
	expect("once sent", 10, 10)
	a.say(t, store(16, upTo(160), 1))
	h.advance(h.producer().params.SpeculativeTTL + 1)
	h.look(ids("m", upTo(16)))
	expect("once told", 10, 10)
	h.end(f, -1)
	a.say(t, removed("gpu", 10))
	expect("with a block that was removed", 10, 9)
	a.say(t, cleared)
	expect("once all is gone", 0, 0)
}

// A prompt that is only tried is looked up like another one, and changes nothing.
func TestTrial(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.MaxPrefixTokens = 1024 })
	h.endpoints("a:1")
	a := h.site.at("a:1")
	a.live()
	a.say(t, store(16, upTo(160), 1))
	long := ids("m", upTo(2000))
	long.CacheSalt = "tenant"
	for _, r := range []*scheduling.Request{ids("m", upTo(160)), long, {Model: "m", Body: []byte("text"), PromptBytes: 4}} {
		r.Trial = true
		known := h.look(r)
		if _, ok := known["a:1"]; !ok || r.TokenCount == 160 && known["a:1"].CachedBlockCount != 10 {
			t.Errorf("%+v", known)
		}
	}
	p := h.producer()
	if p.noTokens.Load() != 0 || p.capped.Load() != 0 || h.hub().salts.Load() {
		t.Errorf("%d without tokens, %d too long, salts in use: %v", p.noTokens.Load(), p.capped.Load(), h.hub().salts.Load())
	}
	long.Trial = false
	h.look(long)
	if p.capped.Load() != 1 || !h.hub().salts.Load() {
		t.Error("the same, sent by somebody, is not counted")
	}
}
