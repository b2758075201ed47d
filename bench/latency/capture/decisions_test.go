package capture

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/bench/latency/sample"
)

// decision is one that was made ms after a beginning, with two endpoints of which the second was picked.
func decision(ms int64, change func(*decisionv1.Decision)) *decisionv1.Decision {
	d := &decisionv1.Decision{
		TimeUnixNano: 1_800_000_000_000_000_000 + ms*1_000_000,
		Request:      &decisionv1.Request{TokenizedPrompts: []*decisionv1.TokenizedPrompt{{Tokens: 1000}}},
		Candidates: []*decisionv1.Candidate{
			{Ordinal: 0, Address: "10.0.0.1:80"},
			{
				Ordinal: 3, Address: "10.0.0.2:80",
				PrefixCacheMatches:    []*decisionv1.PrefixCacheMatch{{MatchBlocks: 15, TotalBlocks: 60, BlockSizeTokens: 16}},
				InFlightLoads:         []*decisionv1.InFlightLoad{{Requests: 4, Tokens: 2000, Decoding: 3}},
				UncachedRequestTokens: []*decisionv1.UncachedRequestTokens{{Tokens: 760}},
				EngineMetrics:         []*decisionv1.EngineMetrics{{Waiting: proto.Float64(1), KvUsage: proto.Float64(0.5)}},
				LatencyPredictions:    []*decisionv1.LatencyPrediction{{TtftMs: 110, TpotMs: 9, Confidence: 0.75}},
			},
		},
		Picks: []uint32{3, 0},
		Outcome: &decisionv1.Outcome{
			Reason: "complete", Status: 200, TtftMs: proto.Float64(100), TotalMs: 300, CompletionTokens: proto.Uint64(21),
		},
	}
	if change != nil {
		change(d)
	}
	return d
}

// logOf writes a decision log.
func logOf(t *testing.T, decisions ...*decisionv1.Decision) string {
	t.Helper()
	var lines strings.Builder
	for _, d := range decisions {
		line, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRowsOfALog(t *testing.T) {
	none := []func(*decisionv1.Decision){ // of these there is no row
		func(d *decisionv1.Decision) { d.Outcome = nil },
		func(d *decisionv1.Decision) { d.Outcome.Reason = "disconnect" },
		func(d *decisionv1.Decision) { d.Outcome.Status = 503 },
		func(d *decisionv1.Decision) { d.Outcome.TtftMs = nil },
		func(d *decisionv1.Decision) { d.Outcome.ServedBy = "10.0.0.1:80" },
		func(d *decisionv1.Decision) { d.Outcome.TotalMs = 50 },
		func(d *decisionv1.Decision) { d.Picks = nil },
	}
	decisions := []*decisionv1.Decision{decision(500, nil), decision(200, nil)} // in the order in which they ended
	for _, change := range none {
		decisions = append(decisions, decision(600, change))
	}
	rows, err := FromDecisions(t.Context(), logOf(t, decisions...))
	if err != nil {
		t.Fatal(err)
	}
	first := sample.Row{
		FirstMs: 100, EndMs: 300, Endpoint: 3, KVCachePercentage: 0.5, NumRequestWaiting: 1, NumRequestRunning: 4, PrefillTokensInFlight: 2000,
		InputTokenLength: 1000, PrefixCacheScore: 0.25, UncachedTokens: 760, Decoding: 3, SinceChunkMs: -1,
		ActualTTFTMs: 100, ActualTPOTMs: 10, PredictedTTFTMs: 110, PredictedTPOTMs: 9, Confidence: 0.75,
	}
	second := first
	second.PickMs, second.FirstMs, second.EndMs = 300, 400, 600
	if diff := cmp.Diff([]sample.Row{first, second}, rows); diff != "" {
		t.Error(diff)
	}
}

func TestLogsRefused(t *testing.T) {
	unserved := logOf(t, decision(0, func(d *decisionv1.Decision) { d.Outcome = nil }))
	if _, err := FromDecisions(t.Context(), unserved); err == nil || !strings.Contains(err.Error(), "no request that was streamed to its end") {
		t.Errorf("a log without outcomes: %v", err)
	}
	if _, err := FromDecisions(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a log that is not there was read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FromDecisions(ctx, logOf(t, decision(0, nil))); err == nil {
		t.Error("it went on after it was stopped")
	}
}
