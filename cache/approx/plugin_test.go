package approx

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func matched(t *testing.T, got infos, want map[string]int) {
	t.Helper()
	blocks := map[string]int{}
	for address, info := range got {
		if info.MatchBlocks != info.CachedBlockCount {
			t.Errorf("%s: MatchBlocks %d, CachedBlockCount %d: want the same", address, info.MatchBlocks, info.CachedBlockCount)
		}
		blocks[address] = info.MatchBlocks
	}
	if diff := cmp.Diff(want, blocks); diff != "" {
		t.Errorf("matched blocks (-want +got):\n%s", diff)
	}
}

func TestLearnsFromPicks(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1", "c:1")
	turn1 := words(1, 640)
	turn2 := turn1 + words(2, 330)
	matched(t, h.look(text("m", turn1)), map[string]int{"a:1": 0, "b:1": 0, "c:1": 0})
	h.serve(text("m", turn1), "b:1")
	matched(t, h.look(text("m", turn2)), map[string]int{"a:1": 0, "b:1": 10, "c:1": 0})
	h.serve(text("m", turn2), "c:1")
	got := h.look(text("m", turn2))
	want := infos{
		"a:1": scheduling.NewPrefixCacheMatchInfo(0, 15, 16),
		"b:1": scheduling.NewPrefixCacheMatchInfo(10, 15, 16),
		"c:1": scheduling.NewPrefixCacheMatchInfo(15, 15, 16),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	matched(t, h.look(text("m", "x"+turn2)), map[string]int{"a:1": 0, "b:1": 0, "c:1": 0})
}
