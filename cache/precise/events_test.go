package precise

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// Every shape of a store on the wire gives exactly one block.
func TestC02_WireShapes(t *testing.T) {
	for _, name := range []string{"K01", "K03", "K04", "K05", "K06", "K07", "K08", "K20", "K25"} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t)
			e := p.open()
			e.hear(name)
			want := 16
			if name == "K25" { // no events
				want = 0
			}
			e.expect("heard", ask{tokens: upTo(32)}, want)
			if got := int(p.hub.stats.blocks.Load()); got != want/16 {
				t.Errorf("%d blocks, want %d", got, want/16)
			}
			if err := e.check(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("K05 K22", func(t *testing.T) { // the same 64 bits, signed and unsigned
		e := newPool(t).open()
		e.hear("K05", "K22")
		e.expect("removed", ask{tokens: upTo(16)}, 0)
	})
	t.Run("halves", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		for name, payload := range p.payloads {
			if b, err := e.decoder.Decode(payload[:len(payload)/2]); err == nil {
				t.Errorf("half of %s is a batch of %d events", name, len(b.Events))
			}
		}
	})
}

// Events that arrive and tell nothing are noticed, whatever is wrong with them.
func TestC02_EventsOfWhichNoneApplies(t *testing.T) {
	for name, b := range map[string]wire.Batch{
		"unknown parents":     {Events: []wire.Event{after(99, store(16, from(17, 32), 1))}},
		"uneven":              {Events: []wire.Event{{Kind: wire.Stored, Hashes: []uint64{1}, Tokens: upTo(17), BlockSize: 16}}},
		"unknown kinds":       {Unknown: 1},
		"malformed":           {Bad: 1},
		"names only":          {Events: []wire.Event{byName("cpu", 5)}},
		"removals of nothing": {Events: []wire.Event{removed("gpu", 5)}},
		"sliding windows":     {Events: []wire.Event{inGroup(3, "sliding_window", store(16, upTo(16), 1))}},
	} {
		e := newPool(t).open()
		for i := range 2 * unappliedBlocks {
			if got, want := e.unapplied(), i >= unappliedBlocks; got != want {
				t.Errorf("%s: %v after %d, want %v", name, got, i, want)
				break
			}
			e.Apply(&b)
		}
		e.hear("K01")
		if e.unapplied() {
			t.Errorf("%s: still said after an event that applies", name)
		}
		// An engine that was started anew is judged anew.
		e.Forget(0)
		for range unappliedBlocks {
			e.Apply(&b)
		}
		if !e.unapplied() {
			t.Errorf("%s: not said of the engine's next life", name)
		}
	}
}

func TestC12_TierBlindRemoval(t *testing.T) {
	one, two := ask{tokens: upTo(16)}, ask{tokens: upTo(32)}
	gpu := scheduling.PrefixCacheMatchInfo{MatchBlocks: 1, CachedBlockCount: 1, TotalBlocks: 1, BlockSizeTokens: 16}
	below := gpu // a tier that is worth less than a whole block, of which there is one
	below.MatchBlocks = 0
	is := func(t *testing.T, e *engine, when string, want scheduling.PrefixCacheMatchInfo) {
		t.Helper()
		if diff := cmp.Diff(want, e.info(one)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	t.Run("GPU, CPU, off the GPU", func(t *testing.T) {
		e := newPool(t).open()
		e.hear("K01")
		is(t, e, "on the GPU", gpu)
		e.hear("K12")
		is(t, e, "on both", gpu)
		e.hear("K13")
		is(t, e, "on the CPU", below)
		e.hear("K02") // the child finds its parent
		e.expect("child on the GPU", two, 32)
		if m := e.info(two); m.MatchBlocks != 1 { // ⌊0.8 + 1⌋
			t.Errorf("weighted match %d, want 1", m.MatchBlocks)
		}
		e.hear("K14")
		e.expect("gone", one, 0)
		e.expect("gone, with a child", two, 0)
		if err := e.check(); err != nil {
			t.Error(err)
		}
	})
	t.Run("reversed", func(t *testing.T) {
		e := newPool(t).open()
		e.hear("K01", "K13", "K12")
		is(t, e, "on the CPU", below)
		e.hear("K14")
		e.expect("gone", one, 0)
	})
	for medium, weight := range map[string]int{
		"": 1000, "gpu": 1000, "GPU": 1000, "cpu": 800, "CPU": 800, "cpu_pinned": 800, "CPU_PINNED": 800,
		"DISK": 300, "STORAGE": 300, "EXTERNAL": 300, "what nobody knows": 300,
	} {
		t.Run("medium "+medium, func(t *testing.T) {
			p := newPool(t)
			e := p.open()
			e.say(on(medium, store(16, upTo(16), 1)))
			if got := p.look(one).match(0, e.source); got.Blocks != 1 || int(got.Weight) != weight {
				t.Errorf("%+v, want a block of weight %d", got, weight)
			}
			e.say(removed(medium, 1))
			e.expect("removed", one, 0)
		})
	}
	t.Run("removal elsewhere", func(t *testing.T) {
		e := newPool(t).open()
		e.hear("K01", "K14")
		is(t, e, "CPU removal", gpu)
		e.say(removed("disk", 0xa1a1a1a1a1a1a1a1))
		is(t, e, "disk removal", gpu)
	})
}

func TestC13_Orphans(t *testing.T) {
	t.Run("parked until the parent comes", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.hear("K09")
		e.expect("no parent", ask{tokens: upTo(32)}, 0)
		e.expect("no false root", ask{tokens: from(17, 32)}, 0)
		if n := p.hub.stats.parked.Load(); n != 1 {
			t.Errorf("%d blocks parked, want 1", n)
		}
		e.hear("K01")
		e.expect("with its parent", ask{tokens: upTo(32)}, 32)
		e.expect("still no root", ask{tokens: from(17, 32)}, 0)
		if n := p.hub.stats.parked.Load(); n != 0 {
			t.Errorf("%d blocks parked, want none", n)
		}
	})
	t.Run("from the last to the first", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		for b := 9; b > 0; b-- {
			e.say(after(uint64(b), store(16, from(16*b+1, 16*b+16), uint64(b+1))))
		}
		e.expect("orphans", ask{tokens: upTo(160)}, 0)
		e.say(store(16, upTo(16), 1))
		e.expect("all", ask{tokens: upTo(160)}, 160)
	})
	t.Run("removed while parked", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(after(1, store(16, from(17, 64), 2)), removed("gpu", 3), store(16, upTo(16), 1))
		e.expect("up to the removed one", ask{tokens: upTo(64)}, 32)
	})
	t.Run("a parent in another tier's words", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(on("cpu", after(1, store(16, from(17, 32), 2))), store(16, upTo(16), 1), store(16, upTo(16), 1))
		e.expect("both tiers", ask{tokens: upTo(32)}, 32)
	})
}

// Ten thousand orphans cost bounded memory, and are counted.
func TestC13_OrphansAreBounded(t *testing.T) {
	p := newPool(t)
	e := p.open()
	for i := range 10_000 {
		e.say(after(uint64(1_000_000+i), store(16, from(17, 32), uint64(10+i))))
	}
	s := &p.hub.stats
	if got := s.orphans.Load(); got != 10_000 {
		t.Errorf("%d orphans counted", got)
	}
	if parked, dropped := s.parked.Load(), s.orphansDropped.Load(); parked != defaultParked || dropped != 10_000-defaultParked {
		t.Errorf("%d parked and %d dropped, want %d and the rest", parked, dropped, defaultParked)
	}
	if n := e.bytes(); n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
	// The last ones still find their parents.
	e.say(store(16, upTo(16), 1_000_000+9_999))
	e.expect("the last one", ask{tokens: upTo(32)}, 32)
	e.Forget(0)
	if n := s.parked.Load(); n != 0 {
		t.Errorf("%d parked after all was forgotten", n)
	}
	// Neither do those that come and go again, or only partly go, leave anything behind.
	for i := range 100_000 {
		n := uint64(10 + 2*i)
		e.Apply(&wire.Batch{Events: []wire.Event{after(n+1_000_000, store(16, from(17, 48), n)), removed("gpu", n)}})
	}
	if n, m := len(e.parked.order), len(e.parked.byParent); n > 8 || m > 8 || s.parked.Load() != 0 {
		t.Errorf("%d runs and %d parents are left of orphans that were removed, %d counted", n, m, s.parked.Load())
	}
}

func TestC14_HybridGroups(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.hear("K17")
	e.expect("a window's blocks", ask{tokens: upTo(32)}, 0)
	e.hear("K03")
	e.expect("full attention", ask{tokens: upTo(32)}, 16)
	e.hear("K26")
	e.expect("a removal in the window's group", ask{tokens: upTo(16)}, 16)
	e.say(wire.Event{Kind: wire.Stored, Hashes: []uint64{1, 2}, Tokens: upTo(33), BlockSize: 16, Medium: "gpu"})
	e.expect("an uneven span", ask{tokens: upTo(32)}, 16)
	if n := p.hub.stats.uneven.Load(); n != 2 {
		t.Errorf("%d uneven blocks, want 2", n)
	}
	if n := p.hub.stats.otherGroup.Load(); n != 1 {
		t.Errorf("%d blocks of other groups, want 1", n)
	}
	// What a group is, is forgotten with the engine: the number means full attention there.
	e.Forget(0)
	e.say(inGroup(1, "full_attention", store(16, upTo(16), 1)))
	e.expect("another model's group 1", ask{tokens: upTo(16)}, 16)
}

// Only a group whose blocks stand for a prefix by themselves counts, whether an event names the group's kind or, as the
// later ones of the same group, only its number.
func TestC14_KindsOfAttention(t *testing.T) {
	for kind, counts := range map[string]bool{
		"": true, "full_attention": true, "mla_attention": true, "mla": true, "sink_full_attention": true,
		"sliding_window": false, "sliding_window_mla": false, "mamba": false, "chunked_local": false,
		"chunked_local_attention": false, "cross_attention": false, "of a later version": false,
	} {
		p := newPool(t)
		e := p.open()
		named, later, other := 0, 0, int64(3)
		if counts {
			named, later, other = 32, 48, 0
		}
		e.say(inGroup(1, kind, store(16, upTo(32), 1)))
		e.expect(kind+": named", ask{tokens: upTo(48)}, named)
		e.say(inGroup(1, "", after(2, store(16, from(33, 48), 3))))
		e.expect(kind+": by its number", ask{tokens: upTo(48)}, later)
		if n := p.hub.stats.otherGroup.Load(); n != other {
			t.Errorf("%q: %d blocks of other groups, want %d", kind, n, other)
		}
	}
}

// A group that is told by name once is known by its number, in events that do not repeat it.
func TestC14_GroupsAreRemembered(t *testing.T) {
	e := newPool(t).open()
	window := inGroup(0, "sliding_window", store(16, upTo(16), 1))
	e.say(inGroup(1, "full_attention", store(16, upTo(32), 1)), window)
	bare := byName("cpu", 1, 2)
	bare.HasGroup = true
	e.say(bare) // group 0: the window's blocks
	e.say(removed("gpu", 2))
	e.expect("a window's offloaded blocks", ask{tokens: upTo(32)}, 32)
	off := removed("gpu", 1, 2)
	off.Group, off.HasGroup = 1, true
	e.say(off)
	e.expect("removed from the GPU", ask{tokens: upTo(32)}, 0)
}

// Of several groups of full attention every one must have a block.
func TestC14_SeveralFullGroups(t *testing.T) {
	p := newPool(t)
	e := p.open()
	in := func(number int, ev wire.Event) wire.Event { return inGroup(number, "full_attention", ev) }
	bare := func(number int, ev wire.Event) wire.Event { return inGroup(number, "", ev) }
	e.say(in(0, store(16, upTo(48), 1)))
	e.expect("one group", ask{tokens: upTo(48)}, 48)
	e.say(in(2, store(16, upTo(32), 1)))
	e.expect("two groups", ask{tokens: upTo(48)}, 32)
	e.say(bare(2, removed("gpu", 1)))
	e.expect("a block of one group gone", ask{tokens: upTo(48)}, 0)
	e.say(in(2, store(16, upTo(16), 1)))
	e.expect("there again", ask{tokens: upTo(48)}, 32)
	e.say(in(2, after(2, store(16, from(33, 48), 3))))
	e.expect("all in both", ask{tokens: upTo(48)}, 48)
	// What is no use of a group does not make one.
	e.say(in(5, wire.Event{Kind: wire.Stored, Hashes: []uint64{9}, Tokens: upTo(17), BlockSize: 16, Medium: "gpu"}))
	e.say(in(6, after(4711, store(16, upTo(16), 9))))
	e.say(in(7, byName("gpu", 77)))
	e.expect("after events without use", ask{tokens: upTo(48)}, 48)
	if err := e.check(); err != nil {
		t.Error(err)
	}
	e.close()
	if z := p.hub.store.Sizes(); z.Chains != 0 {
		t.Errorf("left: %+v", z)
	}
}

func TestC15_Salt(t *testing.T) {
	long := strings.Repeat("s", 2000)
	p := newPool(t)
	e := p.open()
	e.hear("K27")
	for salt, want := range map[string]int{"tenant-1": 16, "tenant-2": 0, "": 0, long: 0, "tenant-1 ": 0, "7": 0} {
		e.expect("K27 for salt "+salt, ask{tokens: upTo(16), salt: salt}, want)
	}
	// SGLang's field means the same; an empty one is none.
	for salt, want := range map[string]int{"": 16, "tenant-1": 0} {
		f := p.open()
		ev := store(16, upTo(32), 1)
		ev.Salt = []byte("")
		f.say(ev)
		f.expect("empty salt, asked with "+salt, ask{tokens: upTo(16), salt: salt}, want)
	}
	g := p.open()
	first := store(16, upTo(16), 1)
	first.Salt = []byte(long)
	second := after(1, store(16, from(17, 32), 2))
	second.Salt = first.Salt // vLLM's and SGLang's salt is the first block's: the chain carries it on
	g.say(first, second)
	g.expect("a salt as a field", ask{tokens: upTo(32), salt: long}, 32)
	g.expect("a salt as a field, without", ask{tokens: upTo(32)}, 0)
}

func TestC20_LiteralCounts(t *testing.T) {
	prompt := func(n int) []uint32 { return from(1000, 999+n) }
	for _, tc := range []struct {
		name                  string
		held, asked           int
		cached, total, tokens int
	}{
		{"P1", 128, 160, 8, 10, 128},
		{"P2", 60_000, 100_000, 3750, 6250, 60_000},
		{"P3", 10, 10, 0, 0, 0},
		{"P4", 1600, 1600, 100, 100, 1600},
		{"incomplete last block", 1615, 1615, 100, 100, 1600},
		{"more held than asked", 3200, 1599, 99, 99, 1584},
		{"nothing held", 0, 1600, 0, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newPool(t).open()
			e.State(cursor.Live)
			if whole := tc.held / 16 * 16; whole > 0 {
				e.say(store(16, prompt(whole), 1))
			}
			i := e.info(ask{tokens: prompt(tc.asked)})
			want := scheduling.NewPrefixCacheMatchInfo(tc.cached, tc.total, 16)
			if diff := cmp.Diff(want, i); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if i.MatchedTokens() != tc.tokens || i.MatchedTokens() > tc.asked {
				t.Errorf("%d matched tokens of %d, want %d", i.MatchedTokens(), tc.asked, tc.tokens)
			}
			if s := i.Score(); s != s || s < 0 || s > 1 || (tc.total == 0 && s != 0) {
				t.Errorf("scores %v", s)
			}
		})
	}
}
