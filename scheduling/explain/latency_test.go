package explain_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// TestSeen: only what is of the same kind stands beside a prediction, and only of answers as it is made for.
func TestSeen(t *testing.T) {
	const first, total = 264 * time.Millisecond, 2244 * time.Millisecond
	ended := record.Ending{Status: 200, FirstToken: first, Total: total, Usage: scheduling.Usage{CompletionTokens: 100}}
	with := func(change func(*record.Ending)) record.Ending { e := ended; change(&e); return e }
	usual := scheduling.LatencyPrediction{TTFTMs: 240, TPOTMs: 18}
	whole := scheduling.LatencyPrediction{TTFTMs: 2000, WholeResponse: true}
	for name, tc := range map[string]struct {
		of      scheduling.LatencyPrediction
		end     record.Ending
		choices int
		want    explain.Seen
	}{
		"an answer to its end":                            {usual, ended, 1, explain.Seen{TTFTMs: 264, TPOTMs: 20}},
		"two answers in one":                              {usual, with(func(e *record.Ending) { e.Usage.CompletionTokens = 200 }), 2, explain.Seen{TTFTMs: 264, TPOTMs: 20}},
		"a whole response":                                {whole, ended, 1, explain.Seen{TTFTMs: 2244}},
		"a whole response whose first token was not seen": {whole, with(func(e *record.Ending) { e.FirstToken = -1 }), 1, explain.Seen{TTFTMs: 2244}},
		"a whole response that was given up":              {whole, with(func(e *record.Ending) { e.Reason = scheduling.EndDisconnect }), 1, explain.Seen{}},
		"a whole response whose end is estimated":         {whole, with(func(e *record.Ending) { e.Reason = scheduling.EndUnseen }), 1, explain.Seen{}},
		"no first token":                                  {usual, with(func(e *record.Ending) { e.FirstToken = -1 }), 1, explain.Seen{}},
		"given up after the first token":                  {usual, with(func(e *record.Ending) { e.Reason = scheduling.EndDisconnect }), 1, explain.Seen{}},
		"given up before it":                              {usual, with(func(e *record.Ending) { e.Reason, e.FirstToken = scheduling.EndDisconnect, -1 }), 1, explain.Seen{}},
		"failed":                                          {usual, with(func(e *record.Ending) { e.Reason, e.Status = scheduling.EndError, 500 }), 1, explain.Seen{}},
		"of a status that is none":                        {usual, with(func(e *record.Ending) { e.Status = 0 }), 1, explain.Seen{}},
		"not looked at after the first token":             {usual, with(func(e *record.Ending) { e.Reason = scheduling.EndUnseen }), 1, explain.Seen{TTFTMs: 264}},
		"served elsewhere":                                {usual, with(func(e *record.Ending) { e.ServedBy = "b" }), 1, explain.Seen{}},
		"one token":                                       {usual, with(func(e *record.Ending) { e.Usage.CompletionTokens = 1 }), 1, explain.Seen{TTFTMs: 264}},
		"one token an answer":                             {usual, with(func(e *record.Ending) { e.Usage.CompletionTokens = 3 }), 3, explain.Seen{TTFTMs: 264}},
		"tokens that nobody counted":                      {usual, with(func(e *record.Ending) { e.Usage.CompletionTokens = -1 }), 1, explain.Seen{TTFTMs: 264}},
		"no token":                                        {usual, with(func(e *record.Ending) { e.Usage.CompletionTokens = 0 }), 1, explain.Seen{TTFTMs: 264}},
		"all tokens at once":                              {usual, with(func(e *record.Ending) { e.Total = first }), 1, explain.Seen{TTFTMs: 264}},
		"choices that are not recorded":                   {usual, ended, 0, explain.Seen{TTFTMs: 264, TPOTMs: 20}},
		"a time per token that is not predicted":          {scheduling.LatencyPrediction{TTFTMs: 240}, ended, 1, explain.Seen{TTFTMs: 264}},
		"nothing predicted":                               {scheduling.LatencyPrediction{}, ended, 1, explain.Seen{}},
		"no number predicted":                             {scheduling.LatencyPrediction{TTFTMs: math.NaN(), TPOTMs: 18}, ended, 1, explain.Seen{}},
	} {
		if diff := cmp.Diff(tc.want, explain.SeenOf(&tc.of, &tc.end, tc.choices)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestLatencyOf a record: what was seen is of the first pick, what was asked is of who predicts.
func TestLatencyOf(t *testing.T) {
	predicted := func(producer string, ttft float64) *decisionv1.LatencyPrediction {
		return &decisionv1.LatencyPrediction{Producer: producer, TtftMs: ttft, TtftP90Ms: ttft + 50, TtftHeadroomMs: 300 - ttft - 50}
	}
	d := &decisionv1.Decision{
		Request: &decisionv1.Request{Choices: 1, LatencyObjectives: []*decisionv1.LatencyObjective{{Producer: "b", TtftMs: 1}, {Producer: "a", TtftMs: 300}}},
		Candidates: []*decisionv1.Candidate{
			{Ordinal: 0, LatencyPredictions: []*decisionv1.LatencyPrediction{predicted("a", 200), predicted("b", 900)}},
			{Ordinal: 1, LatencyPredictions: []*decisionv1.LatencyPrediction{predicted("a", 400)}},
			{Ordinal: 2},
		},
		Picks:   []uint32{0, 1},
		Outcome: &decisionv1.Outcome{Reason: "complete", Status: 200, TtftMs: proto.Float64(210), TotalMs: 1000},
	}
	for i, want := range []struct{ ttft, asked, headroom, seen float64 }{{200, 300, 50, 210}, {400, 300, -150, 0}} {
		l, ok := explain.LatencyOf(d, d.Candidates[i])
		if !ok || l.Predicted.TTFTMs != want.ttft || l.Asked.TTFTMs != want.asked || l.Headroom.TTFT != want.headroom || l.Seen.TTFTMs != want.seen {
			t.Errorf("of %d: %t, %+v", i, ok, l)
		}
	}
	if _, ok := explain.LatencyOf(d, d.Candidates[2]); ok {
		t.Error("what was not predicted is said to be")
	}
}

// TestAsked: the words follow the prediction's own headroom, and say where there is none.
func TestAsked(t *testing.T) {
	ms := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) + " ms" }
	const (
		below       = "300 ms; the bound of nine in ten is 30 ms below it"
		unpredicted = "40 ms; no time per token is predicted"
	)
	for name, tc := range map[string]struct {
		of                 *decisionv1.LatencyPrediction
		ttftMs, tpotMs     float64
		wantTTFT, wantTPOT string
	}{
		"nothing":  {&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 270, TpotMs: 20}, 0, 0, "", ""},
		"met":      {&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 270, TtftHeadroomMs: 30}, 300, 0, below, ""},
		"no TPOT":  {&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 270, TtftHeadroomMs: 30}, 300, 40, below, unpredicted},
		"exceeded": {&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 360, TtftHeadroomMs: -60}, 300, 0, "300 ms; the bound of nine in ten is 60 ms above it", ""},
		"with a reserve of a fifth": {
			&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 270, TtftHeadroomMs: 300*0.8 - 270, TpotMs: 20, TpotP90Ms: 30, TpotHeadroomMs: 40*0.8 - 30}, 300, 40,
			"300 ms, counted as 240 ms; the bound of nine in ten is 30 ms above that", "40 ms, counted as 32 ms; the bound of nine in ten is 2 ms below that",
		},
		"a whole response": {
			&decisionv1.LatencyPrediction{TtftMs: 200, TtftP90Ms: 270, TtftHeadroomMs: 30, WholeResponse: true}, 300, 40,
			"300 ms; what is predicted is the whole response", unpredicted,
		},
		"without a 90th percentile": {&decisionv1.LatencyPrediction{TtftMs: 200, TtftHeadroomMs: 30}, 300, 0, below, ""},
		"no number":                 {&decisionv1.LatencyPrediction{TtftMs: math.Inf(1)}, 300, 0, "300 ms; no time to the first token is predicted", ""},
	} {
		d := &decisionv1.Decision{
			Request:    &decisionv1.Request{LatencyObjectives: []*decisionv1.LatencyObjective{{TtftMs: tc.ttftMs, TpotMs: tc.tpotMs}}},
			Candidates: []*decisionv1.Candidate{{LatencyPredictions: []*decisionv1.LatencyPrediction{tc.of}}},
		}
		l, _ := explain.LatencyOf(d, d.Candidates[0])
		if got := l.AskedTTFT(ms); got != tc.wantTTFT {
			t.Errorf("%s: TTFT %q, want %q", name, got, tc.wantTTFT)
		}
		if got := l.AskedTPOT(ms); got != tc.wantTPOT {
			t.Errorf("%s: TPOT %q, want %q", name, got, tc.wantTPOT)
		}
	}
}

// TestUnseen: of an answer that was not streamed it is said why nothing compares with the prediction.
func TestUnseen(t *testing.T) {
	well := &decisionv1.Outcome{Reason: "complete", Status: 200, TotalMs: 300}
	for name, tc := range map[string]struct {
		of      *decisionv1.LatencyPrediction
		stream  bool
		outcome *decisionv1.Outcome
		want    bool
	}{
		"not streamed":               {&decisionv1.LatencyPrediction{TtftMs: 200}, false, well, true},
		"streamed":                   {&decisionv1.LatencyPrediction{TtftMs: 200}, true, &decisionv1.Outcome{Reason: "complete", Status: 200, TtftMs: proto.Float64(90), TotalMs: 300}, false},
		"streamed, and not seen":     {&decisionv1.LatencyPrediction{TtftMs: 200}, true, well, false},
		"a whole response":           {&decisionv1.LatencyPrediction{TtftMs: 200, WholeResponse: true}, false, well, false},
		"failed":                     {&decisionv1.LatencyPrediction{TtftMs: 200}, false, &decisionv1.Outcome{Reason: "complete", Status: 500}, false},
		"given up":                   {&decisionv1.LatencyPrediction{TtftMs: 200}, false, &decisionv1.Outcome{Reason: "disconnect", Status: 200}, false},
		"served by another endpoint": {&decisionv1.LatencyPrediction{TtftMs: 200}, false, &decisionv1.Outcome{Reason: "complete", Status: 200, ServedBy: "10.0.0.9:80"}, false},
		"still under way":            {&decisionv1.LatencyPrediction{TtftMs: 200}, false, nil, false},
	} {
		d := &decisionv1.Decision{
			Request: &decisionv1.Request{Stream: tc.stream, Choices: 1}, Picks: []uint32{0}, Outcome: tc.outcome,
			Candidates: []*decisionv1.Candidate{{LatencyPredictions: []*decisionv1.LatencyPrediction{tc.of}}},
		}
		l, _ := explain.LatencyOf(d, d.Candidates[0])
		if got := l.Unseen != ""; got != tc.want {
			t.Errorf("%s: %q", name, l.Unseen)
		}
	}
}
