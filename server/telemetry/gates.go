package telemetry

import (
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
)

// What registers a metric.
type (
	newCounter   func(name, help string, labels ...string) *prometheus.CounterVec
	newHistogram func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec
)

// gates counts what the load gates decided, and keeps what they decided by.
type gates struct {
	verdicts, released    *prometheus.CounterVec
	gapSeconds, gapTokens *prometheus.HistogramVec
	barSeconds, barTokens *prometheus.HistogramVec
	gapOfBar              *prometheus.HistogramVec
}

// gapOfBarBuckets are dense around 1, where a gate opens: what is in a bucket up to 1 was held by that test.
var gapOfBarBuckets = []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8}

func newGates(counter newCounter, histogram newHistogram) gates {
	seconds := prometheus.ExponentialBuckets(0.01, 2, 14) // 10 ms to 82 s
	tokens := prometheus.ExponentialBuckets(64, 2, 14)    // to 524288
	fromZero := func(buckets []float64) []float64 { return slices.Concat([]float64{0}, buckets) }
	return gates{
		verdicts: counter("sluice_gate_verdicts_total",
			"Verdicts of the load gates.", "filter", "verdict"),
		released: counter("sluice_gate_released_picks_total",
			"Picks after a gate released its pin, by whether the pick then left the sticky endpoints.", "filter", "moved"),
		gapSeconds: histogram("sluice_gate_gap_seconds",
			"By how much the best sticky endpoint's TTFT exceeded the best other one's, as the gates saw it; 0 where it did not.",
			fromZero(seconds), "filter", "verdict"),
		gapTokens: histogram("sluice_gate_gap_tokens",
			"By how many tokens in flight the best sticky endpoint exceeded the best other one, as the gates saw it; 0 where it did not.",
			fromZero(tokens), "filter", "verdict"),
		barSeconds: histogram("sluice_gate_bar_seconds",
			"The TTFT gap at which the gates would open, where there was such a bar.", seconds, "filter"),
		barTokens: histogram("sluice_gate_bar_tokens",
			"The gap in tokens in flight at which the gates would open, where there was such a bar: where leaving a warm engine breaks even.",
			tokens, "filter"),
		gapOfBar: histogram("sluice_gate_gap_bar_ratio",
			"The gap over the bar that it was held against, the larger where there are two: above 1 the gate opened. 0 where there was no gap.",
			gapOfBarBuckets, "filter"),
	}
}

// judged counts a verdict. A histogram's sum must not fall, so a gap in favour of the sticky endpoint counts as none: it is
// in the bucket up to 0.
func (m *gates) judged(g *scheduling.GateReport) {
	verdict := g.Verdict.String()
	m.verdicts.WithLabelValues(g.Filter, verdict).Inc()
	ratio := math.NaN()
	look := func(gap, bar, unit float64, gaps, bars *prometheus.HistogramVec) {
		if math.IsNaN(gap) {
			return
		}
		gap = max(0, gap)
		gaps.WithLabelValues(g.Filter, verdict).Observe(gap / unit)
		if !(bar > 0) { // NaN, or a bar that never applies
			return
		}
		bars.WithLabelValues(g.Filter).Observe(bar / unit)
		if of := gap / bar; math.IsNaN(ratio) || of > ratio {
			ratio = of
		}
	}
	look(g.GapMs, g.BarMs, 1000, m.gapSeconds, m.barSeconds)
	look(g.GapTokens, g.BarTokens, 1, m.gapTokens, m.barTokens)
	if !math.IsNaN(ratio) {
		m.gapOfBar.WithLabelValues(g.Filter).Observe(ratio)
	}
}

// picked compares what a gate allowed with what the scorers then did: a gate that opens and moves nobody is one whose
// profile undoes it.
func (m *gates) picked(c *scheduling.Cycle, f *scheduling.Flight) {
	for i := range c.Gates {
		switch c.Gates[i].Verdict {
		case scheduling.GateReleasedStatic, scheduling.GateReleasedMatched, scheduling.GateReleasedCeiling, scheduling.GateReleasedBreakEven:
			if filter, ok := f.Scheduler().Plugin(c.Gates[i].Filter).(*gate.Filter); ok {
				moved := !filter.Sticky(c, f.Endpoint.Ordinal)
				m.released.WithLabelValues(c.Gates[i].Filter, strconv.FormatBool(moved)).Inc()
			}
		}
	}
}
