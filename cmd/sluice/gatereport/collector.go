package gatereport

import (
	"errors"
	"fmt"
	"math"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/quantile"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
)

// Options say what is looked for.
type Options struct {
	// Threshold is the gates' affinityThreshold where a record does not hold it.
	Threshold float64
	// Peak is the throughput, in tokens per second, that turns tokens into ms; 0 takes that of the record.
	Peak float64
	// Learnt is that for records whose ms are by learnt rates, or which have none; 0 takes the default of the gate.
	Learnt float64
	// Behind is from which gap on, in ms, an endpoint counts as far behind.
	Behind float64
	// Rules are the gates to try.
	Rules []Rule
	// MatchProducer and LoadProducer choose among several; empty means the only one.
	MatchProducer, LoadProducer string
}

// Validate reports what is out of range.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Threshold > 0 && o.Threshold <= 1, "threshold: must be above 0 and at most 1, got %v", o.Threshold)
	check(o.Peak >= 0 && o.Peak <= 1e9, "peak: must be from 0 to 1e9 tokens per second, got %v", o.Peak)
	check(o.Learnt >= 0 && o.Learnt <= 1e9, "learnt: must be from 0 to 1e9 tokens per second, got %v", o.Learnt)
	check(o.Behind > 0 && !math.IsInf(o.Behind, 1), "behind: must be above 0, got %v ms", o.Behind)
	for _, r := range o.Rules {
		if _, err := newTrial(r, plain(0.8, 1)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// fallback is the throughput where a record says none.
func (o *Options) fallback() float64 {
	switch {
	case o.Peak > 0:
		return o.Peak
	case o.Learnt > 0:
		return o.Learnt
	}
	return gate.DefaultPeakPrefillThroughput
}

// Steps are the gaps, in ms, for which the share of pinned decisions is told.
var Steps = []float64{100, 200, 500, 1000, 2000, 3000, 5000, 7500, 10_000, 15_000, 18_000, 30_000, 60_000}

// Collector reads decisions one after the other and keeps what the report needs, in bounded memory.
type Collector struct {
	survey
	options  Options
	trials   map[setting][]*trial
	first    setting // that was met
	gates    map[string]*section
	order    []string
	skipped  map[string]uint64
	read     uint64
	from, to int64
	configs  seen[string]
}

// maxTrials bounds the settings for which gates are tried.
const maxTrials = 8

// maxGates bounds the gates that are told apart.
const maxGates = 16

// NoGate is the name under which decisions without a gate are counted.
const NoGate = "no gate"

// New makes a collector.
func New(o Options) (*Collector, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Collector{options: o, trials: map[setting][]*trial{}, gates: map[string]*section{}, skipped: map[string]uint64{}}, nil
}

// section is what is kept of one gate.
type section struct {
	name          string
	verdicts      map[string]uint64
	all           tally
	moved         uint64   // released, and picked outside of the sticky ones
	steps         []uint64 // held with a gap of at least Steps[i]
	ratios        quantile.Sketch
	fixedMs       quantile.Sketch // the gaps at the throughput with which static bars are tried
	models        models
	hours         *quantile.Periods[tally]
	bars, peaks   seen[float64]
	same, checked uint64 // decisions whose comparison came out of the columns as it is recorded
	outcomes      []outcome
	predicted     bool // it compared predicted times
	priced        bool // it broke even by learnt rates: bars and rates are each request's own
	unsaid        bool // it broke even by prices that are not in its records
	said          bool // its settings are in all of its records
	hash          string
	even          bool // it does so under the configuration with that hash
}

// outcome is what a rule would have done.
type outcome struct {
	compared, released, pinned, flips uint64
	verdicts                          map[string]uint64
	spared, recomputed                float64 // ms of wait behind, tokens
}

func (c *Collector) section(name string) *section {
	s := c.gates[name]
	if s == nil {
		if len(c.gates) >= maxGates {
			return nil
		}
		s = &section{
			name: name, verdicts: map[string]uint64{}, steps: make([]uint64, len(Steps)), models: models{}, hours: newPeriods(),
			outcomes: make([]outcome, len(c.options.Rules)),
		}
		for i := range s.outcomes {
			s.outcomes[i].verdicts = map[string]uint64{}
		}
		c.gates[name] = s
		c.order = append(c.order, name)
	}
	return s
}

// Skip counts something that could not be read.
func (c *Collector) Skip(reason string) { c.skipped[reason]++ }

// Add reads a decision.
func (c *Collector) Add(d *decisionv1.Decision) error {
	c.read++
	at := d.GetTimeUnixNano()
	if c.read == 1 {
		c.from, c.to = at, at
	}
	c.from, c.to = min(c.from, at), max(c.to, at)
	c.configs.add(d.GetConfigHash())
	v, skip := viewOf(d, &c.options)
	if skip != "" {
		c.Skip(skip)
		return nil
	}
	if len(d.GetGates()) == 0 {
		return c.gate(v, NoGate, nil)
	}
	for _, g := range d.GetGates() {
		if err := c.gate(v, g.GetFilter(), g); err != nil {
			return err
		}
	}
	return nil
}

// gate reads what a gate did; g is nil where there was none, and then the columns say what it would have compared.
func (c *Collector) gate(v *view, name string, g *decisionv1.GateReport) error {
	s := c.section(name)
	if s == nil {
		c.Skip("more gates than are told apart")
		return nil
	}
	if v.unsure(g) {
		c.Skip(ManyPredictions)
		return nil
	}
	recorded := g != nil && g.GapTokens != nil && g.GapMs != nil
	candidates := v.before(name)
	in, even := settingOf(&c.options, g), false
	if recorded {
		var err error
		if even, err = c.brokeEven(s, v, g, candidates); err != nil {
			return err
		}
		in.predicted = g.GetPredicted()
		if !even && !in.predicted && c.options.Peak == 0 { // else the record's ms are by rates that differ each time
			in.peak = peakOf(g)
		}
	}
	trials, in, err := c.trialsFor(in)
	if err != nil {
		return err
	}
	seen := judged{view: v, recorded: g, peak: in.peak, predicted: trials[0].predicted}
	seen.reference, seen.sticky = trials[0].judge(v, candidates) // it never releases, and says what there is to compare
	if recorded && !even {
		s.checked++
		if alike(&seen.reference, g) {
			s.same++
		}
	}
	c.survey.add(&seen, even || g == nil)
	s.count(&c.options, &seen)
	if !seen.compared() {
		return nil
	}
	for i := range c.options.Rules {
		report, _ := trials[i+2].judge(v, candidates)
		s.outcomes[i].add(&c.options, &seen, report, seen.ms(&report, trials[i+2].predicted))
	}
	return nil
}

// leastPeak is the least throughput, in tokens per second, that a record is taken to mean.
const leastPeak = 1e-3

// peakOf is the throughput with which a gate made ms of tokens; the default where its record does not say.
func peakOf(g *decisionv1.GateReport) float64 {
	if g.GetGapTokens() != 0 && g.GetGapMs() != 0 {
		peak := g.GetGapTokens() / g.GetGapMs() * 1000
		if peak >= leastPeak && peak <= 1e9 {
			digits := math.Pow(10, 8-math.Floor(math.Log10(peak)))
			return math.Round(peak*digits) / digits
		}
	}
	return gate.DefaultPeakPrefillThroughput
}

// trialsFor are the gates for a setting, and that which they have: the first one where there are too many.
func (c *Collector) trialsFor(in setting) ([]*trial, setting, error) {
	if len(c.trials) == 0 {
		c.first = in
	}
	if c.trials[in] == nil && len(c.trials) >= maxTrials {
		in = c.first
	}
	if all := c.trials[in]; all != nil {
		return all, in, nil
	}
	var all []*trial
	for _, r := range append([]Rule{StaticRule(0), BreakEvenRule()}, c.options.Rules...) {
		t, err := newTrial(r, in)
		if err != nil {
			return nil, in, err
		}
		all = append(all, t)
	}
	c.trials[in] = all
	return all, in, nil
}

// judged is what a gate compared in a decision.
type judged struct {
	view      *view
	recorded  *decisionv1.GateReport // nil where no gate ran
	reference scheduling.GateReport  // what the columns say
	sticky    bool                   // the pick is a sticky endpoint
	peak      float64
	predicted bool // the times are predicted ones
}

// ms is a comparison's gap in ms: that of the predicted times, also for a gate that compares tokens, or else the tokens' at the
// throughput.
func (j *judged) ms(report *scheduling.GateReport, predicted bool) float64 {
	switch {
	case !j.predicted:
		return report.GapTokens * 1000 / j.peak
	case predicted:
		return report.GapMs
	}
	return j.reference.GapMs
}

// compared reports whether the columns hold a sticky endpoint and another one.
func (j *judged) compared() bool {
	return !math.IsNaN(j.reference.GapTokens) && j.reference.Verdict != scheduling.GateNone
}

// gap is the recorded one, or that of the columns where no gate ran.
func (j *judged) gap() (ms, tokens float64, ok bool) {
	switch g := j.recorded; {
	case g == nil:
		tokens = j.reference.GapTokens
		return j.ms(&j.reference, j.predicted), tokens, j.compared()
	case g.GapTokens == nil || g.GapMs == nil:
		return 0, 0, false
	default:
		tokens, ms = g.GetGapTokens(), g.GetGapMs()
		return ms, tokens, finite(ms) && finite(tokens)
	}
}

// brokeEven reports whether a gate compared costs by learnt rates, as breakEven does, and then checks what it recorded with what
// the columns say: it ranks endpoints by another figure than the other modes. Its prices in the record show it. A record without
// settings does not name the mode; what shows it then is the verdict, or a comparison that comes out so, there or in an earlier
// decision under the same configuration.
func (c *Collector) brokeEven(s *section, v *view, g *decisionv1.GateReport, candidates []int) (bool, error) {
	if hash := v.decision.GetConfigHash(); hash != s.hash {
		s.hash, s.even = hash, false
	}
	known := g.AffinityThreshold != nil
	s.said = known && (s.said || s.checked == 0)
	if known {
		s.even = g.DecodePrice != nil
	}
	if !known && len(v.rates) == 0 || known && !s.even {
		return false, nil
	}
	trials, _, err := c.trialsFor(settingOf(&c.options, g))
	if err != nil {
		return false, err
	}
	report, _ := trials[1].judge(v, candidates)
	same := alike(&report, g) && near(report.GapMs, g.GetGapMs())
	s.even = s.even || same || verdict(g) == scheduling.GateReleasedBreakEven.String()
	if s.even {
		s.priced = true
		s.unsaid = s.unsaid || !known
		s.checked++
		if same {
			s.same++
		}
	}
	return s.even, nil
}

// alike is whether a gate recorded the same comparison.
func alike(r *scheduling.GateReport, g *decisionv1.GateReport) bool {
	return r.GapTokens == g.GetGapTokens() && r.Sticky == int(g.GetSticky()) && r.Other == int(g.GetOther())
}

// finite is whether a number can be added up.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// near is whether two times are one, but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(a), math.Abs(b)) }

func (s *section) count(o *Options, j *judged) {
	released, held := false, j.sticky
	s.predicted = s.predicted || j.predicted
	if g := j.recorded; g != nil {
		word := verdict(g)
		released, held = isReleased(word), word == scheduling.GateHeld.String()
		s.verdicts[word]++
		if g.BarMs != nil && g.GapMs != nil && finite(g.GetBarMs()) && !s.priced {
			s.bars.add(g.GetBarMs())
		}
		if released && !j.sticky {
			s.moved++
		}
	}
	ms, tokens, ok := j.gap()
	if !ok {
		if j.recorded == nil {
			s.verdicts["nothing to compare"]++
		}
		return
	}
	if j.recorded == nil {
		s.verdicts[map[bool]string{true: "stayed with the prefix", false: "went elsewhere"}[held]]++
	} else if tokens != 0 && ms != 0 && !s.priced && !j.predicted {
		s.peaks.add(peakOf(j.recorded))
	}
	for i, step := range Steps {
		if held && ms >= step {
			s.steps[i]++
		}
	}
	if matched := float64(j.view.match[j.reference.Sticky].MatchedTokens()); j.compared() && matched > 0 {
		s.ratios.Add(tokens / matched)
	}
	if j.compared() {
		s.fixedMs.Add(j.ms(&j.reference, j.predicted))
	}
	pinned := held && ms >= o.Behind
	s.all.add(ms, tokens, released, pinned)
	s.models.of(j.view.request.Model).add(ms, tokens, released, pinned)
	s.hours.At(j.view.decision.GetTimeUnixNano()).add(ms, tokens, released, pinned)
}

// add takes in what a rule says of a decision, and its gap in ms.
func (u *outcome) add(o *Options, j *judged, report scheduling.GateReport, gapMs float64) {
	word := report.Verdict.String()
	released := isReleased(word)
	u.compared++
	u.verdicts[word]++
	if was := j.recorded; was != nil && was.GapTokens != nil && isReleased(verdict(was)) != released {
		u.flips++
	}
	if !released {
		if gapMs >= o.Behind {
			u.pinned++
		}
		return
	}
	u.released++
	u.spared += gapMs
	u.recomputed += max(0, j.view.cached(report.Sticky)-j.view.cached(report.Other))
}

func isReleased(verdict string) bool { return strings.HasPrefix(verdict, "released") }
