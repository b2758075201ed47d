package scheduling_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// profileOf builds a scheduler of ready plugins, in order, and a picker that lists by total.
func profileOf(t *testing.T, maxPicks int, inProfile ...any) *scheduling.Scheduler {
	t.Helper()
	types := picker.Types()
	var names []string
	for i, p := range inProfile {
		name := "p" + string(rune('0'+i))
		types = append(types, fake(name, p))
		names = append(names, name)
	}
	cfg := schedtest.Config(nil, append(names, "max-score-picker")...)
	cfg.MaxPicks = maxPicks
	for i := range inProfile {
		cfg.Profile[i].Weight = float64(i + 1)
	}
	return mustBuild(t, types, cfg)
}

// preview decides over n endpoints.
func preview(t *testing.T, s *scheduling.Scheduler, n int) *scheduling.Cycle {
	t.Helper()
	c := s.Begin(pool(n).Snapshot(), &scheduling.Request{ID: 7}, 0)
	t.Cleanup(func() { s.End(c) })
	s.Preview(c)
	return c
}

// TestScoresAreClamped: a scorer that breaks the contract cannot outvote the others, and cannot poison a total.
func TestScoresAreClamped(t *testing.T) {
	raw := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -3, 7, 0.25, 0}
	c := preview(t, profileOf(t, 1, scores(raw...)), len(raw))
	want := []float64{0, 1, 0, 0, 1, 0.25, 0}
	if diff := cmp.Diff(want, c.Scores[0].Raw); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, c.Totals); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

func TestTotalsAreWeighted(t *testing.T) {
	c := preview(t, profileOf(t, 2, scores(1, 0, 0.5), scores(0, 1, 0.5)), 3)
	if diff := cmp.Diff([]float64{1, 2, 1.5}, c.Totals); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1, 2}, c.Picks); diff != "" {
		t.Errorf("picks (-want +got):\n%s", diff)
	}
	for i, want := range []string{"p0", "p1"} {
		if c.Scores[i].Scorer != want || c.Scores[i].Weight != float64(i+1) {
			t.Errorf("scorer %d is %q with weight %v", i, c.Scores[i].Scorer, c.Scores[i].Weight)
		}
	}
}

func TestNeutralScore(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name         string
		scores, want []float64
		candidates   []int
	}{
		{"mean of the known", []float64{1, nan, 0.5, nan, 0}, []float64{1, 0.5, 0.5, 0.5, 0}, []int{0, 1, 2, 3, 4}},
		{"others do not count", []float64{1, nan, 0.5, nan, 0}, []float64{1, 1, 0.5, nan, 0}, []int{0, 1}},
		{"nothing known", []float64{nan, nan}, []float64{0, 0}, []int{0, 1}},
		{"all known", []float64{0.25, 1}, []float64{0.25, 1}, []int{0, 1}},
		{"no candidate", []float64{nan}, []float64{nan}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := scheduling.NewSet(len(tc.scores))
			for _, i := range tc.candidates {
				set.Add(i)
			}
			got := slices.Clone(tc.scores)
			scheduling.NeutralScore(set, got)
			for i := range got {
				if got[i] != tc.want[i] && !(math.IsNaN(got[i]) && math.IsNaN(tc.want[i])) {
					t.Errorf("score %d is %v, want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

func TestNoCandidate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		s      *scheduling.Scheduler
		n      int
		subset []int
	}{
		{"no endpoint at all", profileOf(t, 1), 0, nil},
		{"an empty subset", profileOf(t, 1), 3, []int{}},
		{"a filter that leaves nothing", profileOf(t, 1, keep(), scores(1, 1, 1)), 3, nil},
		{"filters that leave nothing together", profileOf(t, 1, keep(0), keep(1)), 3, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.s.Begin(pool(tc.n).Snapshot(), &scheduling.Request{}, 0)
			defer tc.s.End(c)
			if tc.subset != nil {
				c.Restrict(scheduling.NewSet(tc.n))
			}
			f, err := tc.s.Commit(c)
			if !errors.Is(err, scheduling.ErrNoCandidate) || f != nil {
				t.Errorf("got %v, %v", f, err)
			}
			if len(c.Picks) != 0 {
				t.Errorf("picked %v", c.Picks)
			}
		})
	}
}

func TestOnlyReadyEndpointsInTheSubset(t *testing.T) {
	table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, 5)}
	table.Endpoints[1].State = scheduling.EndpointNotReady
	table.Endpoints[2].State = scheduling.EndpointDraining
	s := profileOf(t, 9, scores(1, 1, 1, 1, 1))
	c := s.Begin(table.Pool().Snapshot(), &scheduling.Request{}, 0)
	defer s.End(c)
	allowed := scheduling.NewSet(5)
	for _, i := range []int{1, 2, 3, 4} {
		allowed.Add(i)
	}
	c.Restrict(allowed)
	s.Preview(c)
	slices.Sort(c.Picks)
	if diff := cmp.Diff([]int{3, 4}, c.Picks); diff != "" {
		t.Errorf("picks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{3, 4}, slices.Collect(c.Considered.All())); diff != "" {
		t.Errorf("considered (-want +got):\n%s", diff)
	}
}

func TestStepsSayWhatEachFilterLeft(t *testing.T) {
	c := preview(t, profileOf(t, 1, keep(0, 1, 2), scores(1, 1, 1, 1), keep(1, 2, 3)), 4)
	want := map[string][]int{"p0": {0, 1, 2}, "p2": {1, 2}}
	got := map[string][]int{}
	for _, step := range c.Steps {
		got[step.Filter] = slices.Collect(step.Left.All())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3}, slices.Collect(c.Considered.All())); diff != "" {
		t.Errorf("considered (-want +got):\n%s", diff)
	}
}

// TestBackfill: what only a preference left out fills the ordered list up, behind those that it kept; what a filter
// left out never comes back, wherever it stands.
func TestBackfill(t *testing.T) {
	up := scores(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
	for _, tc := range []struct {
		name     string
		maxPicks int
		profile  []any
		want     []int
	}{
		{"not needed for one pick", 1, []any{preference{keep(0)}, up}, []int{0}},
		{"behind the preferred", 3, []any{preference{keep(0)}, up}, []int{0, 5, 4}},
		{"enough preferred ones", 2, []any{preference{keep(0, 1, 2)}, up}, []int{2, 1}},
		{"a filter before", 4, []any{keep(0, 1, 3), preference{keep(0)}, up}, []int{0, 3, 1}},
		{"a filter behind", 4, []any{preference{keep(0)}, keep(0, 1, 3), up}, []int{0, 3, 1}},
		{"filters on both sides", 4, []any{keep(0, 1, 2, 3), preference{keep(0)}, keep(0, 1, 3, 5), up}, []int{0, 3, 1}},
		{"two preferences", 9, []any{preference{keep(0, 1)}, preference{keep(1)}, up}, []int{1, 5, 4, 3, 2, 0}},
		{"no preference, no backfill", 4, []any{keep(2, 0), up}, []int{2, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := preview(t, profileOf(t, tc.maxPicks, tc.profile...), 6)
			if diff := cmp.Diff(tc.want, c.Picks); diff != "" {
				t.Errorf("picks (-want +got):\n%s", diff)
			}
			if c.MaxPicks != tc.maxPicks {
				t.Errorf("MaxPicks is %d afterwards, was %d", c.MaxPicks, tc.maxPicks)
			}
		})
	}
}

// TestProducerFaults: one producer's failure is noted and costs nothing else.
func TestProducerFaults(t *testing.T) {
	var ran []string
	produce := func(name string, err error) scheduling.PluginType {
		return fake(name, producerFunc(func(context.Context, *scheduling.Cycle) error {
			ran = append(ran, name)
			return err
		}))
	}
	types := []scheduling.PluginType{produce("a", nil), produce("b", errFake), produce("c", nil), schedtest.First}
	s := mustBuild(t, types, schedtest.Config(plugins("a", "b", "c"), "first-picker"))

	c := s.Begin(pool(2).Snapshot(), &scheduling.Request{}, 0)
	s.Produce(t.Context(), c)
	if len(c.Faults) != 1 || c.Faults[0].Producer != "b" || !errors.Is(c.Faults[0].Err, errFake) {
		t.Errorf("faults %v", c.Faults)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, ran); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
	f, err := s.Commit(c)
	if err != nil {
		t.Fatalf("the request failed with its producer: %v", err)
	}
	f.Done(scheduling.Outcome{}, 0)
	s.End(c)

	if c = s.Begin(pool(2).Snapshot(), &scheduling.Request{}, 0); len(c.Faults) != 0 {
		t.Errorf("faults of the cycle before: %v", c.Faults)
	}
	s.End(c)
}

// TestProducersSkippedOnceTheTimeIsUp: the request goes on with what is known by then.
func TestProducersSkippedOnceTheTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ran := 0
	slow := producerFunc(func(context.Context, *scheduling.Cycle) error {
		ran++
		cancel(errFake)
		return nil
	})
	never := producerFunc(func(context.Context, *scheduling.Cycle) error {
		ran += 100
		return nil
	})
	types := []scheduling.PluginType{fake("slow", slow), fake("x", never), fake("y", never), schedtest.First}
	s := mustBuild(t, types, schedtest.Config(plugins("slow", "x", "y"), "first-picker"))
	c := s.Begin(pool(2).Snapshot(), &scheduling.Request{}, 0)
	defer s.End(c)
	s.Produce(ctx, c)
	if ran != 1 || len(c.Faults) != 2 {
		t.Fatalf("ran %d, faults %v", ran, c.Faults)
	}
	for i, name := range []string{"x", "y"} {
		if c.Faults[i].Producer != name || !errors.Is(c.Faults[i].Err, errFake) {
			t.Errorf("fault %d: %v", i, c.Faults[i])
		}
	}
	s.Preview(c)
	if len(c.Picks) != 1 {
		t.Error("nothing was picked")
	}
}

// phases is an observer that writes the phases and the producers down.
type phases []string

func (p *phases) EnterPhase(phase scheduling.Phase) { *p = append(*p, phase.String()) }
func (p *phases) EnterProducer(name string)         { *p = append(*p, "producer "+name) }

func TestPhases(t *testing.T) {
	quick := producerFunc(func(context.Context, *scheduling.Cycle) error { return nil })
	types := []scheduling.PluginType{fake("x", quick), fake("y", quick), schedtest.First}
	s := mustBuild(t, types, schedtest.Config(plugins("x", "y"), "first-picker"))
	c := s.Begin(pool(2).Snapshot(), &scheduling.Request{TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}, 0)
	var seen phases
	c.Observer = &seen
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	want := phases{"produce", "producer x", "producer y", "wait", "fill", "filter", "score", "pick", "committed"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	if f.TraceID != c.Request.TraceID {
		t.Errorf("the flight is of the trace %q", f.TraceID)
	}
	f.Done(scheduling.Outcome{}, 0)
	s.End(c)
	again := s.Begin(pool(2).Snapshot(), &scheduling.Request{}, 0)
	defer s.End(again)
	if again.Observer != nil {
		t.Error("a pooled cycle keeps its observer")
	}
}

// TestPreviewChargesNothing: a dry run leaves no trace.
func TestPreviewChargesNothing(t *testing.T) {
	types := []scheduling.PluginType{counterType, schedtest.First, fake("reader", idleScorer{}, needs[scheduling.InFlightLoad](""))}
	s := mustBuild(t, types, schedtest.Config(nil, "reader", "first-picker"))
	ledger, _ := s.Plugin("counter").(*counter)
	c := s.Begin(pool(2).Snapshot(), &scheduling.Request{}, 3*time.Second)
	defer s.End(c)
	s.Preview(c)
	if n := ledger.inFlight(); n != 0 || len(c.Picks) != 1 {
		t.Errorf("%d in flight after a preview that picked %v", n, c.Picks)
	}
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	if n := ledger.inFlight(); n != 1 {
		t.Errorf("%d in flight after a commit", n)
	}
	if f.PickedAt != 3*time.Second {
		t.Errorf("picked at %v", f.PickedAt)
	}
	f.Done(scheduling.Outcome{}, 0)
	if n := ledger.inFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

// TestSeedDerivesFromTheIDAlone: the same request decides alike on any cycle, at any time, of any scheduler.
func TestSeedDerivesFromTheIDAlone(t *testing.T) {
	decide := func(s *scheduling.Scheduler, id uint64, now time.Duration) []int {
		c := s.Begin(pool(50).Snapshot(), &scheduling.Request{ID: id}, now)
		defer s.End(c)
		s.Preview(c)
		return slices.Clone(c.Picks)
	}
	tie := scores(make([]float64, 50)...)
	one, two := profileOf(t, 5, tie), profileOf(t, 5, tie)
	different := 0
	for id := range uint64(100) {
		first := decide(one, id, 0)
		if diff := cmp.Diff(first, decide(two, id, time.Hour)); diff != "" {
			t.Fatalf("request %d (-one +two):\n%s", id, diff)
		}
		if !slices.Equal(first, decide(one, id+1, 0)) {
			different++
		}
	}
	if different != 100 {
		t.Errorf("%d of 100 ids pick otherwise than the next one", different)
	}
}
