package scorer_test

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func match(matched, total, blockSize int) schedtest.Endpoint {
	return schedtest.Endpoint{Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(matched, total, blockSize))}
}

func TestPrefixCacheScorer(t *testing.T) {
	cpuTier := schedtest.Endpoint{Match: &scheduling.PrefixCacheMatchInfo{
		MatchBlocks: 204, CachedBlockCount: 256, TotalBlocks: 256, BlockSizeTokens: 16,
	}}
	runScoreCases(t, "prefix-cache-scorer", []scoreCase{
		{
			name:      "ratio",
			endpoints: []schedtest.Endpoint{match(0, 10, 16), match(5, 10, 16), match(10, 10, 16)},
			want:      []float64{0, 0.5, 1},
		},
		{
			name:      "the weighted count ranks, not the literal one",
			endpoints: []schedtest.Endpoint{cpuTier},
			want:      []float64{0.796875},
		},
		{
			name:      "unknown, invalid and shorter than a block score 0",
			endpoints: []schedtest.Endpoint{{}, match(5, 10, 0), match(0, 0, 16), match(5, 10, 16)},
			want:      []float64{0, 0, 0, 0.5},
		},
		{
			// 8192-token scale: 512 blocks of 16 tokens are the whole scale, 256 a quarter after squaring.
			name:       "length beside ratio",
			parameters: "matchLengthWeight: 0.5",
			endpoints:  []schedtest.Endpoint{match(512, 1024, 16), match(256, 256, 16), match(2048, 2048, 16)},
			want:       []float64{0.5*0.5 + 0.5*1, 0.5*1 + 0.5*0.25, 1},
		},
		{
			name:       "length alone",
			parameters: "{matchLengthWeight: 1, matchLengthScaleTokens: 1000}",
			endpoints:  []schedtest.Endpoint{match(8, 8, 16), match(30, 1000, 16), match(1000, 1000, 16)},
			want:       []float64{0.128 * 0.128, 0.48 * 0.48, 1},
		},
	})
}

// TestC20_ShortPromptScoresZero: a prompt under one block has 0 of 0 blocks cached, which is neither 1 nor NaN.
func TestC20_ShortPromptScoresZero(t *testing.T) {
	runScoreCases(t, "prefix-cache-scorer", []scoreCase{{
		name:       "0 of 0",
		parameters: "matchLengthWeight: 0.3",
		endpoints:  []schedtest.Endpoint{match(0, 0, 16), match(0, 0, 16)},
		want:       []float64{0, 0},
	}})
}
