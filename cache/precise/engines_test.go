package precise

import (
	"slices"
	"testing"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// TestC03_EngineRestartsInPlace is the index's part of a restart: what the cursor calls void is gone, whatever it was.
func TestC03_EngineRestartsInPlace(t *testing.T) {
	p := newPool(t)
	e, other := p.open(), p.open()
	other.hear("K01", "K02")
	e.hear("K01", "K02", "K12", "K09")
	e.say(store(16, from(1001, 1064), 70), removed("gpu", 72)) // a ghost
	e.say(after(4711, store(16, from(17, 32), 99)))            // and an orphan
	e.routed.add(p.look(ask{tokens: from(501, 564)}).cuts[0].hashes, 0, 16, 0)
	e.Forget(0)
	for _, a := range []ask{{tokens: upTo(32)}, {tokens: from(1001, 1064)}, {tokens: from(501, 564)}} {
		e.expect("after the restart", a, 0)
	}
	e.hear("K23")
	e.expect("of the new life", ask{tokens: from(33, 48)}, 16)
	// The names of the life before mean nothing: no parent, no join, no removal, no orphan that waits for one.
	e.hear("K02", "K13")
	e.say(byName("cpu", 70, 72), store(16, from(2001, 2016), 4711))
	e.expect("old names", ask{tokens: upTo(32)}, 0)
	e.expect("old ghosts", ask{tokens: from(1001, 1064)}, 0)
	e.expect("old orphans", ask{tokens: slices.Concat(from(2001, 2016), from(17, 32))}, 16)
	other.expect("another engine", ask{tokens: upTo(32)}, 32)
	if err := e.check(); err != nil {
		t.Error(err)
	}
}

// A resent message that the cursor could not tell counts twice, and heals by contradiction.
func TestC03_DuplicatesHeal(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Degraded)
	two := ask{tokens: upTo(32)}
	hashes := p.look(two).cuts[0].hashes
	e.hear("K01", "K02", "K02")
	e.say(removed("gpu", 0xb2b2b2b2b2b2b2b2))
	e.expect("one of two copies removed", two, 32)
	e.contradict(hashes, 16, 1, e.now()) // the engine says that it had one block
	e.expect("contradicted", two, 16)
	e.hear("K02") // and once more: this time it is true
	e.expect("stored again", two, 32)
	e.say(removed("gpu", 0xb2b2b2b2b2b2b2b2))
	e.expect("removed as often as stored since", two, 16)
	if err := e.check(); err != nil {
		t.Error(err)
	}
}

// Doubt about some blocks does not touch the copies of others.
func TestC03_CopiesOfOthersWhileInDoubt(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Degraded)
	e.say(store(16, upTo(32), 1), store(16, from(101, 132), 11))
	e.contradict(p.look(ask{tokens: upTo(32)}).cuts[0].hashes, 16, 0, e.now())
	e.say(store(16, from(101, 132), 11), store(16, from(101, 132), 11), removed("gpu", 12), removed("gpu", 12))
	e.expect("two of three copies removed", ask{tokens: from(101, 132)}, 32)
	e.say(removed("gpu", 12))
	e.expect("all removed", ask{tokens: from(101, 132)}, 16)
}

// What was stored since the pick that a contradiction is about is there, in one copy.
func TestC03_ContradictionSparesWhatCameLater(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Degraded)
	a := ask{tokens: upTo(64)}
	hashes := p.look(a).cuts[0].hashes
	e.say(store(16, upTo(64), 1))
	e.say(store(16, upTo(64), 1)) // a second copy, or a resent message
	tick := e.now()
	e.say(store(16, upTo(32), 1)) // after the pick
	e.contradict(hashes, 16, 0, tick)
	e.expect("what came later stays", a, 32)
	e.say(removed("gpu", 1, 2))
	e.expect("in one copy", a, 0)
	// Blocks of other prompts are not doubted, nor is what lies before the first one that was missing.
	e.say(store(16, upTo(64), 1), store(16, from(101, 164), 201))
	e.contradict(hashes, 16, 2, e.now())
	e.expect("behind the first that was missing", a, 32)
	e.expect("another prompt", ask{tokens: from(101, 164)}, 64)
	if err := e.check(); err != nil {
		t.Error(err)
	}
	e.close()
	if z := p.hub.store.Sizes(); z.Chains != 0 {
		t.Errorf("left: %+v", z)
	}
}

// Requests for one prompt that run at once each store it, and each but the first contradicts what was predicted from the
// others' picks. All copies count until they are removed.
func TestC03_ContradictionLeavesCopiesOfRequestsAtOnce(t *testing.T) {
	for name, batches := range map[string][]int{"in two steps": {1, 1}, "in one step": {2}} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t)
			e := p.open()
			e.State(cursor.Degraded)
			a := ask{tokens: upTo(64)}
			hashes := p.look(a).cuts[0].hashes
			tick := e.now()
			for _, copies := range batches {
				e.say(slices.Repeat([]wire.Event{store(16, upTo(64), 1)}, copies)...)
			}
			e.contradict(hashes, 16, 0, tick)
			e.expect("both copies", a, 64)
			e.say(removed("gpu", 4, 3))
			e.expect("one copy of some", a, 64)
			e.say(removed("gpu", 4, 3))
			e.expect("none of these", a, 32)
			if err := e.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// All of a prompt that is stored after the pick is spared, also where several blocks share a slot of what came last: an
// engine whose cache was reset stores a whole prompt in one step.
func TestC03_ContradictionSparesAWholePrompt(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Degraded)
	const tokens = 16 * 1000
	a := ask{tokens: upTo(tokens)}
	hashes := p.look(a).cuts[0].hashes
	tick := e.now()
	e.say(store(16, upTo(tokens), 1))
	e.contradict(hashes, 16, 0, tick)
	e.expect("stored after the pick", a, tokens)
	e.contradict(hashes, 16, 0, e.now())
	e.expect("nothing stored since", a, 0)
	if err := e.check(); err != nil {
		t.Error(err)
	}
}

// A live source is not doubted at its first contradiction, since a block may have gone and come back between the pick
// and the end of the request; from then on it is known what came when.
// Of what an engine stored after a pick and before anything was watched nothing is known: it is spared.
func TestC03_PicksFromBeforeTheWatch(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Live)
	a := ask{tokens: upTo(64)}
	hashes := p.look(a).cuts[0].hashes
	first, second := e.now(), e.now()
	e.say(store(16, upTo(64), 1)) // while both run
	e.contradict(hashes, 16, 0, first)
	e.contradict(hashes, 16, 0, second)
	e.expect("both answered", a, 64)
	e.contradict(hashes, 16, 1, e.now())
	e.expect("another pick", a, 16)
}

func TestC03_LiveSourcesAreDoubtedFromTheSecondTime(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.State(cursor.Live)
	a := ask{tokens: upTo(64)}
	hashes := p.look(a).cuts[0].hashes
	e.say(store(16, upTo(64), 1))
	e.contradict(hashes, 16, 1, e.now())
	e.expect("once", a, 64)
	e.contradict(hashes, 16, 1, e.now())
	e.expect("twice", a, 16)
	if n := p.hub.stats.contradictions.Load(); n != 2 {
		t.Errorf("%d contradictions counted", n)
	}
	if n := p.hub.stats.doubted.Load(); n != 3 {
		t.Errorf("%d blocks doubted, want 3", n)
	}
}

func TestC27_NamesAreOpaque(t *testing.T) {
	p := newPool(t)
	a, b := p.open(), p.open()
	a.hear("K01")
	b.hear("K24")
	a.expect("A", ask{tokens: upTo(16)}, 16)
	b.expect("B, by another name", ask{tokens: upTo(16)}, 16)
	a.hear("K02")
	b.say(after(0x7777777777777777, store(16, from(17, 32), 5)))
	a.expect("A's child", ask{tokens: upTo(32)}, 32)
	b.expect("B's child", ask{tokens: upTo(32)}, 32)
	b.Forget(0)
	b.say(store(16, upTo(16), 123), after(0x7777777777777777, store(16, from(17, 32), 5)))
	b.expect("B restarted with a third seed, old parent", ask{tokens: upTo(32)}, 16)
	b.say(after(123, store(16, from(17, 32), 6)))
	b.expect("B restarted with a third seed", ask{tokens: upTo(32)}, 32)
	a.expect("A all along", ask{tokens: upTo(32)}, 32)
	// A name of A's is nothing to B.
	b.say(removed("gpu", 0xa1a1a1a1a1a1a1a1))
	b.expect("B after a removal of A's name", ask{tokens: upTo(32)}, 32)
	// The index's own hashes follow from the seed alone.
	same, another := newTestHub(), newTestHub()
	another.keys = newKeys(blockhash.SeedOf("another"))
	hash := func(h *hub) uint64 { return h.keys.appendPrompt(nil, 16, 0, "", upTo(16), nil)[0] }
	if hash(p.hub) != hash(same) || hash(p.hub) == hash(another) {
		t.Error("hashes do not follow from the seed")
	}
}

// One engine may have two names for what is one block to the index.
func TestC27_TwoNamesForOneBlock(t *testing.T) {
	a := ask{tokens: upTo(32)}
	for name, events := range map[string][]wire.Event{
		"the first goes first":  {removed("gpu", 0xa1a1a1a1a1a1a1a1), removed("gpu", 0x7777777777777777)},
		"the second goes first": {removed("gpu", 0x7777777777777777), removed("gpu", 0xa1a1a1a1a1a1a1a1)},
	} {
		p := newPool(t)
		e := p.open()
		e.hear("K01", "K24")
		e.say(after(0x7777777777777777, store(16, from(17, 32), 5)))
		e.expect(name+": both there", a, 32)
		e.say(events[0])
		e.expect(name+": one gone", a, 32)
		// Long enough for the ghost of the one to be gone too.
		for i := range uint64(maxGhosts + 1) {
			e.say(store(16, from(5001, 5016), 1000+i), removed("gpu", 1000+i))
		}
		e.expect(name+": its ghost gone", a, 32)
		e.say(events[1])
		e.expect(name+": both gone", a, 0)
		for i := range uint64(maxGhosts + 1) {
			e.say(store(16, from(5001, 5016), 3000+i), removed("gpu", 3000+i))
		}
		e.hear("K01")
		e.expect(name+": there again", a, 32)
		if err := e.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		e.close()
		if z := p.hub.store.Sizes(); z.Chains != 0 {
			t.Errorf("%s: left: %+v", name, z)
		}
	}
}

func TestC28_Adapters(t *testing.T) {
	for _, listed := range []bool{false, true} {
		p := newPool(t)
		if listed {
			p.hub.adapters.list([]string{"base", "another-base"})
		}
		expect := func(e *engine, what string, want map[string]int, salt string) {
			t.Helper()
			for model, tokens := range want {
				e.expect(what+" for "+model, ask{tokens: upTo(16), model: model, salt: salt}, tokens)
			}
		}
		e := p.open()
		e.hear("K15")
		expect(e, "K15", map[string]int{"adapter-a": 16, "adapter-b": 0, "base": 0, "another-base": 0, "": 0}, "")
		f := p.open()
		f.hear("K16")
		expect(f, "K16 without its salt", map[string]int{"adapter-a": 0, "base": 0}, "")
		expect(f, "K16 with another salt", map[string]int{"adapter-a": 0, "base": 0}, "tenant-2")
		expect(f, "K16 with its salt", map[string]int{"adapter-a": 16, "adapter-b": 0, "base": 0}, "tenant-1")
		g := p.open()
		g.hear("K01")
		// An adapter that no event has named is not known to be one, unless the engine's list says what its models are.
		unheard := 16
		if listed {
			unheard = 0
		}
		expect(g, "K01", map[string]int{"adapter-a": 0, "base": 16, "another-base": 16, "adapter-b": unheard}, "")
	}
}

// An adapter may be called like an image.
func TestC28_AdapterNamedLikeAnImage(t *testing.T) {
	image := []scheduling.PromptFeature{{ID: "img-aaaa", Offset: 4, Length: 4}}
	feature := wire.Item{Kind: wire.ItemFeature, Value: []byte("img-aaaa")}
	p := newPool(t)
	adapter, seen, both := p.open(), p.open(), p.open()
	ev := store(16, upTo(16), 1)
	ev.LoRA = []byte("img-aaaa")
	adapter.say(ev)
	ev.Extra, ev.ExtraEnd = []wire.Item{feature}, []int{1}
	both.say(ev)
	ev.LoRA = nil
	seen.say(ev)
	for _, tc := range []struct {
		name string
		ask  ask
		of   [3]int // adapter, seen, both
	}{
		{"the adapter", ask{model: "img-aaaa"}, [3]int{16, 0, 0}},
		{"the image", ask{model: "base", features: image}, [3]int{0, 16, 0}},
		{"both", ask{model: "img-aaaa", features: image}, [3]int{0, 0, 16}},
		{"neither", ask{model: "base"}, [3]int{0, 0, 0}},
		{"a salt of that name", ask{model: "base", salt: "img-aaaa"}, [3]int{0, 0, 0}},
	} {
		tc.ask.tokens = upTo(16)
		for i, e := range []*engine{adapter, seen, both} {
			e.expect(tc.name, tc.ask, tc.of[i])
		}
	}
}

// An adapter of which the engine tells only a number is nobody's, and above all not the base model's.
func TestC28_AdapterByNumberOnly(t *testing.T) {
	p := newPool(t)
	e := p.open()
	ev := store(16, upTo(16), 1)
	ev.LoRAID = 7
	e.say(ev)
	if n := p.hub.stats.blocks.Load(); n != 1 {
		t.Errorf("%d blocks", n)
	}
	for _, model := range []string{"", "base", "7", "adapter-a", "\x00lora_id=7"} {
		want := 0
		if model == "\x00lora_id=7" { // which no JSON string of a request can be
			want = 16
		}
		e.expect("by number, for "+model, ask{tokens: upTo(16), model: model}, want)
	}
}

// What nobody understands in a block's keys keeps it from everybody who does not ask for that.
func TestC28_OpaqueKeys(t *testing.T) {
	p := newPool(t)
	e := p.open()
	ev := store(16, upTo(32), 1)
	ev.Extra, ev.ExtraEnd = []wire.Item{{Kind: wire.ItemOpaque, Value: []byte{0xc4, 2, 1, 2}}}, []int{0, 1}
	e.say(ev)
	e.expect("up to the opaque key", ask{tokens: upTo(32)}, 16)
	e.expect("with a salt", ask{tokens: upTo(32), salt: "\xc4\x02\x01\x02"}, 0)
	e.say(removed("gpu", 1))
	e.expect("removed", ask{tokens: upTo(32)}, 0)
}
