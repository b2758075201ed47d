package capture

import (
	"context"
	"errors"
	"fmt"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// FromDecisions makes rows of a decision log, files or their folder: of each request whose answer was streamed to its end by the
// endpoint that was picked. What a log does not tell of a row is as if nothing was known: no phase of the engine's step.
func FromDecisions(ctx context.Context, paths ...string) ([]sample.Row, error) {
	r, err := decisionlog.NewReader(paths...)
	if err != nil {
		return nil, err
	}
	var rows []sample.Row
	var begin int64
	for d, err := range r.Decisions(ctx) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		if row, ok := rowOf(d, &begin); ok {
			rows = append(rows, row)
		}
		if len(rows) > sample.MaxRows {
			return nil, fmt.Errorf("more than %d rows", sample.MaxRows)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("the decision log has no request that was streamed to its end")
	}
	first := 0.0
	for i := range rows {
		first = min(first, rows[i].PickMs)
	}
	for i := range rows {
		r := &rows[i]
		r.PickMs, r.FirstMs, r.EndMs = r.PickMs-first, r.FirstMs-first, r.EndMs-first
	}
	return ordered(rows), nil
}

// rowOf is the row of a decision, its times since begin, which the first one sets.
func rowOf(d *decisionv1.Decision, begin *int64) (row sample.Row, ok bool) {
	o := d.GetOutcome()
	at := picked(d)
	if at == nil || o == nil || o.GetStatus() != 200 || o.GetReason() != scheduling.EndComplete.String() ||
		o.GetServedBy() != "" && o.GetServedBy() != at.GetAddress() || !(o.GetTtftMs() > 0) || !(o.GetTotalMs() >= o.GetTtftMs()) {
		return row, false
	}
	if *begin == 0 {
		*begin = d.GetTimeUnixNano()
	}
	row = sample.Row{Endpoint: int(at.GetOrdinal()), ActualTTFTMs: o.GetTtftMs(), SinceChunkMs: -1}
	row.PickMs = float64(d.GetTimeUnixNano()-*begin) / 1e6
	row.FirstMs, row.EndMs = row.PickMs+o.GetTtftMs(), row.PickMs+o.GetTotalMs()
	if further := int64(o.GetCompletionTokens()) - 1; further > 0 {
		row.ActualTPOTMs = (o.GetTotalMs() - o.GetTtftMs()) / float64(further)
	}
	for _, p := range d.GetRequest().GetTokenizedPrompts() {
		row.InputTokenLength = float64(p.GetTokens())
	}
	for _, m := range at.GetPrefixCacheMatches() {
		row.PrefixCacheScore = scheduling.PrefixCacheMatchInfo{
			MatchBlocks: int(m.GetMatchBlocks()), TotalBlocks: int(m.GetTotalBlocks()), BlockSizeTokens: int(m.GetBlockSizeTokens()),
		}.Score()
	}
	for _, l := range at.GetInFlightLoads() {
		row.NumRequestRunning, row.PrefillTokensInFlight, row.Decoding = float64(l.GetRequests()), float64(l.GetTokens()), float64(l.GetDecoding())
	}
	for _, u := range at.GetUncachedRequestTokens() {
		row.UncachedTokens = float64(u.GetTokens())
	}
	for _, m := range at.GetEngineMetrics() {
		row.NumRequestWaiting, row.KVCachePercentage = m.GetWaiting(), m.GetKvUsage()
	}
	for _, p := range at.GetLatencyPredictions() {
		row.PredictedTTFTMs, row.PredictedTPOTMs, row.Confidence = p.GetTtftMs(), p.GetTpotMs(), p.GetConfidence()
	}
	return row, true
}

// picked is the candidate that was picked first; nil: none.
func picked(d *decisionv1.Decision) *decisionv1.Candidate {
	if len(d.GetPicks()) == 0 {
		return nil
	}
	for _, c := range d.GetCandidates() {
		if c.GetOrdinal() == d.GetPicks()[0] {
			return c
		}
	}
	return nil
}
