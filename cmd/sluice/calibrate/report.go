package calibrate

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Report is what was measured.
type Report struct {
	// Decisions is how many of a log were read, and Skipped counts those that told nothing, by the reason.
	Decisions uint64            `json:"decisions,omitzero"`
	Skipped   map[string]uint64 `json:"skipped,omitempty"`
	// Alpha and Kappa are what recomputing is priced with.
	Alpha float64 `json:"alpha"`
	Kappa float64 `json:"kappa"`
	// Deployments are those that were told apart.
	Deployments []Deployment `json:"deployments"`
	// Probe is what a live endpoint was asked; nil for a log.
	Probe *Probe `json:"probe,omitempty"`
	// Notes say what a reader should know before using the figures.
	Notes []string `json:"notes"`
}

// Deployment is what was measured of one.
type Deployment struct {
	// Name is what it was told apart by.
	Name string `json:"name"`
	// Samples is how many requests the rates rest on, Comparisons how many decisions the break-even.
	Samples     uint64 `json:"samples"`
	Comparisons uint64 `json:"comparisons"`
	// PeakPerS is the prefill throughput in tokens per second; nil where too little was seen.
	PeakPerS *Interval `json:"peak_prefill_throughput,omitempty"`
	// WaitPerS is how many tokens in flight ahead go by in a second; nil where there were none.
	WaitPerS *Interval `json:"wait_throughput,omitempty"`
	// BaseMs is the time to the first token of a prompt with nothing to compute and nothing ahead.
	BaseMs *Interval `json:"base_ms,omitempty"`
	// BreakEvenMs is the wait that equals computing again what the sticky endpoint has and the best other one has not, for the
	// median decision; BreakEvenTokens are the tokens in flight that make this wait; PricedMs counts with α and κ what
	// computing takes from others.
	BreakEvenMs     *Interval `json:"break_even_ms,omitempty"`
	BreakEvenTokens float64   `json:"break_even_tokens,omitzero"`
	PricedMs        *Interval `json:"priced_break_even_ms,omitempty"`
	// P10Ms and P90Ms are the break-even of the decisions at a tenth and at nine tenths.
	P10Ms float64 `json:"break_even_p10_ms,omitzero"`
	P90Ms float64 `json:"break_even_p90_ms,omitzero"`
	// Periods are the median break-even over time.
	Periods []Period `json:"periods,omitempty"`
	// Changes are what the measurements mean for a configuration.
	Changes []Change `json:"changes,omitempty"`
	// Learning are the configuration's gates for which nothing need be set: they break even by learnt rates.
	Learning []string `json:"learning,omitempty"`
}

// Period is the break-even of a while.
type Period struct {
	Begin       time.Time `json:"begin"`
	Hours       float64   `json:"hours"`
	Comparisons uint64    `json:"comparisons"`
	BreakEvenMs float64   `json:"break_even_ms"`
}

// Report is what the decisions so far say.
func (c *Collector) Report() *Report {
	r := &Report{Decisions: c.read, Skipped: maps.Clone(c.skipped), Alpha: c.options.Alpha, Kappa: c.options.Kappa}
	for _, name := range slices.Sorted(maps.Keys(c.deployments)) {
		r.Deployments = append(r.Deployments, c.deployments[name].measured(name, &c.options))
	}
	r.notes()
	return r
}

// measured fits the rates and prices the savings with them.
func (k *deployment) measured(name string, o *Options) Deployment {
	d := Deployment{Name: name, Samples: k.samples.n, Comparisons: k.savings.n}
	samples := k.samples.kept
	if len(samples) < leastSamples {
		return d
	}
	slices.SortFunc(samples, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
	m := fitModel(samples, nil, rounds)
	if m.terms[1] <= 0 {
		return d
	}
	saved := k.savings.kept
	priced := func(s saving) float64 { return s.tokens * (1 + o.Alpha + o.Kappa*s.decoding) }
	tokens, cost := medianOf(saved, func(s saving) float64 { return s.tokens }), medianOf(saved, priced)
	var base, own, wait, even, evenPriced []float64
	resampled(samples, m, func(m model, rng *rand.Rand) {
		if m.terms[1] <= 0 {
			return
		}
		base, own = append(base, m.terms[0]), append(own, 1000/m.terms[1])
		if m.terms[2] > 0 {
			wait = append(wait, 1000/m.terms[2])
		}
		if len(saved) > 0 {
			again := drawnAgain(saved, rng)
			even = append(even, m.terms[1]*medianOf(again, func(s saving) float64 { return s.tokens }))
			evenPriced = append(evenPriced, m.terms[1]*medianOf(again, priced))
		}
	})
	d.BaseMs, d.PeakPerS = ptr(intervalOf(m.terms[0], base)), ptr(intervalOf(1000/m.terms[1], own))
	if !m.tied && m.terms[2] > 0 {
		d.WaitPerS = ptr(intervalOf(1000/m.terms[2], wait))
	}
	if len(saved) == 0 {
		return d
	}
	d.BreakEvenMs, d.PricedMs = ptr(intervalOf(m.terms[1]*tokens, even)), ptr(intervalOf(m.terms[1]*cost, evenPriced))
	if m.terms[2] > 0 {
		d.BreakEvenTokens = m.terms[1] * tokens / m.terms[2]
	}
	all := make([]float64, len(saved))
	for i, s := range saved {
		all[i] = s.tokens * m.terms[1]
	}
	slices.Sort(all)
	d.P10Ms, d.P90Ms = all[len(all)/10], all[len(all)*9/10]
	for begin, sketch := range k.hours.All() {
		d.Periods = append(d.Periods, Period{
			Begin: begin, Hours: k.hours.Length().Hours(), Comparisons: sketch.N(), BreakEvenMs: m.terms[1] * sketch.Quantile(0.5),
		})
	}
	return d
}

func ptr[T any](v T) *T { return &v }

func medianOf(all []saving, of func(saving) float64) float64 {
	values := make([]float64, len(all))
	for i, s := range all {
		values[i] = of(s)
	}
	return median(values)
}

// mostDrawn bounds what is drawn for an interval of a median.
const mostDrawn = 2000

func drawnAgain(all []saving, rng *rand.Rand) []saving {
	drawn := make([]saving, min(len(all), mostDrawn))
	for i := range drawn {
		drawn[i] = all[rng.IntN(len(all))]
	}
	return drawn
}

// moved is by what factor the break-even moved between periods that have enough decisions to tell; 0 where there are fewer
// than two of them.
func (d *Deployment) moved() float64 {
	low, high, n := math.Inf(1), 0.0, 0
	for _, p := range d.Periods {
		if p.Comparisons >= 20 && p.BreakEvenMs > 0 {
			low, high, n = min(low, p.BreakEvenMs), max(high, p.BreakEvenMs), n+1
		}
	}
	if n < 2 {
		return 0
	}
	return high / low
}

// wideInterval is from where on an interval is said to be too wide to use.
const wideInterval = 0.25

func (r *Report) notes() {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	measured := 0
	for i := range r.Deployments {
		d := &r.Deployments[i]
		name := shown(d.Name)
		switch {
		case d.PeakPerS == nil:
			note("%s: %s requests are too few, or do not tell tokens from time: %d streamed answers are needed at least.", name, display.Grouped(d.Samples), leastSamples)
			continue
		case d.PeakPerS.Wide() > wideInterval:
			note("%s: the throughput is uncertain by %.0f %%: its prompts are too much alike, too few, or the engines of it differ (--by endpoint).",
				name, 100*d.PeakPerS.Wide())
		}
		measured++
		if d.WaitPerS == nil {
			note("%s: hardly any request had others ahead: a token ahead is taken to cost what an own one does.", name)
		}
		if d.BreakEvenMs == nil {
			note("%s: no decision had a sticky endpoint and another one: there is no break-even.", name)
		}
		if f := d.moved(); f >= 2 {
			note("%s: the break-even moved by a factor of %.1f over time. No fixed bar fits that; penaltyMode breakEven follows it.", name, f)
		}
	}
	if measured > 1 {
		note("A gate has one throughput for its whole profile. Where deployments share one, give it that of the slowest, or a profile each.")
	}
	if r.Probe == nil && len(r.Deployments) > 0 {
		note("From a log, the throughput is what requests met under the load that there was, decodes included; of an idle engine it is higher.")
	}
}

// shown is a name that may be empty.
func shown(name string) string {
	if name == "" {
		return "(no name)"
	}
	return name
}

// Configure works out what the measurements mean for a configuration; see [Change].
func (r *Report) Configure(effective []byte) error {
	for i := range r.Deployments {
		changes, learning, err := r.Deployments[i].changes(effective)
		if err != nil {
			return err
		}
		r.Deployments[i].Changes, r.Deployments[i].Learning = changes, learning
	}
	return nil
}

// WriteJSON writes a report.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.MarshalWrite(w, r, jsontext.WithIndent("  "), json.Deterministic(true))
}
