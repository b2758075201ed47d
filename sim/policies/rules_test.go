package policies_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
)

// state is an endpoint: cached blocks of 10 tokens of a prompt of 100, requests and uncached tokens in flight.
type state struct{ cached, requests, tokens int }

func tableOf(states ...state) *schedtest.Table {
	table := &schedtest.Table{}
	for _, s := range states {
		table.Endpoints = append(table.Endpoints, schedtest.Endpoint{
			Match:    schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(s.cached, 10, 10)),
			Load:     &scheduling.InFlightLoad{Requests: int64(s.requests), Tokens: int64(s.tokens)},
			Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(100 - 10*s.cached)),
		})
	}
	return table
}

// hundred are the prompt's tokens.
func hundred() []uint32 {
	tokens := make([]uint32, 100)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

func schedulerOf(t *testing.T, table *schedtest.Table, plugin, parameters string, profile ...string) *scheduling.Scheduler {
	t.Helper()
	types := slices.Concat(policies.Types(), scorer.Types(), picker.Types())
	specs := []scheduling.Spec{{Name: plugin, Type: plugin, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}}
	return table.Build(t, types, specs, append(profile, plugin)...)
}

// picked counts where 400 requests would go that find the same state, each with its own random numbers.
func picked(t *testing.T, s *scheduling.Scheduler, table *schedtest.Table, request scheduling.Request) map[int]int {
	t.Helper()
	counts := map[int]int{}
	snapshot := table.Pool().Snapshot()
	for id := range uint64(400) {
		request.ID = id
		c := s.Begin(snapshot, &request, 0)
		s.Produce(t.Context(), c)
		s.Preview(c)
		if len(c.Picks) != 1 {
			t.Fatalf("picks %v", c.Picks)
		}
		counts[c.Picks[0]]++
		s.End(c)
	}
	return counts
}

// rule is a small state and who may be picked in it.
type rule struct {
	name, parameters string
	states           []state
	want             []int // all of them must be seen
}

func checkRules(t *testing.T, plugin string, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			table := tableOf(r.states...)
			counts := picked(t, schedulerOf(t, table, plugin, r.parameters), table, scheduling.Request{Tokens: hundred(), TokenCount: 100})
			if got := slices.Sorted(maps.Keys(counts)); !slices.Equal(got, r.want) {
				t.Errorf("picks %v, want only and all of %v", counts, r.want)
			}
		})
	}
}

func TestSGLangsRule(t *testing.T) {
	checkRules(t, "sim-sglang-picker", []rule{
		{"the best match", "", []state{{2, 0, 0}, {6, 9, 900}, {5, 1, 0}}, []int{1}},
		{"a poor match: the fewest requests", "", []state{{3, 4, 0}, {0, 2, 0}, {1, 3, 0}}, []int{1}},
		{"a match at the threshold is poor", "cacheThreshold: 0.6", []state{{6, 4, 0}, {0, 2, 0}}, []int{1}},
		{"no match: any of the idlest", "", []state{{0, 1, 0}, {0, 1, 0}, {0, 2, 0}}, []int{0, 1}},
		{"far apart: the fewest requests", "", []state{{9, 165, 0}, {0, 100, 0}}, []int{1}},
		{"apart by the number, not by the factor", "", []state{{9, 300, 0}, {0, 220, 0}}, []int{0}},
		{"apart by the factor, not by the number", "", []state{{9, 64, 0}, {0, 0, 0}}, []int{0}},
		{"a lower bar", "{balanceAbs: 4, balanceRel: 1.1}", []state{{9, 64, 0}, {0, 0, 0}}, []int{1}},
	})
}

// Of endpoints that have the same text SGLang's tree names one, whatever the request's chance.
func TestSGLangKeepsToOneOfEquals(t *testing.T) {
	table := tableOf(state{5, 3, 0}, state{5, 0, 0}, state{5, 9, 0})
	s := schedulerOf(t, table, "sim-sglang-picker", "")
	seen := map[int]bool{}
	for text := range uint32(40) {
		tokens := hundred()
		tokens[3] = 1000 + text
		counts := picked(t, s, table, scheduling.Request{Tokens: tokens, TokenCount: 100})
		if len(counts) != 1 {
			t.Fatalf("one text goes to %v", counts)
		}
		maps.Copy(seen, map[int]bool{slices.Collect(maps.Keys(counts))[0]: true})
	}
	if len(seen) != 3 {
		t.Errorf("all texts go to %v", seen)
	}
}

func TestAIBrixsRule(t *testing.T) {
	checkRules(t, "sim-aibrix-picker", []rule{
		{"the best match", "", []state{{2, 1, 0}, {6, 1, 0}, {5, 1, 0}}, []int{1}},
		{"of equal matches the fewer requests", "", []state{{6, 2, 0}, {6, 1, 0}, {0, 0, 0}}, []int{1}},
		{"any match is one", "", []state{{1, 2, 0}, {0, 1, 0}, {0, 1, 0}, {0, 3, 0}}, []int{0}},
		{"none: the fewest requests, any of equals", "", []state{{0, 2, 0}, {0, 1, 0}, {0, 1, 0}}, []int{1, 2}},
		// 0, 0, 0, 4: mean 1, standard deviation 1.73
		{"too busy: the next match", "", []state{{9, 4, 0}, {2, 0, 0}, {0, 0, 0}, {0, 0, 0}}, []int{1}},
		{"too busy, and no other match", "", []state{{9, 4, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, []int{1, 2, 3}},
		{"not too busy by two deviations", "deviations: 2", []state{{9, 4, 0}, {2, 0, 0}, {0, 0, 0}, {0, 0, 0}}, []int{0}},
		// mean 6, most 20 > 2 · 7, a gap of 18
		{"far apart: only the idlest count", "", []state{{9, 5, 0}, {0, 20, 0}, {2, 2, 0}, {0, 2, 0}, {0, 2, 0}, {0, 5, 0}}, []int{2}},
		{"apart, but not by the factor", "factor: 4", []state{{9, 5, 0}, {0, 20, 0}, {2, 2, 0}, {0, 2, 0}, {0, 2, 0}, {0, 5, 0}}, []int{0}},
		{"apart, but not by the gap", "gap: 19", []state{{9, 5, 0}, {0, 20, 0}, {2, 2, 0}, {0, 2, 0}, {0, 2, 0}, {0, 5, 0}}, []int{0}},
	})
}

func TestLMetricsRule(t *testing.T) {
	checkRules(t, "sim-lmetric-picker", []rule{
		{"(0 + 100) · 1 < (0 + 60) · 2", "", []state{{0, 0, 0}, {4, 1, 0}}, []int{0}},
		{"(0 + 40) · 2 < (0 + 100) · 1", "", []state{{0, 0, 0}, {6, 1, 0}}, []int{1}},
		{"tokens ahead count", "", []state{{0, 0, 0}, {6, 1, 20}}, []int{0}},
		{"equal products", "", []state{{0, 0, 0}, {5, 1, 0}}, []int{0, 1}},
		{"cached in full", "", []state{{10, 50, 0}, {9, 0, 0}}, []int{0}},
	})
}

func TestWorksRule(t *testing.T) {
	for _, r := range []rule{
		{"tokens ahead and its own", "", []state{{0, 9, 100}, {8, 0, 200}, {5, 0, 140}}, []int{2}},
		{"equal sums", "", []state{{0, 0, 100}, {5, 0, 150}, {0, 0, 101}}, []int{0, 1}},
		{"far beyond any bound", "", []state{{0, 0, 90_000_000}, {0, 0, 90_000_001}}, []int{0}},
	} {
		table := tableOf(r.states...)
		s := schedulerOf(t, table, "max-score-picker", "", "sim-token-load-scorer")
		counts := picked(t, s, table, scheduling.Request{Tokens: hundred(), TokenCount: 100})
		if got := slices.Sorted(maps.Keys(counts)); !slices.Equal(got, r.want) {
			t.Errorf("%s: picks %v, want %v", r.name, counts, r.want)
		}
	}
}

func TestRoundRobinsRule(t *testing.T) {
	table := tableOf(state{}, state{}, state{}, state{})
	table.Endpoints[2].State = scheduling.EndpointNotReady
	s := schedulerOf(t, table, "sim-round-robin-picker", "")
	snapshot := table.Pool().Snapshot()
	var got []int
	for id := range uint64(7) {
		c := s.Begin(snapshot, &scheduling.Request{ID: id}, 0)
		s.Produce(t.Context(), c)
		s.Preview(c)
		got = append(got, c.Picks...)
		s.End(c)
	}
	if diff := cmp.Diff([]int{0, 1, 3, 0, 1, 3, 0}, got); diff != "" {
		t.Errorf("picks (-want +got):\n%s", diff)
	}
}

// With two drawn of four the busiest is never picked, the idlest in half of the draws, and the others by who is drawn.
func TestTwoChoicesRule(t *testing.T) {
	table := tableOf(state{0, 5, 0}, state{0, 9, 0}, state{0, 2, 0}, state{0, 7, 0})
	counts := picked(t, schedulerOf(t, table, "sim-two-choices-picker", "", "active-request-scorer"), table, scheduling.Request{})
	for e, share := range map[int]float64{2: 3. / 6, 0: 2. / 6, 3: 1. / 6, 1: 0} {
		if got := float64(counts[e]) / 400; math.Abs(got-share) > 0.08 || share == 0 && got > 0 {
			t.Errorf("endpoint %d: %.2f of the picks, want %.2f", e, got, share)
		}
	}
	all := picked(t, schedulerOf(t, table, "sim-two-choices-picker", "choices: 9", "active-request-scorer"), table, scheduling.Request{})
	if all[2] != 400 {
		t.Errorf("with all drawn: %v", all)
	}
}

// Sessions keep to their endpoints, whatever else comes or goes; those of an endpoint that went spread over the others.
func TestHashesRule(t *testing.T) {
	table := tableOf(state{}, state{}, state{}, state{}, state{})
	s := schedulerOf(t, table, "sim-hash-picker", "prefix: 50")
	pool := table.Pool()
	where := func(r scheduling.Request) int {
		r.ID++ // chance plays no part
		c := s.Begin(pool.Snapshot(), &r, 0)
		defer s.End(c)
		s.Produce(t.Context(), c)
		s.Preview(c)
		return c.Picks[0]
	}
	session := func(name int) scheduling.Request {
		return scheduling.Request{ID: uint64(name), Headers: []scheduling.Header{{Name: fleet.SessionHeader, Value: fmt.Append(nil, name)}}}
	}
	before, counts := map[int]int{}, map[int]int{}
	for name := range 1000 {
		before[name] = where(session(name))
		counts[before[name]]++
	}
	for e := range 5 {
		if counts[e] < 120 || counts[e] > 280 {
			t.Errorf("endpoint %d has %d of 1000 sessions", e, counts[e])
		}
	}
	var specs []scheduling.EndpointSpec
	for _, e := range pool.Snapshot().Endpoints {
		specs = append(specs, e.EndpointSpec)
	}
	pool.Update(slices.Delete(specs, 1, 2))
	after := map[int]int{}
	for name := range 1000 {
		now := where(session(name))
		if before[name] != 1 && now != before[name] {
			t.Fatalf("session %d went from %d to %d", name, before[name], now)
		} else if before[name] == 1 {
			after[now]++
		}
	}
	if len(after) != 4 {
		t.Errorf("the sessions of who went are at %v", after)
	}
	same, other, early := hundred(), hundred(), hundred()
	same[70], other[30], early[30] = 1, 2, 2
	prompt := func(tokens []uint32) int { return where(scheduling.Request{Tokens: tokens}) }
	if prompt(hundred()) != prompt(same) || prompt(other) != prompt(early) {
		t.Error("the same beginnings go to different endpoints")
	}
	spread := map[int]bool{}
	for i := range uint32(50) {
		tokens := hundred()
		tokens[10] = i
		spread[prompt(tokens)] = true
	}
	if len(spread) < 3 {
		t.Errorf("50 beginnings go to %v", spread)
	}
}

// With a bound the busiest passes on to the next on the ring: nobody has more than c times the mean.
func TestBoundedHashesRule(t *testing.T) {
	for _, tc := range []struct {
		requests []int
		bound    int // of ⌈1.25 · (m + 1) / 4⌉
	}{
		{[]int{0, 0, 0, 0}, 1}, {[]int{3, 2, 2, 2}, 4}, {[]int{40, 10, 10, 20}, 26}, {[]int{26, 25, 9, 20}, 26},
	} {
		table := tableOf()
		for _, n := range tc.requests {
			table.Endpoints = append(table.Endpoints, tableOf(state{requests: n}).Endpoints...)
		}
		free := schedulerOf(t, table, "sim-hash-picker", "")
		bounded := schedulerOf(t, table, "sim-hash-picker", "bound: 1.25")
		moved := 0
		for i := range uint32(60) {
			tokens := hundred()
			tokens[0] = i
			r := scheduling.Request{Tokens: tokens}
			home, got := picked1(t, free, table, r), picked1(t, bounded, table, r)
			switch full := tc.requests[home] >= tc.bound; {
			case full == (home == got):
				t.Errorf("%v: the home %d of prompt %d is full: %v, and it goes to %d", tc.requests, home, i, full, got)
			case tc.requests[got] >= tc.bound:
				t.Errorf("%v: prompt %d goes to %d", tc.requests, i, got)
			case full:
				moved++
			}
		}
		if anyFull := slices.Max(tc.requests) >= tc.bound; anyFull != (moved > 0) {
			t.Errorf("%v: %d moved", tc.requests, moved)
		}
	}
}

func picked1(t *testing.T, s *scheduling.Scheduler, table *schedtest.Table, r scheduling.Request) int {
	t.Helper()
	c := s.Begin(table.Pool().Snapshot(), &r, 0)
	defer s.End(c)
	s.Produce(t.Context(), c)
	s.Preview(c)
	return c.Picks[0]
}

func TestRangesOfPlugins(t *testing.T) {
	for plugin, faults := range map[string][]string{
		"sim-two-choices-picker": {"choices: 0"},
		"sim-hash-picker":        {"prefix: 0", "bound: 1", "bound: -1", "bound: .nan"},
		"sim-sglang-picker":      {"cacheThreshold: -1", "balanceAbs: -1", "balanceRel: .nan"},
		"sim-aibrix-picker":      {"gap: -1", "factor: -1", "deviations: .nan"},
		"sim-dynamo-picker":      {"overlapWeight: -1", "temperature: -1", "blockTokens: 0"},
		"sim-preble-picker":      {"balance: 0.9", "window: 0s", "prefillThroughput: 0", "load: windw"},
	} {
		for _, fault := range faults {
			table := tableOf(state{})
			key, _, _ := strings.Cut(fault, ":")
			specs := []scheduling.Spec{{Name: plugin, Type: plugin, Path: "plugins[0]", Decode: schedtest.YAML(fault)}}
			_, err := scheduling.Build(append(table.Types(), policies.Types()...), schedtest.Config(specs, plugin), nil)
			if err == nil || !strings.Contains(err.Error(), "parameters."+key) {
				t.Errorf("%s, %s: %v", plugin, fault, err)
			}
		}
	}
}
