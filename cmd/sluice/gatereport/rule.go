package gatereport

import (
	"fmt"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
)

// Rule is a gate to try on the decisions.
type Rule struct {
	// Name is what reports call it.
	Name string
	// Parameters are the gate's. Its threshold, its producers and its throughput come from the decisions.
	Parameters gate.Parameters
	// Times is how many times a match counts; 1 is what the gate itself does.
	Times int
}

// trial is a gate that decides recorded decisions. It is the gate itself, in a scheduler whose columns are the record's.
type trial struct {
	rule      Rule
	predicted bool   // it compares predicted times
	by        string // those of this producer
	scheduler *scheduling.Scheduler
	gate      *gate.Filter
	recorded  *recorded
	fixed     scheduling.LearntRates // where a record has none
}

const (
	recordedType = "recorded"
	gateName     = "gate"
	pickerType   = "first"
)

// recorded stands for the producers: it declares the columns, which are filled from the record.
type recorded struct {
	match    scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	rates    scheduling.Key[scheduling.LearntRates]
	latency  scheduling.Key[scheduling.LatencyPrediction]
	pressure scheduling.ValueKey[scheduling.PoolPressure]
}

// Fill implements scheduling.Filler. The columns are filled before.
func (*recorded) Fill(*scheduling.Cycle) {}

// first picks the first candidate: only the gate matters here.
type first struct{}

// Pick implements scheduling.Picker.
func (first) Pick(_ *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	for o := range candidates.All() {
		return append(picks, o)
	}
	return picks
}

// setting is what of a gate's parameters comes from the decisions.
type setting struct {
	threshold, peak float64
	// alpha, kappa and decodePrice are those of a gate that breaks even, where its record says them; else unset.
	alpha, kappa, decodePrice float64
	predicted                 bool   // its times are predicted ones
	by                        string // the producer of these where several predict
}

const unset = -1.0

func plain(threshold, peak float64) setting {
	return setting{threshold: threshold, peak: peak, alpha: unset, kappa: unset, decodePrice: unset}
}

// settingOf is what a record says, as far as it can be, and else the options; g may be nil.
func settingOf(o *Options, g *decisionv1.GateReport) setting {
	in := plain(o.Threshold, o.fallback())
	if g == nil || g.AffinityThreshold == nil {
		return in
	}
	in.predicted, in.by = g.GetPredicted(), g.GetPredictedBy()
	if t := g.GetAffinityThreshold(); t > 0 && t <= 1 {
		in.threshold = t
	}
	for _, price := range []struct {
		to   *float64
		from *float64
	}{{&in.alpha, g.Alpha}, {&in.kappa, g.Kappa}, {&in.decodePrice, g.DecodePrice}} {
		if v := price.from; v != nil && *v >= 0 && *v <= gate.MaxPrice {
			*price.to = *v
		}
	}
	return in
}

// prices are the parameters of a gate that breaks even.
func (in setting) prices(p *gate.Parameters) {
	for _, price := range []struct {
		to   **float64
		from float64
	}{{&p.Alpha, in.alpha}, {&p.Kappa, in.kappa}, {&p.DecodePrice, in.decodePrice}} {
		if price.from >= 0 {
			*price.to = &price.from
		}
	}
}

// newTrial builds a rule's gate for a setting.
func newTrial(r Rule, in setting) (*trial, error) {
	t := &trial{rule: r, by: in.by, recorded: &recorded{}, fixed: scheduling.FixedRates(in.peak)}
	never := 0.0
	p := r.Parameters
	p.AffinityThreshold, p.ExplorationProbability, p.PeakPrefillThroughput = &in.threshold, &never, in.peak
	if p.PenaltyMode == gate.ModeBreakEven {
		in.prices(&p)
	}
	p.PrefixMatchInfoProducerName, p.InFlightLoadProducerName, p.LearntRatesProducerName = "", "", ""
	if t.predicted = in.predicted && p.PenaltyMode != gate.ModeMatchedTokens; t.predicted {
		p.TTFTSource = gate.SourceLatencyPredictor
	}
	types := []scheduling.PluginType{
		gate.Type(),
		{Type: recordedType, New: func(b *scheduling.Builder) (any, error) {
			t.recorded.match = scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
			t.recorded.load = scheduling.ProduceColumn[scheduling.InFlightLoad](b)
			t.recorded.uncached = scheduling.ProduceColumn[scheduling.UncachedRequestTokens](b)
			t.recorded.rates = scheduling.ProduceColumn[scheduling.LearntRates](b)
			t.recorded.latency = scheduling.ProduceColumn[scheduling.LatencyPrediction](b)
			t.recorded.pressure = scheduling.ProduceValue[scheduling.PoolPressure](b)
			return t.recorded, nil
		}},
		{Type: pickerType, New: func(*scheduling.Builder) (any, error) { return first{}, nil }},
	}
	s, err := scheduling.Build(types, scheduling.Config{
		Plugins: []scheduling.Spec{
			{Name: recordedType, Type: recordedType},
			{Name: gateName, Type: gate.TypeName, Decode: func(into any) error { *into.(*gate.Parameters) = p; return nil }},
			{Name: pickerType, Type: pickerType},
		},
		ProfileName: "trial", MaxPicks: 1,
		Profile: []scheduling.Ref{{Name: gateName, Weight: 1}, {Name: pickerType, Weight: 1}},
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("rule %s: %w", r.Name, err)
	}
	t.scheduler, t.gate = s, s.Plugin(gateName).(*gate.Filter)
	return t, nil
}

// judge is what the gate says of a decision whose candidates are given, and whether the pick is one of those that it would
// keep.
func (t *trial) judge(v *view, candidates []int) (report scheduling.GateReport, sticky bool) {
	c := t.scheduler.Begin(v.snapshot, &v.request, 0)
	defer t.scheduler.End(c)
	c.Candidates.Clear()
	match, load := t.recorded.match.In(c), t.recorded.load.In(c)
	for _, o := range candidates {
		c.Candidates.Add(o)
	}
	for o, m := range v.match {
		m.BlockSizeTokens *= t.rule.Times
		match.Set(o, m)
	}
	for o, l := range v.load {
		load.Set(o, l)
	}
	if t.predicted {
		latency := t.recorded.latency.In(c)
		for o, l := range v.predictions(t.by) {
			latency.Set(o, l)
		}
	}
	t.fillPrices(c, v, candidates)
	t.scheduler.Decide(c)
	if len(c.Gates) > 0 {
		report = c.Gates[0]
	}
	return report, t.gate.Sticky(c, v.picked())
}

// fillPrices fills in what breakEven rests on beside match and load. What has not been recorded is what the matches say, and
// the throughput.
func (t *trial) fillPrices(c *scheduling.Cycle, v *view, candidates []int) {
	if t.rule.Parameters.PenaltyMode != gate.ModeBreakEven {
		return
	}
	uncached, rates := t.recorded.uncached.In(c), t.recorded.rates.In(c)
	for _, o := range candidates {
		own, ok := v.uncached[o]
		if !ok {
			own = scheduling.UncachedRequestTokens(v.prompt(o) - v.cached(o))
		}
		uncached.Set(o, own)
		learnt, ok := v.rates[o]
		if !ok {
			learnt = t.fixed
		}
		rates.Set(o, learnt)
	}
	if v.pressure != nil {
		t.recorded.pressure.In(c).Set(*v.pressure)
	}
}

// BreakEvenRule releases where waiting costs more than computing again, priced with the recorded rates, or else with the
// throughput and the default α and κ. There is no ceiling.
func BreakEvenRule() Rule {
	none := 0.0
	return Rule{Name: gate.ModeBreakEven, Times: 1, Parameters: gate.Parameters{
		PenaltyMode: gate.ModeBreakEven, TTFTSource: gate.SourcePrefillThroughput, MaxTTFTPenaltyMs: &none,
	}}
}

// StaticRule releases beyond a bar in ms; 0 never releases.
func StaticRule(barMs float64) Rule {
	name := fmt.Sprintf("static %s", millis(barMs))
	if barMs == 0 {
		name = "static, never"
	}
	return Rule{Name: name, Times: 1, Parameters: gate.Parameters{
		PenaltyMode: gate.ModeStatic, TTFTSource: gate.SourcePrefillThroughput, MaxTTFTPenaltyMs: &barMs,
	}}
}

// MatchedRule releases beyond so many times the match, without a ceiling.
func MatchedRule(times int) Rule {
	none := 0.0
	return Rule{Name: fmt.Sprintf("matchedTokens ×%d", times), Times: times, Parameters: gate.Parameters{
		PenaltyMode: gate.ModeMatchedTokens, TTFTSource: gate.SourcePrefillThroughput, MaxTTFTPenaltyMs: &none,
	}}
}
