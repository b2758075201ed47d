package gatereport

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/quantile"
)

// The bars and the distance that are looked at where a log holds no gap above 0.
var usualBars = []float64{1000, 2000, 5000, 10_000, 18_000}

const usualBehind = 5000

// Suggestion is what a log's own figures make worth looking at.
type Suggestion struct {
	// Peak is the throughput, in tokens per second, that gates which break even had learnt; 0 where none did.
	Peak float64
	// BehindMs is the gap, in ms, that three of four decisions with a gap stay below.
	BehindMs float64
	// BarsMs are static bars around the gaps, in ms.
	BarsMs []float64
}

// Suggest reads decisions and says what to try on them. The bars are quantiles of the gaps above 0, in ms at the throughput
// with which they will be tried; with half of their middle and twice their end, and the bars that were in force.
func Suggest(ctx context.Context, decisions iter.Seq2[*decisionv1.Decision, error], o Options) (Suggestion, error) {
	o.Rules = nil
	o.Behind = usualBehind
	c, err := New(o)
	if err != nil {
		return Suggestion{}, err
	}
	if err := c.addAll(ctx, decisions); err != nil {
		return Suggestion{}, err
	}
	s := Suggestion{BehindMs: usualBehind, BarsMs: usualBars}
	if c.learnt.N() > 0 {
		s.Peak = digits(c.learnt.Quantile(0.5), 3)
	}
	gaps, scale := &c.fixed, 1.0
	if c.priced.N() > gaps.N() {
		gaps = &c.priced
		if scale = 1000 / c.options.fallback(); s.Peak > 0 && o.Peak == 0 {
			scale = 1000 / s.Peak
		}
	}
	if gaps.N() == 0 {
		return s, nil
	}
	at := func(q, times float64) float64 {
		return min(max(digits(gaps.Quantile(q)*scale*times, 2), 0.1), 24*60*60*1000)
	}
	s.BehindMs = at(0.75, 1)
	s.BarsMs = []float64{at(0.5, 0.5), at(0.5, 1), at(0.9, 1), at(0.99, 1), at(0.99, 2)}
	for _, name := range c.order {
		for _, bar := range c.gates[name].bars.values[:min(2, len(c.gates[name].bars.values))] {
			if bar > 0 {
				s.BarsMs = append(s.BarsMs, bar)
			}
		}
	}
	slices.Sort(s.BarsMs)
	s.BarsMs = slices.Compact(s.BarsMs)
	return s, nil
}

// digits rounds to so many digits that count.
func digits(v float64, n int) float64 {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', n-1, 64), 64)
	if err != nil {
		return v
	}
	return rounded
}

// survey keeps what Suggest rests on.
type survey struct {
	learnt        quantile.Sketch // tokens per second, of the endpoints that were picked
	fixed, priced quantile.Sketch // gaps above 0: in ms, and in tokens where ms are by learnt rates
}

func (u *survey) add(j *judged, even bool) {
	v := j.view
	if ms := v.rates[v.picked()].PrefillMsPerToken; v.measured[v.picked()] && ms > 0 {
		if peak := 1000 / ms; peak > 0 && !math.IsInf(peak, 1) {
			u.learnt.Add(peak)
		}
	}
	switch tokens := j.reference.GapTokens; {
	case !j.compared():
	case j.predicted:
		if ms := j.reference.GapMs; ms > 0 {
			u.fixed.Add(ms)
		}
	case !(tokens > 0):
	case even:
		u.priced.Add(tokens)
	default:
		u.fixed.Add(tokens * 1000 / j.peak)
	}
}
