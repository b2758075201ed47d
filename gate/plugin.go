package gate

import (
	"errors"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// Filter is the affinity filter: epsilon-greedy stickiness with a load gate. It implements the scheduler's Filter and
// Preference, and keeps nothing between requests.
type Filter struct {
	name    string
	stream  uint64
	params  Parameters // effective
	tau     float64    // affinityThreshold; 0 or less: off
	epsilon float64    // explorationProbability
	rule    rule
	match   scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load    scheduling.Key[scheduling.InFlightLoad]

	// With latencyPredictor only.
	predictions scheduling.Key[scheduling.LatencyPrediction]

	settings scheduling.GateSettings // what reports say of the parameters

	// With breakEven only.
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	pricing  scheduling.Pricing
}

var (
	_ scheduling.Filter     = (*Filter)(nil)
	_ scheduling.Preference = (*Filter)(nil)
)

func newFilter(b *scheduling.Builder) (any, error) {
	params := unset()
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	if err := errors.Join(params.Complete(), params.Validate()); err != nil {
		return nil, err
	}
	g := &Filter{
		name:    b.Name,
		stream:  b.Stream(),
		params:  params,
		tau:     *params.AffinityThreshold,
		epsilon: *params.ExplorationProbability,
		rule: rule{
			matchedTokens: params.PenaltyMode == ModeMatchedTokens,
			breakEven:     params.PenaltyMode == ModeBreakEven,
			predicted:     params.TTFTSource == SourceLatencyPredictor,
			penaltyMs:     *params.MaxTTFTPenaltyMs,
			throughput:    params.PeakPrefillThroughput,
		},
		match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", params.PrefixMatchInfoProducerName),
		load:  scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
	}
	g.settings = scheduling.GateSettings{AffinityThreshold: g.tau, Predicted: g.rule.predicted}
	if g.rule.predicted {
		g.settings.PredictedBy = params.LatencyPredictionInfoProducerName
		g.predictions = scheduling.ConsumeColumn[scheduling.LatencyPrediction](b, latencyProducerParameter, g.settings.PredictedBy)
	}
	if g.rule.breakEven {
		knobs := params.knobs()
		g.settings.Prices = &knobs
		g.uncached = scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", params.InFlightLoadProducerName)
		g.pricing = scheduling.ConsumePricing(b, "learntRatesProducerName", params.LearntRatesProducerName, knobs)
	}
	return g, nil
}

// latencyProducerParameter is the parameter that names the producer of the predictions.
const latencyProducerParameter = "latencyPredictionInfoProducerName"

// FirstTokensOf is the name of the producer whose predictions the gate takes for times to a first token; empty where it
// takes none.
func (g *Filter) FirstTokensOf() string { return g.predictions.Producer() }

// Parameters returns the effective parameters: defaults filled in, second spellings folded.
func (g *Filter) Parameters() Parameters { return g.params }

// Preference marks the filter: an endpoint without the prefix can still serve as a fallback.
func (g *Filter) Preference() {}

// Sticky reports whether an endpoint holds enough of the request's prefix to be kept to. An endpoint without match info,
// or a prompt shorter than one block, is not sticky.
func (g *Filter) Sticky(c *scheduling.Cycle, ordinal int) bool {
	return g.sticky(g.match.In(c).At(ordinal))
}

func (g *Filter) sticky(info *scheduling.PrefixCacheMatchInfo) bool {
	return info != nil && info.MatchBlocks > 0 && info.Score() >= g.tau // the threshold is above 0: no match is never enough
}

// Filter keeps the sticky candidates, unless there are none, the request explores, or the gate releases it. It never
// leaves fewer than one of the candidates that it was given.
func (g *Filter) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	if g.tau <= 0 || candidates.Empty() {
		return
	}
	if g.explores(c) {
		c.ReportGate(g.report(scheduling.GateExplored))
		return
	}
	kept := c.Scratch()
	sticky, other := g.sides(c, candidates, kept)
	switch {
	case sticky.members == 0:
		c.ReportGate(g.report(scheduling.GateNoSticky))
		return
	case other.members == 0:
		report := g.report(scheduling.GateHeld)
		report.Sticky = sticky.best.ordinal
		c.ReportGate(report)
		return
	}
	report := g.rule.judge(sticky.best, other.best)
	report.Filter, report.Settings = g.name, &g.settings
	c.ReportGate(report)
	if !released(report.Verdict) {
		candidates.IntersectWith(kept)
	}
}

func (g *Filter) explores(c *scheduling.Cycle) bool {
	if g.epsilon <= 0 {
		return false
	}
	random := c.Rand(g.stream)
	return random.Float64() < g.epsilon
}

// report is the report of a verdict that compared nothing.
func (g *Filter) report(v scheduling.GateVerdict) scheduling.GateReport {
	return scheduling.GateReport{
		Filter: g.name, Verdict: v,
		GapMs: math.NaN(), GapTokens: math.NaN(), BarTokens: math.NaN(),
		Sticky: -1, Other: -1, Settings: &g.settings,
	}
}

// side is the sticky or the other candidates: how many there are, and which of them is the best.
type side struct {
	members int
	best    contender
}

// sides splits the candidates and adds the sticky ones to kept. An endpoint of which something is not known that the gate
// compares counts as a member but takes no part in the comparison.
func (g *Filter) sides(c *scheduling.Cycle, candidates, kept scheduling.Set) (sticky, other side) {
	sticky.best, other.best = noContender, noContender
	match := g.match.In(c)
	source := g.source(c)
	for i := range candidates.All() {
		info, s := match.At(i), &other
		if g.sticky(info) {
			s = &sticky
			kept.Add(i)
		}
		s.members++
		s.best = cheaper(s.best, source.contender(i, info))
	}
	return sticky, other
}

// source is a cycle's inputs to the gate.
type source struct {
	rule        rule
	load        *scheduling.Column[scheduling.InFlightLoad]
	predictions *scheduling.Column[scheduling.LatencyPrediction]     // with latencyPredictor
	uncached    *scheduling.Column[scheduling.UncachedRequestTokens] // this and below with breakEven
	price       scheduling.PickPrice
	rates       scheduling.EndpointRates
}

func (g *Filter) source(c *scheduling.Cycle) source {
	s := source{rule: g.rule, load: g.load.In(c), predictions: g.predictions.In(c), uncached: g.uncached.In(c)}
	if g.rule.breakEven {
		s.price, s.rates = g.pricing.In(c)
	}
	return s
}

// contender is what the gate compares of an endpoint; its cost is NaN where that is not known.
func (s *source) contender(ordinal int, info *scheduling.PrefixCacheMatchInfo) contender {
	load := s.load.At(ordinal)
	next := s.rule.contender(ordinal, load, s.predictions.At(ordinal), info)
	if !s.rule.breakEven || !scheduling.Finite(next.ttftMs) {
		return next
	}
	own, ok := s.uncached.Get(ordinal)
	switch {
	case !ok || load == nil || load.Tokens < 0:
		next.costMs = math.NaN()
	case s.rule.predicted:
		next.costMs = s.price.CostBehind(next.ttftMs, s.rates.Of(ordinal), load, own)
	default:
		next.ttftMs, next.costMs = s.price.Wait(s.rates.Of(ordinal), load), s.price.Cost(s.rates.Of(ordinal), load, own)
	}
	return next
}
