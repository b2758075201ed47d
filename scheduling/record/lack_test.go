package record_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestLackingLabels: a filter on labels that the record does not tell of would find every endpoint without them.
func TestLackingLabels(t *testing.T) {
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
		{EndpointSpec: scheduling.EndpointSpec{Labels: map[string]string{"zone": "a", "tier": "gold"}}, Load: &scheduling.InFlightLoad{}},
		{Load: &scheduling.InFlightLoad{}},
	}}
	of := func(label string) *scheduling.Scheduler {
		specs := []scheduling.Spec{{Name: "only", Type: "label-selector-filter", Decode: schedtest.YAML("{matchLabels: {" + label + "}}")}}
		return table.Build(t, append(types(), filter.Types()...), specs, "only", "token-load-scorer", "max-score-picker")
	}
	zone := of("zone: a")
	d := decide(table, zone, &scheduling.Request{ID: 3}, 0)
	if _, err := record.Replay(of("zone: b"), d, "x"); err != nil {
		t.Errorf("the same label with another value: %v", err)
	}
	_, err := record.Replay(of("tier: gold"), d, "x")
	lack := (*record.Lack)(nil)
	if !errors.As(err, &lack) {
		t.Fatalf("another label: %v", err)
	}
	if diff := cmp.Diff([]string{`the record has no label "tier" of endpoints`}, lack.Inputs); diff != "" || lack.ID != 3 {
		t.Errorf("decision %d: %s", lack.ID, diff)
	}
	d.LabelKeys = nil // of an older version, and the label is there
	if _, err := record.Replay(of("zone: b"), d, "x"); err != nil {
		t.Errorf("an older record: %v", err)
	}
	d.ConfigHash = "same"
	d.Candidates[0].Labels = nil
	same := of("zone: a")
	same.SetConfigHash("same")
	if _, err := record.Replay(same, d, "same"); err != nil {
		t.Errorf("an older record of the same configuration: %v", err)
	}
}

// TestSubstitutes: a producer of another name took a producer's place.
func TestSubstitutes(t *testing.T) {
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{{Load: &scheduling.InFlightLoad{}}}}
	s := table.Build(t, types(), nil, "token-load-scorer", "max-score-picker")
	d := decide(table, s, &scheduling.Request{ID: 3}, 0)
	if found := record.Substitutes(s, d); len(found) != 0 {
		t.Errorf("its own: %v", found)
	}
	named := []scheduling.Spec{{Name: "ledger-b", Type: schedtest.LateType}}
	other := table.Build(t, types(), named, "token-load-scorer", "max-score-picker")
	found := record.Substitutes(other, d)
	if len(found) != 1 || found[0].Column.Producer != "ledger-b" || found[0].Recorded != schedtest.LateType || found[0].Column.DataType != "InFlightLoad" {
		t.Errorf("%+v", found)
	}
}
