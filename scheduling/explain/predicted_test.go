package explain_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// TestReasonOfPredictedTimes: a gap of predicted times is no work in flight, and is not said to be.
func TestReasonOfPredictedTimes(t *testing.T) {
	const held, released = decisionv1.GateVerdict_GATE_VERDICT_HELD, decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC
	for want, g := range map[string]*decisionv1.GateReport{
		"a was picked; gate kept to who holds the prompt: a is predicted to answer 480 ms later than b, within the bound of 5,000 ms.": {
			Verdict: held, GapMs: proto.Float64(480), GapTokens: proto.Float64(-70), BarMs: proto.Float64(5000),
		},
		"a was picked; gate kept to who holds the prompt: a is predicted to answer 20 ms sooner than b, within the bound of 5,000 ms.": {
			Verdict: held, GapMs: proto.Float64(-20), BarMs: proto.Float64(5000),
		},
		"a was picked; gate let go of who holds the prompt: a is predicted to answer 6,000 ms later than b, above the bound of 5,000 ms.": {
			Verdict: released, GapMs: proto.Float64(6000), GapTokens: proto.Float64(90), BarMs: proto.Float64(5000),
		},
		"a was picked; gate kept to who holds the prompt: of one side nothing is predicted.": {
			Verdict: decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL,
		},
	} {
		g.Filter, g.Predicted, g.Sticky, g.Other = "gate", true, proto.Uint32(0), proto.Uint32(1)
		filtered := decisionv1.Exclusion_EXCLUSION_FILTER
		d := &decisionv1.Decision{
			Picks: []uint32{0}, Gates: []*decisionv1.GateReport{g},
			Candidates: []*decisionv1.Candidate{{Ordinal: 0, Name: "a", Exclusion: filtered}, {Ordinal: 1, Name: "b", Exclusion: filtered}},
		}
		if got := explain.Reason(d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
