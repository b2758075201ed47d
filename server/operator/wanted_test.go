package operator

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

func TestWantedDecisions(t *testing.T) {
	d := &decisionv1.Decision{
		Request:    &decisionv1.Request{Model: "m", TokenizedPrompts: []*decisionv1.TokenizedPrompt{{Tokens: 10}, {Tokens: 100}}},
		Candidates: []*decisionv1.Candidate{{Ordinal: 3, Address: "10.0.0.3:8000", Name: "three"}, {Ordinal: 4, Address: "10.0.0.4:8000"}},
		Picks:      []uint32{3, 4},
		Gates:      []*decisionv1.GateReport{{Verdict: decisionv1.GateVerdict_GATE_VERDICT_HELD}},
	}
	type request = schedulerv1.TailDecisionsRequest
	for _, tc := range []struct {
		request *request
		want    bool
	}{
		{&request{}, true},
		{&request{Model: "m"}, true},
		{&request{Model: "n"}, false},
		{&request{Endpoint: "10.0.0.3:8000"}, true},
		{&request{Endpoint: "three"}, true},
		{&request{Endpoint: "10.0.0.4:8000"}, false}, // a fallback
		{&request{Verdicts: []decisionv1.GateVerdict{decisionv1.GateVerdict_GATE_VERDICT_EXPLORED, decisionv1.GateVerdict_GATE_VERDICT_HELD}}, true},
		{&request{Verdicts: []decisionv1.GateVerdict{decisionv1.GateVerdict_GATE_VERDICT_EXPLORED}}, false},
		{&request{MinPromptTokens: 100}, true},
		{&request{MinPromptTokens: 101}, false},
		{&request{Model: "m", MinPromptTokens: 101}, false},
	} {
		if got := wanted(tc.request, d); got != tc.want {
			t.Errorf("%v: %v", tc.request, got)
		}
	}
	d.Picks = nil
	if wanted(&request{Endpoint: "three"}, d) {
		t.Error("a decision without a pick is one of an endpoint")
	}
}
