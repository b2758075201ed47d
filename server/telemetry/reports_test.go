package telemetry

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestC36_OpenedAgainstMoved: each of two gates in a row that opens is counted, by whether the request then moved; one that holds is not.
func TestC36_OpenedAgainstMoved(t *testing.T) {
	const second = 15928 // tokens of prefill
	last := scheduling.PluginType{Type: "last-picker", New: func(*scheduling.Builder) (any, error) { return lastPicker{}, nil }}
	for name, tc := range map[string]struct {
		picker string
		busy   int64 // s of prefill on the endpoint with all of the prompt; the second has 85 % of it, and a second less
		picked int
		want   map[string][2]float64 // stayed, moved
	}{
		"both open, the scorers send it back": {schedtest.First.Type, 40, 0, map[string][2]float64{"strict": {1, 0}, "loose": {1, 0}}},
		"both open, it moves":                 {last.Type, 40, 2, map[string][2]float64{"strict": {0, 1}, "loose": {0, 1}}},
		"neither opens":                       {last.Type, 1, 0, map[string][2]float64{"strict": {0, 0}, "loose": {0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := func(blocks int, load int64) schedtest.Endpoint {
				match := scheduling.NewPrefixCacheMatchInfo(blocks, 100, 16)
				return schedtest.Endpoint{Match: &match, Load: &scheduling.InFlightLoad{Requests: 1, Tokens: load}}
			}
			table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
				endpoint(100, tc.busy*second), endpoint(85, (tc.busy-1)*second), endpoint(0, 0),
			}}
			spec := func(name, parameters string) scheduling.Spec {
				return scheduling.Spec{Name: name, Type: gate.TypeName, Decode: schedtest.YAML(parameters)}
			}
			s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First, last}, []scheduling.Spec{
				spec("strict", "{affinityThreshold: 0.99, explorationProbability: 0}"), spec("loose", "explorationProbability: 0"),
			}, "strict", "loose", tc.picker)
			c := s.Begin(table.Pool().Snapshot(), &scheduling.Request{ID: 1, Model: "m"}, 0)
			s.Produce(t.Context(), c)
			f, err := s.Commit(c)
			if err != nil {
				t.Fatal(err)
			}
			if f.Endpoint.Ordinal != tc.picked {
				t.Fatalf("picked %d, want %d (%v)", f.Endpoint.Ordinal, tc.picked, c.Gates)
			}
			m := NewMetrics(prometheus.NewPedanticRegistry(), 0)
			m.Picked(c, f, 0)
			for filter, want := range tc.want {
				stayed := testutil.ToFloat64(m.gates.released.WithLabelValues(filter, "false"))
				moved := testutil.ToFloat64(m.gates.released.WithLabelValues(filter, "true"))
				if got := [2]float64{stayed, moved}; got != want {
					t.Errorf("%s: stayed and moved %v, want %v", filter, got, want)
				}
			}
		})
	}
}
