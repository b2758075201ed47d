package extproc

import (
	"cmp"
	"math"
	"net"
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// operations are the names that the conventions have for the APIs.
var operations = map[scheduling.Operation]string{
	scheduling.OperationChat: span.OperationChat, scheduling.OperationResponses: span.OperationChat,
	scheduling.OperationMessages: span.OperationChat, scheduling.OperationCompletions: span.OperationText,
	scheduling.OperationEmbeddings: span.OperationEmbeddings,
}

// decisionAttributes are what a decision rests on, whatever it picked.
func decisionAttributes(c *scheduling.Cycle) []attribute.KeyValue {
	r := c.Request
	all := []attribute.KeyValue{
		span.ConfigHash.String(c.Scheduler().ConfigHash()),
		span.Profile.String(c.Scheduler().ProfileName()),
		span.Candidates.Int(c.Considered.Len()),
		span.CandidatesLeft.Int(c.Candidates.Len()),
	}
	if name, ok := operations[r.Operation]; ok {
		all = append(all, span.GenAIOperation.String(name), span.GenAIStream.Bool(r.Stream))
	}
	if r.Model != "" {
		all = append(all, span.GenAIRequestModel.String(span.Text(r.Model)))
	}
	if r.MaxOutputTokens > 0 {
		all = append(all, span.GenAIMaxTokens.Int(r.MaxOutputTokens))
	}
	if r.Choices > 1 {
		all = append(all, span.GenAIChoices.Int(r.Choices))
	}
	if prompt, ok := scheduling.ValueOf[scheduling.TokenizedPrompt](c).Get(); ok {
		all = append(all, span.PromptTokens.Int(prompt.Count), span.PromptExact.Bool(prompt.Exact))
	}
	if n := len(c.Gates); n > 0 {
		all = append(all, gateAttributes(&c.Gates[n-1])...)
	}
	return all
}

func gateAttributes(g *scheduling.GateReport) []attribute.KeyValue {
	all := []attribute.KeyValue{span.Gate.String(g.Verdict.String()), span.GateFilter.String(g.Filter)}
	for _, number := range []struct {
		key   attribute.Key
		value float64
	}{
		{span.GateGapMs, g.GapMs}, {span.GateBarMs, g.BarMs}, {span.GateGapTokens, g.GapTokens}, {span.GateBarTokens, g.BarTokens},
	} {
		if !math.IsNaN(number.value) {
			all = append(all, number.key.Float64(number.value))
		}
	}
	return all
}

// pickAttributes are what was known of the pick.
func pickAttributes(c *scheduling.Cycle, f *scheduling.Flight) []attribute.KeyValue {
	pick := f.Picks[0].Ordinal
	all := append(endpointAttributes(f.Picks[0]), span.Total.Float64(c.Totals[pick]))
	if margin, ok := record.RunnerUpMargin(c); ok {
		all = append(all, span.Margin.Float64(margin))
	}
	for i := range c.Scores {
		all = append(all, (span.ScorePrefix + attribute.Key(c.Scores[i].Scorer)).Float64(c.Scores[i].Raw[pick]))
	}
	if len(f.Picks) > 1 {
		addresses := make([]string, len(f.Picks))
		for i, e := range f.Picks {
			addresses[i] = e.Address
		}
		all = append(all, span.Picks.StringSlice(addresses))
	}
	if m, ok := scheduling.ColumnOf[scheduling.PrefixCacheMatchInfo](c).Get(pick); ok {
		all = append(all, span.MatchBlocks.Int(m.MatchBlocks), span.MatchCached.Int(m.CachedBlockCount),
			span.MatchTotal.Int(m.TotalBlocks), span.MatchBlockSize.Int(m.BlockSizeTokens))
	}
	if load, ok := scheduling.ColumnOf[scheduling.InFlightLoad](c).Get(pick); ok {
		all = append(all, span.LoadRequests.Int64(load.Requests), span.LoadTokens.Int64(load.Tokens))
	}
	if uncached, ok := scheduling.ColumnOf[scheduling.UncachedRequestTokens](c).Get(pick); ok {
		all = append(all, span.Uncached.Int64(int64(uncached)))
	}
	if l, ok := scheduling.ColumnOf[scheduling.LatencyPrediction](c).Get(pick); ok {
		asked, _ := scheduling.ValueOf[scheduling.LatencyObjective](c).Get()
		all = append(all, predictionAttributes(&l, asked)...)
	}
	return all
}

// predictionAttributes are what the pick's latency was predicted to be, and what of it the request asks. No collector takes what
// is no number.
func predictionAttributes(l *scheduling.LatencyPrediction, asked scheduling.LatencyObjective) []attribute.KeyValue {
	var all []attribute.KeyValue
	add := func(known bool, key attribute.Key, value float64) {
		if known && !math.IsNaN(value) && !math.IsInf(value, 0) {
			all = append(all, key.Float64(value))
		}
	}
	first, spare := !l.WholeResponse, l.HeadroomOf(asked)
	add(!first, span.ResponseMs, l.TTFTMs)
	add(first, span.FirstTokenMs, l.TTFTMs)
	add(first && l.TTFTP90Ms > 0, span.FirstTokenP90, l.TTFTP90Ms)
	add(l.TPOTMs > 0, span.PerTokenMs, l.TPOTMs)
	parts := l.Residual > 0
	add(parts, span.WaitMs, l.WaitMs)
	add(parts, span.PrefillMs, l.PrefillMs)
	add(parts, span.Residual, l.Residual)
	add(true, span.Confidence, l.Confidence)
	add(asked.TTFTMs > 0, span.AskedFirst, asked.TTFTMs)
	add(true, span.SpareFirst, spare.TTFT)
	add(asked.TPOTMs > 0, span.AskedPerToken, asked.TPOTMs)
	add(true, span.SparePerToken, spare.TPOT)
	return all
}

// seenAttributes are what came of what was predicted, where it compares.
func seenAttributes(l *scheduling.LatencyPrediction, end *record.Ending, choices int) []attribute.KeyValue {
	seen := explain.SeenOf(l, end, choices)
	var all []attribute.KeyValue
	if seen.TTFTMs > 0 {
		key := span.SeenFirst
		if l.WholeResponse {
			key = span.SeenResponse
		}
		all = append(all, key.Float64(seen.TTFTMs))
	}
	if seen.TPOTMs > 0 {
		all = append(all, span.SeenPerToken.Float64(seen.TPOTMs))
	}
	return all
}

// defaultEngine is what an endpoint runs that does not say.
const defaultEngine = "vllm"

func endpointAttributes(e *scheduling.Endpoint) []attribute.KeyValue {
	all := []attribute.KeyValue{span.GenAIProvider.String(cmp.Or(e.Engine, defaultEngine))}
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil {
		return append(all, span.ServerAddress.String(e.Address))
	}
	all = append(all, span.ServerAddress.String(host))
	if n, err := strconv.Atoi(port); err == nil {
		all = append(all, span.ServerPort.Int(n))
	}
	return all
}
