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

// A block that waits for a parent of another size is not taken out for every block of the parent's name.
func TestParkedWaitForTheirSize(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.say(after(7, store(16, from(17, 32), 2)), after(7, store(32, from(33, 64), 3)))
	before := p.hub.stats.orphans.Load()
	for range 100 {
		e.say(store(32, upTo(32), 7), removed("gpu", 7))
	}
	if n := p.hub.stats.orphans.Load() - before; n != 0 {
		t.Errorf("%d blocks were parked again", n)
	}
	if n := p.hub.stats.parked.Load(); n != 1 {
		t.Errorf("%d blocks wait, want the one of another size", n)
	}
	e.say(store(32, upTo(32), 7))
	e.expect("the parent's size", ask{tokens: upTo(64)}, 64)
}

// Two blocks of one name in a run that waits would leave one behind when the other is removed.
func TestParkedNamesAreOnce(t *testing.T) {
	p := newPool(t)
	e := p.open()
	ev := after(9, store(16, from(17, 80), 1))
	ev.Hashes = []uint64{5, 1, 1, 5}
	e.say(ev, removed("gpu", 1), removed("gpu", 5), store(16, upTo(16), 9))
	e.expect("after its removals", ask{tokens: upTo(80)}, 16)
	if n := p.hub.stats.orphansDropped.Load(); n != 4 {
		t.Errorf("%d blocks dropped", n)
	}
	e.say(after(99, store(16, from(17, 80), 1))) // what is left of the run stands in nobody's way
	e.say(store(16, upTo(16), 99))
	e.expect("another run", ask{tokens: upTo(80)}, 80)
}

// The memory that one huge event needs for a moment does not stay.
func TestHugeEvent(t *testing.T) {
	p := newPool(t)
	e := p.open()
	tokens := make([]uint32, 300_000)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	e.Apply(&wire.Batch{Events: []wire.Event{store(4, tokens, 1)}})
	e.Apply(&wire.Batch{Events: []wire.Event{store(16, upTo(64), 1_000_001)}})
	e.expect("what came later", ask{tokens: upTo(64)}, 64)
	if len(tokens)/4 != e.blocks-4 {
		t.Errorf("%d blocks", e.blocks)
	}
	if cap(e.hashes) > 2*maxAdded || cap(e.refs) > 2*maxAdded {
		t.Errorf("room for %d hashes and %d places is kept", cap(e.hashes), cap(e.refs))
	}
}

// A source that is busy with a long batch keeps nobody waiting who only counts, or wants it gone.
func TestBusySource(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.say(store(16, upTo(640), 1))
	size := e.bytes()
	e.mu.Lock()
	if got := e.bytes(); got != size || size == 0 {
		t.Errorf("%d bytes while it is busy, %d before", got, size)
	}
	e.mu.Unlock()
	e.disown()
	e.say(store(16, from(1001, 1640), 101))
	if e.blocks != 40 {
		t.Errorf("%d blocks: one that goes takes nothing more", e.blocks)
	}
}

// What is forgotten and has memory still is counted, and of several groups one keeps it.
func TestMemoryOfWhatIsForgotten(t *testing.T) {
	e := newPool(t).open()
	for group := range maxGroups {
		e.Apply(&wire.Batch{Events: []wire.Event{inGroup(group, "full_attention", store(16, upTo(16*2000), 1))}})
	}
	full := e.bytes()
	e.say(cleared)
	if kept := e.bytes(); kept == 0 || kept > full/maxGroups+8*(cap(e.hashes)+cap(e.refs))+1<<16 {
		t.Errorf("%d bytes of %d are kept", kept, full)
	}
}

// BenchmarkAtTheCeiling is a store at an engine that has as many blocks as it may: each costs another one.
func BenchmarkAtTheCeiling(b *testing.B) {
	h := newTestHub()
	h.maxBlocks = 100_000
	s := h.newSource()
	const n = 100
	ev := wire.Event{Kind: wire.Stored, BlockSize: 4, Hashes: make([]uint64, n), Tokens: make([]uint32, 4*n), Medium: "gpu"}
	name := uint64(0)
	say := func() {
		for i := range ev.Hashes {
			name++
			ev.Hashes[i] = name
			ev.Tokens[4*i] = uint32(name)
		}
		s.Apply(&wire.Batch{Events: []wire.Event{ev}})
	}
	for range 3 * h.maxBlocks / n {
		say()
	}
	b.ReportAllocs()
	for b.Loop() {
		say()
	}
}
