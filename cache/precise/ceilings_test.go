package precise

import (
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// The ranks that an engine says it has share a bound, and what one of them stores beyond it costs that one.
func TestC24_RanksWithoutEnd(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.KVEvents.Ranks = 10 })
	h.endpoints("a:1", "b:1")
	b := h.site.at("b:1")
	b.live()
	b.say(t, store(16, upTo(320), 1))
	a := h.site.at("a:1")
	m := h.hub().member(h.endpoint("a:1").Ordinal, h.endpoint("a:1").Generation)
	if want := int64(10 * defaultCapacity); m.together.limit != want {
		t.Errorf("ranks may have %d blocks together, want %d", m.together.limit, want)
	}
	m.together.limit = 300
	for rank := range 2 * maxRanks {
		first := 100_000 * (rank + 1)
		a.rank(rank).Apply(&wire.Batch{Events: []wire.Event{store(16, from(first+1, first+1600), uint64(first))}})
		held := int64(0)
		for _, r := range *m.ranks.Load() {
			held += int64(r.blocks)
		}
		if held != m.together.blocks.Load() || held > 300+int64(rank)+1 { // each may have one
			t.Fatalf("%d blocks of %d ranks, counted %d", held, rank+1, m.together.blocks.Load())
		}
	}
	checkStore(t, h.hub())
	h.expect("the first ranks keep theirs", ids("m", from(100_001, 101_600)), map[string]int{"a:1": 1600, "b:1": 0})
	h.expect("another engine", ids("m", upTo(320)), map[string]int{"a:1": 0, "b:1": 320})
	for rank := range 3 {
		a.rank(rank).Forget(0)
	}
	a.rank(5).Apply(&wire.Batch{Events: []wire.Event{store(16, upTo(640), 1)}})
	h.expect("there is room again", ids("m", upTo(640)), map[string]int{"a:1": 640, "b:1": 320})
	h.endpoints("b:1")
	eventually(t, "all is freed", func() bool { return h.hub().store.Sizes().Positions == 20 })
	if n := m.together.blocks.Load(); n != 0 {
		t.Errorf("%d blocks are counted of nobody", n)
	}
}

// An engine that removes all of its prompts but their ends keeps the places of whole prompts. They are bounded too.
func TestC24_PlacesThatNobodyHolds(t *testing.T) {
	if raceEnabled {
		t.Skip("takes long with the race detector")
	}
	p := newPool(t)
	good, bad := p.open(), p.open()
	good.say(store(16, upTo(160), 1))
	const prompt = 4000 // blocks
	most, name := 0, uint64(0)
	ev := wire.Event{Kind: wire.Stored, BlockSize: 1, Hashes: make([]uint64, prompt), Tokens: make([]uint32, prompt)}
	for round := range (maxHollow + 3*hollowCheck) / prompt {
		for i := range ev.Hashes {
			name++
			ev.Hashes[i], ev.Tokens[i] = name, uint32(round<<12+i)
		}
		bad.Apply(&wire.Batch{Events: []wire.Event{ev, {Kind: wire.Removed, Hashes: ev.Hashes[:prompt-1]}}})
		if round%100 == 99 {
			most = max(most, p.hub.store.Sizes().Positions)
		}
	}
	if limit := maxHollow + 2*hollowCheck; most > limit || most < maxHollow/2 {
		t.Errorf("%d places, want at most %d", most, limit)
	}
	if p.hub.stats.evicted.Load() == 0 || bad.blocks > (maxHollow+2*hollowCheck)/prompt {
		t.Errorf("%d blocks are left, %d evicted", bad.blocks, p.hub.stats.evicted.Load())
	}
	good.expect("the other engine", ask{tokens: upTo(160)}, 160)
	bad.close()
	if n := p.hub.store.Hollow(); n != 0 {
		t.Errorf("%d places of nobody", n)
	}
}
