package explain_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// scheduler builds a world's profile over a table, with all of the table's producers.
func (w *world) scheduler(t *testing.T, table *schedtest.Table) *scheduling.Scheduler {
	t.Helper()
	specs := []scheduling.Spec{{Name: schedtest.EarlyType, Type: schedtest.EarlyType}, {Name: schedtest.LateType, Type: schedtest.LateType}}
	for _, name := range []string{"gate", "gate-2"} {
		if slices.Contains(w.profile, name) {
			specs = append(specs, scheduling.Spec{Name: name, Type: gate.TypeName, Decode: schedtest.YAML(w.gates)})
		}
	}
	cfg := schedtest.Config(specs, w.profile...)
	cfg.MaxPicks = w.picks
	for i := range cfg.Profile {
		if weight, ok := w.weights[cfg.Profile[i].Name]; ok {
			cfg.Profile[i].Weight = weight
		}
	}
	s, err := scheduling.Build(slices.Concat(table.Types(), []scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types()), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCyclesAndRecordsAgree: what a bridge decides on a copy of a decision is what a replay of its record decides, and the cause of
// a change is the same in both.
func TestCyclesAndRecordsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test's
	causes := map[explain.Cause]int{}
	for i := range 800 {
		was, is := newWorld(r), newWorld(r)
		table := &schedtest.Table{Endpoints: was.endpoints, Prompt: &scheduling.TokenizedPrompt{Count: 1600, Exact: true}}
		a, b := was.scheduler(t, table), is.scheduler(t, table)
		c := table.Decide(t, a, &scheduling.Request{ID: was.id, Model: "m", Choices: 1})
		before := record.Of(a, c, record.Meta{})
		after, err := record.Replay(b, before, "")
		if err != nil {
			t.Fatal(err)
		}
		bridge, err := scheduling.NewBridge(a, b)
		if err != nil {
			t.Fatal(err)
		}
		kept := a.Keep(c)
		again := bridge.Decide(kept)
		want := explain.Compare(before, after)
		if first := append(slices.Clone(again.Picks), -1)[0]; first != want.To || len(again.Picks) != len(after.GetPicks()) {
			t.Errorf("world %d: the bridge picks %v, the replay %v", i, again.Picks, after.GetPicks())
		}
		if got := explain.CompareCycles(kept, again); got != want.Cause {
			t.Errorf("world %d: cause %v of cycles, %v of records (%+v)", i, got, want.Cause, want)
		}
		causes[want.Cause]++
		b.End(again)
		a.End(kept)
	}
	for _, c := range []explain.Cause{explain.Unchanged, explain.ByGate, explain.ByScorer, explain.ByDraw, explain.ByPicker} {
		if causes[c] < 5 {
			t.Errorf("too few of %v: %v", c, causes)
		}
	}
}
