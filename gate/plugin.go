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
			penaltyMs:     *params.MaxTTFTPenaltyMs,
			throughput:    params.PeakPrefillThroughput,
		},
		match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", params.PrefixMatchInfoProducerName),
		load:  scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
	}
	if g.rule.breakEven {
		g.uncached = scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", params.InFlightLoadProducerName)
		g.pricing = scheduling.ConsumePricing(b, "learntRatesProducerName", params.LearntRatesProducerName, params.knobs())
	}
	return g, nil
}

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
	report.Filter = g.name
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
		Sticky: -1, Other: -1,
	}
}

// side is the sticky or the other candidates: how many there are, and which of them is the best.
type side struct {
	members int
	best    contender
}

// sides splits the candidates and adds the sticky ones to kept. An endpoint without a known load, or with
// breakEven without known uncached tokens, counts as a member but takes no part in the comparison.
func (g *Filter) sides(c *scheduling.Cycle, candidates, kept scheduling.Set) (sticky, other side) {
	sticky.best, other.best = noContender, noContender
	match, load := g.match.In(c), g.load.In(c)
	uncached := g.uncached.In(c)
	price, rates := g.pricing.In(c)
	for i := range candidates.All() {
		info, s := match.At(i), &other
		if g.sticky(info) {
			s = &sticky
			kept.Add(i)
		}
		s.members++
		if inFlight := load.At(i); inFlight != nil {
			next := g.rule.contender(i, inFlight, info)
			if g.rule.breakEven && scheduling.Finite(next.costMs) {
				own, ok := uncached.Get(i)
				if !ok {
					continue
				}
				next.ttftMs, next.costMs = price.Wait(rates.Of(i), inFlight), price.Cost(rates.Of(i), inFlight, own)
			}
			s.best = cheaper(s.best, next)
		}
	}
	return sticky, other
}
