package picker_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

var allTypes = []string{"max-score-picker", "random-picker", "weighted-random-picker"}

// bench is one picker and a cycle to pick in.
type bench struct {
	picker scheduling.Picker
	cycle  *scheduling.Cycle
	totals []float64
}

// newBench has one candidate per total; NaN marks an endpoint that is no candidate.
func newBench(tb testing.TB, typ, parameters string, totals ...float64) *bench {
	tb.Helper()
	table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, len(totals))}
	s := table.Build(tb, picker.Types(), []scheduling.Spec{{Name: typ, Type: typ, Decode: schedtest.YAML(parameters)}}, typ)
	c := s.Begin(table.Pool().Snapshot(), &scheduling.Request{ID: 1}, 0)
	tb.Cleanup(func() { s.End(c) })
	for i, v := range totals {
		if math.IsNaN(v) {
			c.Candidates.Remove(i)
		}
	}
	p, ok := s.Plugin(typ).(scheduling.Picker)
	if !ok {
		tb.Fatalf("%s is no picker", typ)
	}
	return &bench{picker: p, cycle: c, totals: totals}
}

func (b *bench) pick(seed uint64, maxPicks int) []int {
	b.cycle.Seed, b.cycle.MaxPicks = seed, maxPicks
	return b.picker.Pick(b.cycle, b.cycle.Candidates, b.totals, nil)
}

var none = math.NaN()

func TestMaxScorePicker(t *testing.T) {
	for _, tc := range []struct {
		name     string
		totals   []float64
		maxPicks int
		want     []int
	}{
		{"highest", []float64{0.2, 0.9, 0.5}, 1, []int{1}},
		{"ordered list", []float64{0.2, 0.9, 0.5, 0.7}, 3, []int{1, 3, 2}},
		{"ascending input", []float64{1, 2, 3, 4, 5}, 3, []int{4, 3, 2}},
		{"descending input", []float64{5, 4, 3, 2, 1}, 3, []int{0, 1, 2}},
		{"more asked for than there are", []float64{0.2, 0.9}, 5, []int{1, 0}},
		{"only candidates", []float64{0.2, none, 0.5, none}, 4, []int{2, 0}},
		{"zero is a score", []float64{0, none}, 1, []int{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, "max-score-picker", "", tc.totals...)
			for seed := range uint64(20) {
				if diff := cmp.Diff(tc.want, b.pick(seed, tc.maxPicks)); diff != "" {
					t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
				}
			}
		})
	}
}

// TestC44_OrderedListHoldsEachEndpointOnce: a retry never returns to the head that just failed.
func TestC44_OrderedListHoldsEachEndpointOnce(t *testing.T) {
	for _, typ := range allTypes {
		t.Run(typ, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				totals := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0.25, 0.5, 1, none}), 1, 150).Draw(rt, "totals")
				want := rapid.IntRange(1, 20).Draw(rt, "maxPicks")
				b := newBench(t, typ, "", totals...)
				picks := b.pick(rapid.Uint64().Draw(rt, "seed"), want)
				if len(picks) != min(want, b.cycle.Candidates.Len()) {
					rt.Fatalf("%d picks of %d candidates, want %d", len(picks), b.cycle.Candidates.Len(), want)
				}
				for i, e := range picks {
					if !b.cycle.Candidates.Has(e) {
						rt.Fatalf("%d is no candidate", e)
					}
					if slices.Contains(picks[:i], e) {
						rt.Fatalf("%d stands twice in %v", e, picks)
					}
				}
				if typ == "max-score-picker" {
					checkBest(rt, b, picks)
				}
			})
		})
	}
}

// checkBest compares the picks' totals with those of a plain sort.
func checkBest(rt *rapid.T, b *bench, picks []int) {
	var sorted []float64
	for e := range b.cycle.Candidates.All() {
		sorted = append(sorted, b.totals[e])
	}
	slices.SortFunc(sorted, func(x, y float64) int { return -cmpFloat(x, y) })
	for i, e := range picks {
		if b.totals[e] != sorted[i] {
			rt.Fatalf("pick %d has the total %v, want %v", i, b.totals[e], sorted[i])
		}
	}
}

func cmpFloat(x, y float64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// TestNoCandidateNoPick holds for every picker: the list stays as it was.
func TestNoCandidateNoPick(t *testing.T) {
	for _, typ := range allTypes {
		if got := newBench(t, typ, "", none, none).pick(1, 3); len(got) != 0 {
			t.Errorf("%s picked %v of nothing", typ, got)
		}
	}
}

// TestPicksFollowThoseAlreadyThere: a picker appends, and its own bound is on the whole list.
func TestPicksFollowThoseAlreadyThere(t *testing.T) {
	for _, typ := range allTypes {
		b := newBench(t, typ, "maxNumOfEndpoints: 3", none, 1, 1, 1, none)
		b.cycle.MaxPicks = 5
		got := b.picker.Pick(b.cycle, b.cycle.Candidates, b.totals, []int{4})
		if len(got) != 3 || got[0] != 4 {
			t.Errorf("%s: got %v, want 4 and two of 1, 2, 3", typ, got)
		}
		if again := b.picker.Pick(b.cycle, b.cycle.Candidates, b.totals, []int{4, 0, 1, 2}); len(again) != 4 {
			t.Errorf("%s: a full list grew to %v", typ, again)
		}
	}
}

func TestMaxNumOfEndpoints(t *testing.T) {
	for _, typ := range allTypes {
		for _, tc := range []struct {
			parameters string
			asked      int
			want       int
		}{
			{"", 1, 1},
			{"", 4, 4},
			{"maxNumOfEndpoints: 0", 4, 4},
			{"maxNumOfEndpoints: 2", 4, 2},
			{"maxNumOfEndpoints: 4", 2, 2},
		} {
			if got := newBench(t, typ, tc.parameters, 1, 1, 1, 1, 1).pick(1, tc.asked); len(got) != tc.want {
				t.Errorf("%s {%s}, %d asked: %d picks, want %d", typ, tc.parameters, tc.asked, len(got), tc.want)
			}
		}
	}
}

func TestParameterRanges(t *testing.T) {
	for _, typ := range allTypes {
		for parameters, want := range map[string]string{
			"maxNumOfEndpoints: -1":   "parameters.maxNumOfEndpoints: must be between 0 and 1000, got -1",
			"maxNumOfEndpoints: 1001": "parameters.maxNumOfEndpoints: must be between 0 and 1000, got 1001",
			"maxNumOfEndpoint: 1":     "unknown field",
		} {
			_, err := scheduling.Build(picker.Types(), schedtest.Config(
				[]scheduling.Spec{{Name: typ, Type: typ, Decode: schedtest.YAML(parameters)}}, typ), nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s {%s}: got %v, want %q", typ, parameters, err, want)
			}
		}
	}
}

// TestPickersAllocateNothing holds once the list has room: they run inside the critical section.
func TestPickersAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, typ := range allTypes {
		b := newBench(t, typ, "", slices.Repeat([]float64{0.5, 0.25}, 100)...)
		b.cycle.MaxPicks = 3
		picks := make([]int, 0, 3)
		if n := testing.AllocsPerRun(100, func() {
			picks = b.picker.Pick(b.cycle, b.cycle.Candidates, b.totals, picks[:0])
		}); n != 0 {
			t.Errorf("%s allocates %v times a pick", typ, n)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, typ := range allTypes {
		b.Run(typ, func(b *testing.B) {
			totals := make([]float64, 512)
			for i := range totals {
				totals[i] = float64(scheduling.Mix64(uint64(i))%1000) / 1000
			}
			bench := newBench(b, typ, "", totals...)
			picks := make([]int, 0, 1)
			b.ReportAllocs()
			for b.Loop() {
				bench.cycle.Seed++
				picks = bench.picker.Pick(bench.cycle, bench.cycle.Candidates, totals, picks[:0])
			}
		})
	}
}
