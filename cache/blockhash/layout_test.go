package blockhash

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		name                         string
		block, runs, tokens          int
		single, maxBlocks, uniformly int // single: runs of one block; maxBlocks: reached
	}{
		{"defaults at 16 tokens", 16, 2048, 131072, 512, 8192, 0},
		{"defaults at 64 tokens: single blocks reach", 64, 2048, 131072, 2048, 2048, 1},
		{"few runs", 16, 256, 131072, 32, 8192, 0},
		{"too few runs to reach", 16, 4, 131072, 2, 8, 0},
		{"one run", 16, 1, 131072, 1, 1, 0},
		{"token limit below one block", 16, 8, 3, 1, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := NewLayout(tc.block, tc.runs, tc.tokens)
			n, single := 0, 0
			for ; !l.Full(n); n++ {
				if l.Width(n) == 1 {
					single++
				}
			}
			if single != tc.single || l.Blocks(n) != tc.maxBlocks || l.uniform != (tc.uniformly == 1) {
				t.Errorf("%d single runs, %d blocks in %d runs, uniform %v; want %d, %d", single, l.Blocks(n), n, l.uniform, tc.single, tc.maxBlocks)
			}
			if n > tc.runs {
				t.Errorf("%d runs, more than %d", n, tc.runs)
			}
		})
	}
}

func TestLayoutProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.IntRange(1, 100).Draw(t, "block")
		runs := rapid.IntRange(1, 5000).Draw(t, "runs")
		tokens := rapid.IntRange(1, 1<<20).Draw(t, "tokens")
		l := NewLayout(block, runs, tokens)
		if l.BlockTokens() != block || l.BlockBytes() != 4*block {
			t.Fatalf("block of %d tokens, %d bytes", l.BlockTokens(), l.BlockBytes())
		}
		blocks, n := 0, 0
		for ; !l.Full(n); n++ {
			if got := l.Blocks(n); got != blocks {
				t.Fatalf("Blocks(%d) = %d, but the widths add up to %d", n, got, blocks)
			}
			width := l.Width(n)
			if width > 1 && width > blocks/(1<<l.fineShift) {
				t.Fatalf("run %d of %d blocks behind %d: coarser than 1/%d", n, width, blocks, 1<<l.fineShift)
			}
			for _, within := range []int{blocks, blocks + width - 1} {
				if got := l.WidthAfter(within); got != width {
					t.Fatalf("WidthAfter(%d) = %d, want %d of run %d behind %d", within, got, width, n, blocks)
				}
			}
			blocks += width
		}
		if n > runs || n > l.MaxRuns() || blocks > max(1, tokens/block) {
			t.Fatalf("%d runs (at most %d), %d blocks (at most %d)", n, runs, blocks, tokens/block)
		}
		// It reaches the limit, but for a last run that would cross it, wherever there are enough runs at all.
		if limit := max(1, tokens/block); n < runs && blocks+l.Width(n) <= limit {
			t.Fatalf("stops at %d of %d blocks with %d of %d runs", blocks, limit, n, runs)
		}
	})
}
