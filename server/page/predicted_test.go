package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// TestPredictedLatency: what is predicted of each candidate shows in its row, and of the pick beside what was asked and what came.
func TestPredictedLatency(t *testing.T) {
	s := newStage(t, 2)
	if body := s.get(t, fmt.Sprint("/ui/decisions/", s.decide(t, "llama", "r", true))).Body.String(); strings.Contains(body, "redicted") || strings.Contains(body, "Latency") {
		t.Error("what nobody predicts has a place on the page")
	}
	s.table.Objective = &scheduling.LatencyObjective{TTFTMs: 30, TPOTMs: 200}
	for i := range s.table.Endpoints {
		ms := float64(16 + 20*i)
		s.table.Endpoints[i].Latency = &scheduling.LatencyPrediction{
			TTFTMs: ms, WaitMs: ms / 2, PrefillMs: ms / 4, Residual: 4.0 / 3, TTFTP90Ms: ms + 10, TPOTMs: 98, TPOTP90Ms: 150, Confidence: 0.75,
			TTFTHeadroomMs: 0.9*30 - ms - 10, TPOTHeadroomMs: 0.9*200 - 150,
		}
	}
	root := parse(t, s.get(t, fmt.Sprint("/ui/decisions/", s.decide(t, "llama", "r", true))))
	contains(t, root, "Predicted TTFT 16 ms; nine of ten below 26 ms", "Made of 8 ms of waiting, 4 ms of prefill, times 1.33",
		"Predicted TPOT 98 ms; nine of ten below 150 ms", "Confidence 75 %",
		"Asked TTFT 30 ms, counted as 27 ms; the bound of nine in ten is 1 ms below that", "Asked TPOT 200 ms, counted as 180 ms; the bound of nine in ten is 30 ms below that",
		"Seen TTFT 20 ms, 1.25 times what was predicted", "Seen TPOT 122 ms, 1.25 times what was predicted",
		"16 ms nine of ten below 26 ms 8 ms of waiting, 4 ms of prefill, times 1.33 TPOT 98 ms; confidence 75 % asked TTFT met by 1 ms asked TPOT met by 30 ms",
		"asked TTFT exceeded by 19 ms asked TPOT met by 30 ms")
	inFlight := s.get(t, fmt.Sprint("/ui/decisions/", s.decide(t, "llama", "r", false))).Body.String()
	if !strings.Contains(inFlight, "Asked TTFT") || strings.Contains(inFlight, "Seen") {
		t.Error("something was seen of what has not ended")
	}
	for i := range s.table.Endpoints {
		l := s.table.Endpoints[i].Latency
		*l = scheduling.LatencyPrediction{TTFTMs: 800, TTFTP90Ms: 900, WaitMs: 100, PrefillMs: 700, WholeResponse: true}
	}
	s.table.Endpoints[1].Latency = nil
	root = parse(t, s.get(t, fmt.Sprint("/ui/decisions/", s.decide(t, "llama", "r", true))))
	contains(t, root, "Predicted response 800 ms; nine of ten below 900 ms Made of 100 ms of waiting, 700 ms of computing Confidence 0 % Asked TTFT 30 ms; what is predicted is the whole response",
		"Asked TPOT 200 ms; no time per token is predicted Seen response 1.0 s, 1.25 times what was predicted",
		"Engine Predicted response prefill-cost-scorer", "800 ms nine of ten below 900 ms 100 ms of waiting, 700 ms of computing confidence 0 %", "not yet known")
}

// TestSharesAreThoseOfExplain: a share says the same wherever it is shown.
func TestSharesAreThoseOfExplain(t *testing.T) {
	for i := range 1001 {
		share := float64(i) / 1000
		if got, want := percent(share), explain.Percent(share); got != want && got != "< 1 %" {
			t.Errorf("%v: %s on the page, %s in words", share, got, want)
		}
	}
}
