package gatereport

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/cmd/sluice/quantile"
)

// Report is what a log says of its gates.
type Report struct {
	// Decisions is how many were read; Skipped counts what was not looked at, by the reason.
	Decisions uint64            `json:"decisions"`
	Skipped   map[string]uint64 `json:"skipped,omitempty"`
	// From and To are the times of the first and the last decision.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// BehindMs is from which gap on an endpoint counts as far behind.
	BehindMs float64 `json:"behind_ms"`
	// Threshold is the affinityThreshold that was taken.
	Threshold float64 `json:"affinity_threshold"`
	// Gates are the gates in the order in which they were met.
	Gates []Gate `json:"gates"`
	// Notes say what a reader should know before trusting the figures.
	Notes []string `json:"notes"`
}

// Gate is what a log says of one gate.
type Gate struct {
	// Name is the filter's, or NoGate.
	Name string `json:"name"`
	// Verdicts counts decisions by what the gate said.
	Verdicts map[string]uint64 `json:"verdicts"`
	// Share is of the decisions in which it had something to compare.
	Share
	// Moved is how many released requests left the sticky endpoints.
	Moved uint64 `json:"moved"`
	// Steps are the shares held while an alternative was so much less loaded.
	Steps []Step `json:"pinned_behind"`
	// Predicted says that it compared predicted times to the first token, in some decisions at least.
	Predicted bool `json:"predicted,omitempty"`
	// BarsMs and PeaksPerS are the bounds and throughputs that were met, the first 8.
	BarsMs    []float64 `json:"bars_ms,omitempty"`
	PeaksPerS []float64 `json:"peak_prefill_throughputs,omitempty"`
	// Reconstructed and Checked say in how many decisions the columns give the comparison that was recorded.
	Reconstructed uint64 `json:"reconstructed"`
	Checked       uint64 `json:"checked"`
	// CDF is the gap's distribution; Ratios that of the gap over the matched tokens.
	CDF    []Point `json:"gap_ms_cdf,omitempty"`
	Ratios []Point `json:"gap_over_match_cdf,omitempty"`
	// BarCDF is the gap's distribution in ms at the one throughput with which static bars are tried.
	BarCDF []Point `json:"static_gap_ms_cdf,omitempty"`
	// WhatIf is what the rules would have done.
	WhatIf []WhatIf `json:"what_if"`
	// Models and Periods are the same by model and by time.
	Models  []Part `json:"models"`
	Periods []Part `json:"periods"`
}

// Share is of decisions in which a gate compared a sticky endpoint with another one.
type Share struct {
	// Compared is how many there are.
	Compared uint64 `json:"compared"`
	// Released and Pinned are how many of them were let go, and how many were held at least BehindMs behind.
	Released uint64 `json:"released"`
	Pinned   uint64 `json:"pinned"`
	// GapMs and GapTokens are the gate's input; nil where there is none.
	GapMs     *Quantiles `json:"gap_ms,omitempty"`
	GapTokens *Quantiles `json:"gap_tokens,omitempty"`
}

// Quantiles are those of a distribution.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
	// Exact is false where they are within half a percent of their value.
	Exact bool `json:"exact"`
}

// Step is a gap and the share held at least so far behind.
type Step struct {
	BehindMs float64 `json:"behind_ms"`
	Held     uint64  `json:"held"`
}

// Point is a value and the share of all that are at most as large.
type Point struct {
	Value float64 `json:"value"`
	Share float64 `json:"share"`
}

// WhatIf is what a rule would have done, open loop.
type WhatIf struct {
	// Rule is its name.
	Rule string `json:"rule"`
	// Compared, Released and Pinned are as in Share.
	Compared uint64 `json:"compared"`
	Released uint64 `json:"released"`
	Pinned   uint64 `json:"pinned"`
	// Verdicts counts what it says.
	Verdicts map[string]uint64 `json:"verdicts"`
	// Changed is how many of the gate's verdicts it would have turned round.
	Changed uint64 `json:"changed"`
	// SparedMs is the sum of the gaps that it releases; RecomputedTokens what the other endpoint would have computed again.
	SparedMs         float64 `json:"gap_spared_ms"`
	RecomputedTokens float64 `json:"recomputed_tokens"`
}

// Part is a model's or a period's share.
type Part struct {
	// Model is a model's name; Begin and Hours are a period's begin and length.
	Model string    `json:"model,omitzero"`
	Begin time.Time `json:"begin,omitzero"`
	Hours float64   `json:"hours,omitzero"`
	Share
}

func (t *tally) share() Share {
	return Share{Compared: t.compared, Released: t.released, Pinned: t.pinned, GapMs: quantilesOf(&t.ms), GapTokens: quantilesOf(&t.tokens)}
}

func quantilesOf(s *quantile.Sketch) *Quantiles {
	if s.N() == 0 {
		return nil
	}
	_, most := s.Range()
	return &Quantiles{P50: s.Quantile(0.5), P90: s.Quantile(0.9), P99: s.Quantile(0.99), Max: most, Exact: s.Exactly()}
}

// cdf is a distribution in a hundred and a few steps, finer at its end.
func cdf(s *quantile.Sketch) []Point {
	if s.N() == 0 {
		return nil
	}
	var all []Point
	add := func(q float64) {
		v := s.Quantile(q)
		if n := len(all); n > 0 && all[n-1].Value == v {
			all[n-1].Share = q
			return
		}
		all = append(all, Point{Value: v, Share: q})
	}
	for i := range 100 {
		add(float64(i) / 100)
	}
	for _, q := range []float64{0.992, 0.994, 0.996, 0.998, 0.999, 1} {
		add(q)
	}
	return all
}

// Report is what the decisions so far say.
func (c *Collector) Report() *Report {
	r := &Report{Decisions: c.read, Skipped: maps.Clone(c.skipped), BehindMs: c.options.Behind, Threshold: c.options.Threshold}
	if c.read > 0 {
		r.From, r.To = time.Unix(0, c.from).UTC(), time.Unix(0, c.to).UTC()
	}
	for _, name := range c.order {
		r.Gates = append(r.Gates, c.gates[name].report(c.options.Rules))
	}
	r.Notes = c.notes(r)
	return r
}

func (s *section) report(rules []Rule) Gate {
	g := Gate{
		Name: s.name, Verdicts: maps.Clone(s.verdicts), Share: s.all.share(), Moved: s.moved, BarsMs: s.bars.values, PeaksPerS: s.peaks.values,
		Reconstructed: s.same, Checked: s.checked, Predicted: s.predicted, CDF: cdf(&s.all.ms), Ratios: cdf(&s.ratios), BarCDF: cdf(&s.fixedMs),
	}
	for i, n := range s.steps {
		g.Steps = append(g.Steps, Step{BehindMs: Steps[i], Held: n})
	}
	for i, u := range s.outcomes {
		g.WhatIf = append(g.WhatIf, WhatIf{
			Rule: rules[i].Name, Compared: u.compared, Released: u.released, Pinned: u.pinned, Verdicts: maps.Clone(u.verdicts),
			Changed: u.flips, SparedMs: u.spared, RecomputedTokens: u.recomputed,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		g.Models = append(g.Models, Part{Model: name, Share: s.models[name].share()})
	}
	for begin, t := range s.hours.All() {
		g.Periods = append(g.Periods, Part{Begin: begin, Hours: s.hours.Length().Hours(), Share: t.share()})
	}
	return g
}

// openLoop is what no log can say.
const openLoop = "The what-if is open loop: each rule sees the loads that the recorded decisions led to. Had it decided, the loads after its " +
	"first release would have been others, so trust the direction and the size, not the digits; 'sluice simulate' closes the loop."

func (c *Collector) notes(r *Report) []string {
	notes := []string{openLoop}
	exact := true
	for i := range r.Gates {
		g := &r.Gates[i]
		if g.GapMs != nil && !g.GapMs.Exact {
			exact = false
		}
		if g.Checked > 0 && g.Reconstructed*100 < g.Checked*99 {
			notes = append(notes, fmt.Sprintf("%s: in %d of %d decisions the recorded columns give another comparison than the gate made. "+
				"%sThe what-if rests on the columns.", g.Name, g.Checked-g.Reconstructed, g.Checked, c.gates[g.Name].doubts(r.Threshold)))
		}
		if g.Predicted {
			notes = append(notes, g.Name+": where its ttftSource was latencyPredictor, gaps in ms are between predicted times to the first token, and "+
				"static bars and breakEven are tried on these predictions. matchedTokens compares tokens in flight.")
		}
		if s := c.gates[g.Name]; s.priced && !s.predicted {
			notes = append(notes, g.Name+": gaps in ms are by the rates that had been learnt, where the gate broke even by them; its bar is another one each time. "+
				c.options.throughputWords())
		} else if s.bars.more || len(s.bars.values) > 1 {
			notes = append(notes, g.Name+": its bar changed within the log; the shares are over all of it.")
		}
		if s := c.gates[g.Name]; !s.priced && c.options.Peak == 0 && (s.peaks.more || len(s.peaks.values) > 1) {
			notes = append(notes, g.Name+": the throughput that makes ms of tokens changed within the log; gaps in ms are as recorded.")
		}
	}
	if len(c.configs.values) > 1 {
		notes = append(notes, "The log was written under more than one configuration.")
	}
	if !exact {
		notes = append(notes, fmt.Sprintf("Quantiles over more than %d decisions are within %v %% of their value; counts and shares are exact.",
			quantile.Exact, 100*quantile.Error))
	}
	if len(r.Gates) == 0 {
		notes = append(notes, "No decision could be looked at.")
	}
	return notes
}

// throughputWords say which throughput makes ms of tokens where a record's own does not.
func (o *Options) throughputWords() string {
	from := "the default, since the log holds no measured rates and no --peak is given"
	switch {
	case o.Peak > 0:
		from = "as --peak says"
	case o.Learnt > 0:
		from = "the median of the prefill rates that the log holds"
	}
	return fmt.Sprintf("The static bars are tried at %s tokens per second, %s.", whole(o.fallback()), from)
}

// doubts ask what may be wrong of a gate whose records do not say it.
func (s *section) doubts(threshold float64) string {
	if s.said {
		return "Are its producers those chosen (--match-producer, --load-producer)? "
	}
	words := fmt.Sprintf("Is its affinityThreshold %v (--threshold), and are its producers those chosen? ", threshold)
	if s.unsaid {
		words += "Where it breaks even, are its prices the defaults? "
	}
	return words
}

// WriteJSON writes a report.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.MarshalWrite(w, r, jsontext.WithIndent("  "), json.Deterministic(true))
}

// share is a part of a whole, NaN without one.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return math.NaN()
	}
	return float64(part) / float64(whole)
}
