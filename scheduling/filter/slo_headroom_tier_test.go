package filter_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

const tierFilter = "slo-headroom-tier-filter"

func tiers(t *testing.T, table *schedtest.Table, parameters string) *scheduling.Scheduler {
	t.Helper()
	return table.Build(t, append(filter.Types(), schedtest.First),
		[]scheduling.Spec{{Name: tierFilter, Type: tierFilter, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}}, tierFilter, schedtest.First.Type)
}

// leaves is an endpoint whose prediction leaves so many ms of the objectives.
func leaves(ttft, tpot float64) schedtest.Endpoint {
	return schedtest.Endpoint{Latency: &scheduling.LatencyPrediction{TTFTMs: 50, TPOTMs: 10, TTFTHeadroomMs: ttft, TPOTHeadroomMs: tpot}}
}

func TestSLOHeadroomTierFilter(t *testing.T) {
	ttft, both := &scheduling.LatencyObjective{TTFTMs: 200}, &scheduling.LatencyObjective{TTFTMs: 200, TPOTMs: 40}
	whole := leaves(100, 10)
	whole.Latency.WholeResponse = true
	useless := leaves(100, 10)
	useless.Latency.TTFTMs = math.NaN()
	for name, tc := range map[string]struct {
		objective *scheduling.LatencyObjective
		endpoints []schedtest.Endpoint
		want      []int
	}{
		"asks nothing":                     {nil, []schedtest.Endpoint{leaves(-1, 0), leaves(1, 0), {}}, []int{0, 1, 2}},
		"an objective of nothing":          {&scheduling.LatencyObjective{}, []schedtest.Endpoint{leaves(-1, 0), leaves(1, 0), {}}, []int{0, 1, 2}},
		"those that meet it":               {ttft, []schedtest.Endpoint{leaves(-1, 0), leaves(1, 0), leaves(0, 0), {}}, []int{1, 2}},
		"in everything that is asked":      {both, []schedtest.Endpoint{leaves(100, -1), leaves(-1, 10), leaves(1, 1)}, []int{2}},
		"what is not asked does not count": {ttft, []schedtest.Endpoint{leaves(100, -1), leaves(-1, 10)}, []int{0}},
		"none meets it":                    {ttft, []schedtest.Endpoint{leaves(-1, 0), {}, leaves(-100, 0)}, []int{0, 2}},
		"all meet it":                      {ttft, []schedtest.Endpoint{leaves(1, 0), leaves(100, 0)}, []int{0, 1}},
		"nothing known":                    {ttft, []schedtest.Endpoint{{}, useless, leaves(math.NaN(), 0), leaves(math.Inf(1), 0)}, []int{0, 1, 2, 3}},
		"times to the end are unknown":     {ttft, []schedtest.Endpoint{whole, leaves(-1, 0)}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			table := &schedtest.Table{Endpoints: tc.endpoints, Objective: tc.objective}
			c := table.Decide(t, tiers(t, table, "epsilonExploreNeg: 0"), &scheduling.Request{ID: 1})
			if diff := cmp.Diff(tc.want, slices.Collect(c.Candidates.All())); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSLOHeadroomTierExplores: of the requests that could choose, the given share goes to the other tier, the same ones each time.
func TestSLOHeadroomTierExplores(t *testing.T) {
	table := &schedtest.Table{
		Endpoints: []schedtest.Endpoint{leaves(-1, 0), leaves(1, 0), {}}, Objective: &scheduling.LatencyObjective{TTFTMs: 200},
	}
	for parameters, want := range map[string][2]int{
		"epsilonExploreNeg: 0": {0, 0}, "": {2, 25}, "epsilonExploreNeg: 0.5": {400, 600}, "epsilonExploreNeg: 1": {1000, 1000},
	} {
		s, explored := tiers(t, table, parameters), 0
		for id := range uint64(1000) {
			kept := slices.Collect(table.Decide(t, s, &scheduling.Request{ID: id}).Candidates.All())
			if again := slices.Collect(table.Decide(t, s, &scheduling.Request{ID: id}).Candidates.All()); !slices.Equal(kept, again) {
				t.Fatalf("%q: %v, then %v", parameters, kept, again)
			}
			switch {
			case slices.Equal(kept, []int{0}):
				explored++
			case !slices.Equal(kept, []int{1}):
				t.Fatalf("%q: kept %v", parameters, kept)
			}
		}
		if explored < want[0] || explored > want[1] {
			t.Errorf("%q: %d of 1000 explore, want %v", parameters, explored, want)
		}
	}
	table.Endpoints = []schedtest.Endpoint{leaves(1, 0), {}}
	c := table.Decide(t, tiers(t, table, "epsilonExploreNeg: 1"), &scheduling.Request{ID: 1})
	if got := slices.Collect(c.Candidates.All()); !slices.Equal(got, []int{0}) {
		t.Errorf("with nobody to explore it keeps %v", got)
	}
}

// TestSLOHeadroomTierIsAPreference: what it leaves out still follows in an ordered list.
func TestSLOHeadroomTierIsAPreference(t *testing.T) {
	table := &schedtest.Table{
		Endpoints: []schedtest.Endpoint{leaves(-1, 0), leaves(1, 0)}, Objective: &scheduling.LatencyObjective{TTFTMs: 200},
	}
	cfg := schedtest.Config(nil, tierFilter, schedtest.First.Type)
	cfg.MaxPicks = 2
	s, err := scheduling.Build(append(table.Types(), append(filter.Types(), schedtest.First)...), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(50) {
		picks := table.Decide(t, s, &scheduling.Request{ID: id}).Picks
		if len(picks) != 2 {
			t.Fatalf("picks %v, want both", picks)
		}
	}
}

func TestSLOHeadroomTierRefuses(t *testing.T) {
	for parameters, want := range map[string]string{
		"epsilonExploreNeg: -0.1": "plugins[0]: parameters.epsilonExploreNeg: must be from 0 to 1, got -0.1",
		"epsilonExploreNeg: 2":    "got 2", "epsilonExploreNeg: .nan": "got NaN", "epsilonExplore: 0": "unknown field",
		"latencyPredictionInfoProducerName: nobody": `latencyPredictionInfoProducerName: unknown producer "nobody"`,
	} {
		table := &schedtest.Table{}
		cfg := schedtest.Config([]scheduling.Spec{{Name: tierFilter, Type: tierFilter, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}},
			tierFilter, schedtest.First.Type)
		_, err := scheduling.Build(append(table.Types(), append(filter.Types(), schedtest.First)...), cfg, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", parameters, err, want)
		}
	}
}

func TestSLOHeadroomTierAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	table := &schedtest.Table{Objective: &scheduling.LatencyObjective{TTFTMs: 200}}
	for i := range 100 {
		table.Endpoints = append(table.Endpoints, leaves(float64(i-50), 0))
	}
	s := tiers(t, table, "epsilonExploreNeg: 0.5")
	f, ok := s.Plugin(tierFilter).(scheduling.Filter)
	if !ok {
		t.Fatal("no filter")
	}
	c := table.Decide(t, s, &scheduling.Request{ID: 1})
	candidates := c.Scratch()
	if n := testing.AllocsPerRun(100, func() {
		candidates.CopyFrom(c.Considered)
		f.Filter(c, candidates)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if candidates.Empty() || candidates.Len() == 100 {
		t.Errorf("%d candidates left", candidates.Len())
	}
}
