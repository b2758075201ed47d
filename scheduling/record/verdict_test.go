package record_test

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Every verdict is called the same in a record as where it is given.
func TestVerdict(t *testing.T) {
	n := 0
	for v := scheduling.GateVerdict(0); v.String() != "unknown"; v++ {
		n++
		if got := record.Verdict(decisionv1.GateVerdict(v) + decisionv1.GateVerdict_GATE_VERDICT_NONE); got != v.String() {
			t.Errorf("%s is called %s in a record", v, got)
		}
	}
	if n != len(decisionv1.GateVerdict_name)-1 {
		t.Errorf("%d verdicts, of which records know %d", n, len(decisionv1.GateVerdict_name)-1)
	}
}
