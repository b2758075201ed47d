package scorer_test

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func tokens(n int64) schedtest.Endpoint {
	return schedtest.Endpoint{Load: &scheduling.InFlightLoad{Tokens: n}}
}

func TestTokenLoadScorer(t *testing.T) {
	runScoreCases(t, "token-load-scorer", []scoreCase{
		{
			name:      "default threshold",
			endpoints: []schedtest.Endpoint{tokens(0), tokens(1 << 20), tokens(4194304), tokens(9000000)},
			want:      []float64{1, 0.75, 0, 0},
		},
		{
			name:       "own threshold",
			parameters: "queueThresholdTokens: 1000",
			endpoints:  []schedtest.Endpoint{tokens(100), tokens(999)},
			want:       []float64{0.9, 0.001},
		},
		{
			name:       "a negative count is none",
			parameters: "queueThresholdTokens: 1000",
			endpoints:  []schedtest.Endpoint{tokens(-10)},
			want:       []float64{1},
		},
		{
			name:       "unknown is the mean",
			parameters: "queueThresholdTokens: 1000",
			endpoints:  []schedtest.Endpoint{tokens(0), {}, tokens(1000)},
			want:       []float64{1, 0.5, 0},
		},
		{name: "nothing known", endpoints: []schedtest.Endpoint{{}, {}}, want: []float64{0, 0}},
	})
}
