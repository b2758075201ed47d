package filter_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func build(parameters string) (*scheduling.Scheduler, error) {
	const name = "label-selector-filter"
	cfg := schedtest.Config([]scheduling.Spec{{Name: name, Type: name, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}},
		name, schedtest.First.Type)
	return scheduling.Build(append(filter.Types(), schedtest.First), cfg, nil)
}

func labelled(labels map[string]string) schedtest.Endpoint {
	return schedtest.Endpoint{EndpointSpec: scheduling.EndpointSpec{Labels: labels}}
}

func TestLabelSelectorFilter(t *testing.T) {
	table := schedtest.Table{Endpoints: []schedtest.Endpoint{
		0: labelled(nil),
		1: labelled(map[string]string{"role": "decode", "zone": "a"}),
		2: labelled(map[string]string{"role": "prefill", "zone": "b"}),
		3: labelled(map[string]string{"role": "decode", "zone": "b", "llm-d.ai/canary": ""}),
		4: labelled(map[string]string{"role": ""}),
	}}
	for _, tc := range []struct {
		selector string
		want     []int
	}{
		{"matchLabels: {role: decode}", []int{1, 3}},
		{"matchLabels: {role: decode, zone: b}", []int{3}},
		{`matchLabels: {role: ""}`, []int{4}},
		{"matchLabels: {role: nobody}", nil},
		{"matchExpressions: [{key: role, operator: In, values: [decode, prefill]}]", []int{1, 2, 3}},
		{"matchExpressions: [{key: role, operator: NotIn, values: [decode, prefill]}]", []int{0, 4}},
		{"matchExpressions: [{key: role, operator: Exists}]", []int{1, 2, 3, 4}},
		{"matchExpressions: [{key: role, operator: DoesNotExist}]", []int{0}},
		{"matchExpressions: [{key: llm-d.ai/canary, operator: Exists}]", []int{3}},
		{"{matchLabels: {zone: b}, matchExpressions: [{key: role, operator: NotIn, values: [prefill]}]}", []int{3}},
		{"matchExpressions: [{key: role, operator: Exists}, {key: zone, operator: DoesNotExist}]", []int{4}},
	} {
		t.Run(tc.selector, func(t *testing.T) {
			s, err := build(tc.selector)
			if err != nil {
				t.Fatal(err)
			}
			c := table.Decide(t, s, &scheduling.Request{ID: 1})
			if diff := cmp.Diff(tc.want, slices.Collect(c.Candidates.All())); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLabelSelectorRefuses(t *testing.T) {
	for _, tc := range []struct{ selector, want string }{
		{"", "plugins[0]: parameters: the selector is empty"},
		{"{matchLabels: {}, matchExpressions: []}", "the selector is empty"},
		{"matchExpressions: [{key: role, operator: in, values: [a]}]",
			`parameters.matchExpressions[0].operator: must be one of In, NotIn, Exists, DoesNotExist, got "in" (did you mean "In"?)`},
		{"matchExpressions: [{key: role}]", `got ""`},
		{"matchExpressions: [{key: role, operator: In}]", "parameters.matchExpressions[0].values: In needs at least one value"},
		{"matchExpressions: [{key: role, operator: NotIn, values: []}]", "NotIn needs at least one value"},
		{"matchExpressions: [{key: role, operator: Exists, values: [a]}]", `parameters.matchExpressions[0].values: Exists takes none, got ["a"]`},
		{"matchExpressions: [{key: role, operator: DoesNotExist, values: [a]}]", "DoesNotExist takes none"},
		{"matchExpressions: [{operator: Exists}]", "parameters.matchExpressions[0].key: a label key must have a name"},
		{"matchLabels: {a/b/c: x}", "label holds letters"},
		{"matchLabels: {/name: x}", "the prefix of a label key"},
		{"matchLabels: {Example.com/name: x}", "a lower-case DNS name"},
		{"matchLabels: {role: a b}", `parameters.matchLabels["role"]: a label holds letters`},
		{"matchLabels: {role: -a}", "a label holds letters"},
		{"matchLabels: {role: " + strings.Repeat("x", 64) + "}", "63 characters, got 64"},
		{"matchLabels: {" + strings.Repeat("x", 254) + "/n: v}", "1 to 253 characters"},
		{"matchLabel: {a: b}", "unknown field"},
	} {
		t.Run(tc.selector, func(t *testing.T) {
			s, err := build(tc.selector)
			if err == nil {
				t.Fatalf("accepted: %v", s.Describe())
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want it to hold %q", err, tc.want)
			}
		})
	}
}

// TestAllFaultsAreListed: two wrong expressions are two errors.
func TestAllFaultsAreListed(t *testing.T) {
	_, err := build("matchExpressions: [{key: a, operator: Is}, {key: b, operator: In}]")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"matchExpressions[0].operator", "matchExpressions[1].values"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestLabelKeys(t *testing.T) {
	s, err := build("{matchLabels: {b: x, a: y}, matchExpressions: [{key: c, operator: Exists}]}")
	if err != nil {
		t.Fatal(err)
	}
	f, ok := s.Plugin("label-selector-filter").(*filter.LabelSelector)
	if !ok {
		t.Fatal("no label selector was built")
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, f.LabelKeys()); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}
