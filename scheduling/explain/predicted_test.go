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
		"a was picked; gate kept to who holds the prompt: a is predicted to answer 20 ms sooner than b, and might be up to 5,000 ms later.": {
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

// TestWordsOfPredictedFlips: two times are told apart, however near they are.
func TestWordsOfPredictedFlips(t *testing.T) {
	d := &decisionv1.Decision{Candidates: []*decisionv1.Candidate{{Ordinal: 0, Name: "a"}, {Ordinal: 1, Name: "b"}}}
	for want, f := range map[string]explain.Flip{
		"with 490 ms predicted of a instead of 23, b would have been picked":         {Ordinal: 0, From: 23.1, To: 490},
		"with 57.82 ms predicted of a instead of 57.79, b would have been picked":    {Ordinal: 0, From: 57.79, To: 57.82},
		"with a little more than 22.795 ms predicted of a, b would have been picked": {Ordinal: 0, From: 22.79513, To: 22.7954},
		"with a little less than 22.795 ms predicted of b, b would have been picked": {Ordinal: 1, From: 22.79513, To: 22.795},
	} {
		f.Input, f.Pick = explain.PredictedTTFT, 1
		if got := f.Words(d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
