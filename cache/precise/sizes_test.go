package precise

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestC39_BlockSizesAndPartialCredit(t *testing.T) {
	t.Run("one CPU chunk of 64 tokens", func(t *testing.T) {
		e := newPool(t).open()
		e.hear("K18")
		for shared, want := range map[int]int{16: 0, 48: 0, 64: 64, 80: 64} {
			e.expect("a prompt that ends there", ask{tokens: upTo(shared)}, want)
			tail := append(upTo(min(shared, 64)), from(5001, 5080)...)
			e.expect("a prompt that goes on otherwise", ask{tokens: tail}, want)
		}
		if i := e.info(ask{tokens: upTo(80)}); i.TotalBlocks != 1 || i.BlockSizeTokens != 64 {
			t.Errorf("%+v, want one block of 64 tokens looked up", i)
		}
		e.say(removed("cpu", 0xd4d4d4d4d4d4d4d4))
		e.expect("removed", ask{tokens: upTo(80)}, 0)
	})
	t.Run("one of four removed", func(t *testing.T) {
		e := newPool(t).open()
		e.say(store(16, upTo(64), 1))
		e.expect("four blocks", ask{tokens: upTo(64)}, 64)
		e.say(removed("gpu", 3))
		e.expect("the third removed", ask{tokens: upTo(64)}, 32)
		e.say(after(2, store(16, from(33, 48), 3)))
		e.expect("and stored again", ask{tokens: upTo(64)}, 64)
	})
	t.Run("32 then 64", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(store(32, upTo(64), 1))
		e.expect("32", ask{tokens: upTo(128)}, 64)
		e.say(store(64, upTo(128), 11))
		if diff := cmp.Diff(scheduling.NewPrefixCacheMatchInfo(2, 2, 64), e.info(ask{tokens: upTo(128)})); diff != "" {
			t.Errorf("64 (-want +got):\n%s", diff)
		}
		if n := p.hub.stats.resized.Load(); n != 1 {
			t.Errorf("%d changes of size counted, want 1", n)
		}
		// In the other direction the engine must have been started anew; before that, smaller blocks are partial ones.
		e.say(store(32, from(201, 264), 21))
		e.expect("partial", ask{tokens: from(201, 264)}, 0)
		if n := p.hub.stats.partial.Load(); n != 2 {
			t.Errorf("%d partial blocks counted, want 2", n)
		}
		e.Forget(0)
		e.say(store(32, upTo(64), 1))
		e.expect("32 again", ask{tokens: upTo(128)}, 64)
	})
	t.Run("a tail that is not full", func(t *testing.T) {
		p := newPool(t)
		e := p.open()
		e.say(store(16, upTo(32), 1), after(2, store(5, from(33, 37), 3)))
		e.expect("up to it", ask{tokens: upTo(48)}, 32)
		e.say(after(2, store(16, from(33, 48), 4)))
		e.expect("full", ask{tokens: upTo(48)}, 48)
		e.say(removed("gpu", 3)) // that of the tail is nobody's
		e.expect("after the tail's removal", ask{tokens: upTo(48)}, 48)
	})
}

// The larger blocks of an offload tier count as far as they reach beyond the GPU's, and are called like the last of the
// small ones in them.
func TestC39_LargerOffloadedBlocks(t *testing.T) {
	p := newPool(t)
	e := p.open()
	a := ask{tokens: upTo(256)}
	e.say(store(16, upTo(256), 1)) // names 1 to 16
	e.say(on("cpu", store(64, upTo(64), 4)), on("cpu", after(4, store(64, from(65, 128), 8))))
	is := func(when string, want scheduling.PrefixCacheMatchInfo) {
		t.Helper()
		want.TotalBlocks, want.BlockSizeTokens = 16, 16
		if diff := cmp.Diff(want, e.info(a)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	is("all on the GPU", scheduling.PrefixCacheMatchInfo{MatchBlocks: 16, CachedBlockCount: 16})
	e.say(removed("gpu", 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4))
	// 3 on the GPU, 128 tokens on the CPU: 5 more, at 0.8.
	is("mostly on the CPU", scheduling.PrefixCacheMatchInfo{MatchBlocks: 7, CachedBlockCount: 8})
	e.say(removed("gpu", 3, 2, 1))
	is("on the CPU only", scheduling.PrefixCacheMatchInfo{MatchBlocks: 6, CachedBlockCount: 8})
	e.say(removed("cpu", 8))
	is("half of it", scheduling.PrefixCacheMatchInfo{MatchBlocks: 3, CachedBlockCount: 4})
	e.say(store(16, upTo(96), 1)) // read back
	is("read back", scheduling.PrefixCacheMatchInfo{MatchBlocks: 6, CachedBlockCount: 6})
	e.say(removed("cpu", 4), removed("gpu", 1))
	is("nothing whole from the head", scheduling.PrefixCacheMatchInfo{})
	if err := e.check(); err != nil {
		t.Error(err)
	}
	e.close()
	if z := p.hub.store.Sizes(); z.Chains != 0 {
		t.Errorf("left: %+v", z)
	}
}

// Small ones that follow a large one of the same name do not.
func TestC39_ParentsOfAnotherSize(t *testing.T) {
	p := newPool(t)
	e := p.open()
	e.say(on("cpu", store(64, upTo(64), 4)))
	e.say(on("disk", after(4, store(16, from(65, 80), 5))))
	e.expect("a small one behind a large one", ask{tokens: upTo(80)}, 64)
	if n := p.hub.stats.parked.Load(); n != 1 {
		t.Errorf("%d blocks parked, want 1", n)
	}
	e.say(store(16, upTo(64), 1))
	e.expect("the parent of its size is here", ask{tokens: upTo(80)}, 80)
	if err := e.check(); err != nil {
		t.Error(err)
	}
}
