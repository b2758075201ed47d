// Package capture makes samples for predictors of latency: it plays a trace through modelled engines in virtual time, routed by the
// built-in profile, and writes a row a request.
package capture

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/scheduling"
)

// typeName is the type of the plugin that looks on.
const typeName = "latency-samples"

// watcher is a Follower that writes down what was known of each pick, and what came of it. It decides nothing.
type watcher struct {
	rows    *[]sample.Row
	prompt  scheduling.ValueKey[scheduling.TokenizedPrompt]
	match   scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load    scheduling.Key[scheduling.InFlightLoad]
	own     scheduling.Key[scheduling.UncachedRequestTokens]
	engine  scheduling.Key[scheduling.EngineMetrics]
	flights scheduling.StateKey[flight]
	heard   map[int]time.Duration // when each endpoint last streamed anything, by ordinal
}

// flight is a row that is not whole yet.
type flight struct {
	row   sample.Row
	first time.Duration
}

// watcherType is the plugin type whose rows go to rows, in the order in which requests end.
func watcherType(rows *[]sample.Row) scheduling.PluginType {
	return scheduling.PluginType{
		Type: typeName, Summary: "writes down what is known of each pick and what comes of it",
		New: func(b *scheduling.Builder) (any, error) {
			return &watcher{
				rows: rows, heard: map[int]time.Duration{},
				prompt:  scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "", ""),
				match:   scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "", ""),
				load:    scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "", ""),
				own:     scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "", ""),
				engine:  scheduling.ConsumeColumn[scheduling.EngineMetrics](b, "", ""),
				flights: scheduling.KeepState[flight](b),
			}, nil
		},
	}
}

// Committed implements scheduling.Follower. The columns are as they were before the pick was charged.
func (w *watcher) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	at := f.Endpoint.Ordinal
	prompt, _ := w.prompt.In(c).Get()
	match, _ := w.match.In(c).Get(at)
	load, _ := w.load.In(c).Get(at)
	own, _ := w.own.In(c).Get(at)
	engine, _ := w.engine.In(c).Get(at)
	p := f.Predicted
	w.flights.Of(f).row = sample.Row{
		PickMs: ms(f.PickedAt), Endpoint: at,
		KVCachePercentage: engine.KVUsage, NumRequestWaiting: engine.Waiting,
		NumRequestRunning: float64(load.Requests), PrefillTokensInFlight: float64(load.Tokens),
		InputTokenLength: float64(prompt.Count), PrefixCacheScore: match.Score(),
		UncachedTokens: float64(own), Decoding: float64(load.Decoding), SinceChunkMs: w.sinceChunk(at, f.PickedAt),
		PredictedTTFTMs: p.TTFTMs, PredictedTTFTP90Ms: p.TTFTP90Ms, PredictedTPOTMs: p.TPOTMs, PredictedTPOTP90Ms: p.TPOTP90Ms, Confidence: p.Confidence,
	}
}

func (w *watcher) sinceChunk(endpoint int, now time.Duration) float64 {
	last, ok := w.heard[endpoint]
	if !ok {
		return -1
	}
	return ms(now - last)
}

// FirstToken implements scheduling.Follower.
func (w *watcher) FirstToken(f *scheduling.Flight, now time.Duration) {
	w.flights.Of(f).first = now
	w.Chunk(f, now)
}

// Chunk implements scheduling.ChunkFollower.
func (w *watcher) Chunk(f *scheduling.Flight, now time.Duration) { w.heard[f.Endpoint.Ordinal] = now }

// Done implements scheduling.Follower. What did not end well, or has no first token, makes no row.
func (w *watcher) Done(f *scheduling.Flight, now time.Duration) {
	held := w.flights.Of(f)
	if f.Outcome.Reason != scheduling.EndComplete || f.Outcome.Status != 200 || held.first <= f.PickedAt {
		return
	}
	w.Chunk(f, now)
	row := held.row
	row.FirstMs, row.EndMs, row.ActualTTFTMs = ms(held.first), ms(now), ms(held.first-f.PickedAt)
	if further := f.Outcome.Usage.CompletionTokens - 1; further > 0 {
		row.ActualTPOTMs = ms(now-held.first) / float64(further)
	}
	*w.rows = append(*w.rows, row)
}

// ordered puts rows into the order of their picks.
func ordered(rows []sample.Row) []sample.Row {
	slices.SortStableFunc(rows, func(a, b sample.Row) int { return cmp.Compare(a.PickMs, b.PickMs) })
	return rows
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
