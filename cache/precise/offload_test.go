package precise

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/precise/chain"
)

func (e *engine) match(a ask) chain.Match {
	p := e.pool.look(a)
	return p.match(p.cutOf(int(e.primary.Load())), e.source)
}

// Stores that name blocks and say nothing else of them are joined with what the source has, or had until a moment ago.
func TestStoresByName(t *testing.T) {
	four := ask{tokens: upTo(64)}
	is := func(t *testing.T, e *engine, when string, blocks, weight int32) {
		t.Helper()
		if diff := cmp.Diff(chain.Match{Blocks: blocks, Weight: weight}, e.match(four)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	t.Run("while on the GPU", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(store(16, upTo(64), 1), byName("cpu", 4, 2, 1, 3)) // in any order
		is(t, e, "on both", 4, 4000)
		e.say(removed("gpu", 4))
		is(t, e, "the last on the CPU only", 4, 3800)
		e.say(removed("gpu", 3, 2, 1))
		is(t, e, "all on the CPU only", 4, 3200)
		e.say(removed("cpu", 1, 2, 3, 4))
		is(t, e, "gone", 0, 0)
		if n := p.hub.stats.joined.Load(); n != 4 {
			t.Errorf("%d joined, want 4", n)
		}
	})
	t.Run("after they left the GPU", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(store(16, upTo(64), 1), removed("gpu", 4, 3, 2, 1))
		is(t, e, "gone", 0, 0)
		e.say(byName("cpu", 2, 3))
		is(t, e, "not from the head", 0, 0)
		e.say(byName("cpu", 1))
		is(t, e, "from the head", 3, 2400)
		e.say(after(3, store(16, from(49, 64), 4))) // computed again behind what was read back
		is(t, e, "behind it", 4, 3400)
		e.say(removed("cpu", 1), byName("disk", 1))
		is(t, e, "its last copy, and it is announced no more than once", 0, 0)
		if n := p.hub.stats.unjoined.Load(); n != 1 {
			t.Errorf("%d unjoined, want the one on the disk", n)
		}
	})
	t.Run("beyond the memory of removals", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		for first := range uint64(2) {
			e.say(store(16, from(int(1000*first)+1, int(1000*first)+16), first+1), removed("gpu", first+1))
		}
		for i := range uint64(maxGhosts - 1) {
			e.say(store(16, from(5001, 5016), 100+i), removed("gpu", 100+i))
		}
		e.say(byName("cpu", 1), byName("cpu", 2))
		e.expect("one removal too many ago", ask{tokens: from(1, 16)}, 0)
		e.expect("just remembered", ask{tokens: from(1001, 1016)}, 16)
		if n := p.hub.stats.unjoined.Load(); n != 1 {
			t.Errorf("%d unjoined, want 1", n)
		}
		if n := len(e.ghosts.ring); n > maxGhosts {
			t.Errorf("%d ghosts", n)
		}
	})
	t.Run("never heard of", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(byName("cpu", 71, 72), removed("cpu", 71, 72), byName("cpu", 71))
		if n := p.hub.stats.unjoined.Load(); n != 3 {
			t.Errorf("%d unjoined, want 3", n)
		}
		if n := p.hub.stats.blocks.Load(); n != 0 {
			t.Errorf("%d blocks", n)
		}
	})
	t.Run("copies are counted", func(t *testing.T) {
		e := newPool(t).open()
		e.say(store(16, upTo(64), 1), removed("gpu", 4, 3, 2, 1), byName("cpu", 1, 2, 3, 4), byName("cpu", 1))
		e.say(removed("cpu", 1))
		is(t, e, "one of two copies", 4, 3200)
		e.say(removed("cpu", 1))
		is(t, e, "both", 0, 0)
	})
	t.Run("a clear ends what could be joined", func(t *testing.T) {
		e := newPool(t).open()
		e.say(store(16, upTo(64), 1), removed("gpu", 4, 3, 2, 1), cleared, byName("cpu", 1, 2, 3, 4))
		is(t, e, "after a clear", 0, 0)
	})
}

// What an offload tier says of a prompt's head leaves the salt out. Where salts are in use it is nobody's, unless the engine
// has said before what the name stands for.
func TestC15_OffloadedHeadsLeaveTheSaltOut(t *testing.T) {
	p := newPool(t)
	e := p.open()
	head, tail := on("cpu", store(16, upTo(16), 1)), on("cpu", after(1, store(16, from(17, 32), 2)))
	e.say(head, tail)
	e.expect("no salt was ever seen", ask{tokens: upTo(32)}, 32)
	e.say(removed("cpu", 2, 1))
	salted := store(16, upTo(16), 1)
	salted.Salt = []byte("tenant-1")
	e.say(salted, head, removed("gpu", 1), tail)
	for salt, want := range map[string]int{"tenant-1": 32, "": 0, "tenant-2": 0} {
		e.expect("known by name, for salt "+salt, ask{tokens: upTo(32), salt: salt}, want)
	}
	f := p.open()
	f.say(head, tail)
	for _, salt := range []string{"tenant-1", "", "tenant-2"} {
		f.expect("known by nothing, for salt "+salt, ask{tokens: upTo(32), salt: salt}, 0)
	}
	said := head
	said.ExtraEnd = []int{0} // an engine that says that there are none
	f.say(said)
	f.expect("said to have none", ask{tokens: upTo(32)}, 32)
}

// Self-describing stores come children first.
func TestSelfDescribingStoresInAnyOrder(t *testing.T) {
	order := [][]uint64{{4, 3, 2, 1}, {2, 4, 1, 3}, {3, 1, 4, 2}, {1, 2, 3, 4}}
	for _, names := range order {
		e := newPool(t).open()
		for _, n := range names {
			ev := on("cpu", store(16, from(int(16*n)-15, int(16*n)), n))
			if n > 1 {
				ev = after(n-1, ev)
			}
			e.say(ev)
		}
		if diff := cmp.Diff(chain.Match{Blocks: 4, Weight: 3200}, e.match(ask{tokens: upTo(64)})); diff != "" {
			t.Errorf("%v (-want +got):\n%s", names, diff)
		}
	}
}

// An engine holds one physical copy a request, and says so for each: the block is there while any copy is.
func TestCopiesAreCounted(t *testing.T) {
	p := newPool(t)
	e := p.open()
	const copies = 600 // more than a table's entry counts by itself
	for range copies {
		e.say(store(16, upTo(32), 1))
	}
	for range copies - 1 {
		e.say(removed("gpu", 2))
	}
	e.expect("one of 600 left", ask{tokens: upTo(32)}, 32)
	e.say(removed("gpu", 2))
	e.expect("none left", ask{tokens: upTo(32)}, 16)
	e.say(removed("gpu", 2))
	if n := p.hub.stats.unknownRemovals.Load(); n != 1 {
		t.Errorf("%d removals of what is not there, want 1", n)
	}
	// Twice in one event is twice too.
	ev := store(16, upTo(64), 21)
	ev.Hashes = []uint64{21, 22, 22, 23}
	e.say(ev)
	e.say(removed("gpu", 22))
	e.expect("a name given twice, removed once", ask{tokens: upTo(32)}, 32)
	if err := e.check(); err != nil {
		t.Error(err)
	}
	e.close()
	if z := p.hub.store.Sizes(); z.Chains != 0 {
		t.Errorf("left: %+v", z)
	}
}

// A captured request with kv_cache_report_mode "full" repeats 18 stores. Where it was seen to pass they are no copies;
// where it was not, they are, and an answer puts that right, towards a miss.
func TestCapturedReportFull(t *testing.T) {
	for _, seen := range []bool{true, false} {
		p := newPool(t)
		e := p.open()
		e.State(cursor.Live)
		o := newOracle(t)
		var prompt ask
		var names []uint64
		for _, f := range kvtest.Captures(t, "kv_sha256_b32") {
			if f.Phase != "p3b_repeat_p1_report_full" {
				if f.Seq < 2 { // the prompt and another one with the same head
					e.hear(f.Payload)
					o.apply(f.Batch)
				}
				continue
			}
			b, err := e.decoder.Decode(f.Payload)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, b.Events[0].Hashes...)
			prompt = ask{tokens: append([]uint32(nil), b.Events[0].Tokens...)}
			hashes := p.look(prompt).cuts[1].hashes
			noted := 0
			if seen {
				noted = e.report(hashes)
			}
			e.hear(f.Payload)
			if seen {
				e.endReport(hashes[:noted])
			}
		}
		if len(names) != 18 {
			t.Fatalf("%d repeated stores in the capture, want 18", len(names))
		}
		e.expect("repeated", prompt, 18*captureBlock)
		if n := p.hub.stats.reported.Load(); (n == 18) != seen {
			t.Errorf("seen %v: %d repeated stores known as such", seen, n)
		}
		e.say(removed("gpu", names...))
		want := 0
		if !seen {
			want = 18 * captureBlock
		}
		e.expect("removed once, as the engine has them once", prompt, want)
		// The engine's answers say that nothing is cached.
		hashes := p.look(prompt).cuts[1].hashes
		for range 2 {
			e.contradict(hashes, captureBlock, 0, e.now())
		}
		e.expect("contradicted", prompt, 0)
		if err := e.check(); err != nil {
			t.Error(err)
		}
	}
}
