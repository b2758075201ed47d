package scorer_test

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func requests(n int64) schedtest.Endpoint {
	return schedtest.Endpoint{Load: &scheduling.InFlightLoad{Requests: n}}
}

func TestActiveRequestScorer(t *testing.T) {
	runScoreCases(t, "active-request-scorer", []scoreCase{
		{
			name:      "idle, half, busiest",
			endpoints: []schedtest.Endpoint{requests(0), requests(2), requests(4)},
			want:      []float64{1, 0.5, 0},
		},
		{name: "all idle", endpoints: []schedtest.Endpoint{requests(0), requests(0)}, want: []float64{1, 1}},
		{name: "all equally busy", endpoints: []schedtest.Endpoint{requests(3), requests(3)}, want: []float64{0, 0}},
		{
			name:       "idleThreshold is inclusive",
			parameters: "idleThreshold: 2",
			endpoints:  []schedtest.Endpoint{requests(2), requests(3), requests(6)},
			want:       []float64{1, 0.5, 0},
		},
		{
			name:       "maxBusyScore leaves a gap below idle",
			parameters: "maxBusyScore: 0.5",
			endpoints:  []schedtest.Endpoint{requests(0), requests(1), requests(10)},
			want:       []float64{1, 0.45, 0},
		},
		{
			name:      "unknown is the mean",
			endpoints: []schedtest.Endpoint{requests(0), {}, requests(4)},
			want:      []float64{1, 0.5, 0},
		},
		{name: "nothing known", endpoints: []schedtest.Endpoint{{}, {}}, want: []float64{0, 0}},
	})
}
