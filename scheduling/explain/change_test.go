package explain_test

import (
	"slices"
	"strings"
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// decidedAgain is a decision of one profile, with all columns recorded, decided again by another.
func decidedAgain(t *testing.T, was, now []string, endpoints ...schedtest.Endpoint) (before, after *decisionv1.Decision) {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints}
	of := func(profile []string) *scheduling.Scheduler {
		specs := []scheduling.Spec{{Name: schedtest.EarlyType, Type: schedtest.EarlyType}, {Name: schedtest.LateType, Type: schedtest.LateType}}
		if slices.Contains(profile, "gate") {
			specs = append(specs, scheduling.Spec{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0}")})
		}
		return table.Build(t, slices.Concat([]scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types()), specs, profile...)
	}
	s := of(was)
	before = record.Of(s, table.Decide(t, s, &scheduling.Request{ID: 7, Model: "m", Choices: 1}), record.Meta{})
	after, err := record.Replay(of(now), before, "now")
	if err != nil {
		t.Fatal(err)
	}
	return before, after
}

// TestChange names what made the pick another one.
func TestChange(t *testing.T) {
	far, near := endpoint(400_000, 90), endpoint(1000, 90)
	loaded := []string{"gate", "token-load-scorer", "max-score-picker"}
	for _, tc := range []struct {
		name      string
		was, now  []string
		endpoints []schedtest.Endpoint
		want      string
		words     string
	}{
		{"the same", usual, usual, []schedtest.Endpoint{far, endpoint(0, 0)}, "unchanged", "the pick is the same"},
		{"no gate any more", usual, []string{"token-load-scorer", "max-score-picker"}, []schedtest.Endpoint{near, endpoint(0, 0)},
			"gate gate: held → not there", "the new configuration has no gate, which held it before"},
		{"a gate now", []string{"token-load-scorer", "max-score-picker"}, loaded, []schedtest.Endpoint{near, endpoint(0, 0)},
			"gate gate: not there → held", "the new configuration has gate, which says held"},
		{"another scorer", []string{"prefix-cache-scorer", "max-score-picker"}, []string{"token-load-scorer", "max-score-picker"},
			[]schedtest.Endpoint{near, endpoint(0, 0)}, "scorer prefix-cache-scorer", "prefix-cache-scorer speaks more for it than before"},
		{"one more scorer", []string{"prefix-cache-scorer", "max-score-picker"}, []string{"prefix-cache-scorer", "token-load-scorer", "max-score-picker"},
			[]schedtest.Endpoint{endpoint(4_000_000, 90), endpoint(0, 80)}, "scorer token-load-scorer", "token-load-scorer speaks more for it than before"},
		{"a draw", []string{"token-load-scorer", "max-score-picker"}, []string{"prefix-cache-scorer", "max-score-picker"},
			[]schedtest.Endpoint{endpoint(5000, 50), endpoint(5000, 50), endpoint(5000, 50), endpoint(0, 50)}, "draw", "a draw decided"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, after := decidedAgain(t, tc.was, tc.now, tc.endpoints...)
			c := explain.Compare(before, after)
			if c.Name() != tc.want || !strings.HasPrefix(c.Words(), tc.words) && !strings.HasSuffix(c.Words(), tc.words) {
				t.Errorf("%q, %q (%+v)", c.Name(), c.Words(), c)
			}
			if c.Flipped() != (tc.want != "unchanged") || c.Flipped() == (c.Cause == explain.Unchanged) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestChangeOfTheAvailable: what nobody can pick is no scorer's doing; a filter's is.
func TestChangeOfTheAvailable(t *testing.T) {
	before := &decisionv1.Decision{Picks: []uint32{0}, Candidates: []*decisionv1.Candidate{{}, {Ordinal: 1}}}
	none := &decisionv1.Decision{Candidates: []*decisionv1.Candidate{
		{Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "zone"}, {Ordinal: 1, Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "zone"},
	}}
	if c := explain.Compare(before, none); c.Name() != "filter zone" || c.From != 0 || c.To != -1 || c.Words() != "zone keeps other endpoints" {
		t.Errorf("%+v", c)
	}
	if c := explain.Compare(none, before); c.Name() != "filter zone" || c.To != 0 {
		t.Errorf("%+v", c)
	}
	if c := explain.Compare(before, &decisionv1.Decision{}); c.Cause != explain.ByEndpoint {
		t.Errorf("%+v", c)
	}
	if c := explain.Compare(before, &decisionv1.Decision{Picks: []uint32{1}, Candidates: []*decisionv1.Candidate{{Total: 1}, {Ordinal: 1}}}); c.Cause != explain.ByPicker {
		t.Errorf("%+v", c)
	}
	if c := explain.Compare(before, &decisionv1.Decision{Picks: []uint32{9}}); c.Cause != explain.ByEndpoint {
		t.Errorf("%+v", c)
	}
	for _, c := range explain.Causes() {
		if c.String() == "unknown" || (explain.Change{Cause: c}).Words() == "" {
			t.Errorf("cause %d has no name or words", c)
		}
	}
}
