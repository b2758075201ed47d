package telemetry

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
)

// histograms gathers the sums and counts of histograms, and what their buckets up to a bound hold, by "NAME LABELS".
func histograms(t *testing.T, reg *prometheus.Registry, upTo float64) (sums map[string]float64, counts, within map[string]uint64) {
	t.Helper()
	sums, counts, within = map[string]float64{}, map[string]uint64{}, map[string]uint64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			id := f.GetName()
			for _, l := range m.Label {
				id += " " + l.GetValue()
			}
			for _, b := range m.GetHistogram().GetBucket() {
				if b.GetUpperBound() <= upTo {
					within[id] = b.GetCumulativeCount()
				}
			}
			sums[id], counts[id] = m.GetHistogram().GetSampleSum(), m.GetHistogram().GetSampleCount()
		}
	}
	return sums, counts, within
}

func TestGapsThatAreNotKnownStayOut(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, 0)
	nan := math.NaN()
	m.gates.judged(&scheduling.GateReport{Filter: "f", Verdict: scheduling.GateMissingSignal, GapMs: nan, GapTokens: nan, BarMs: 18000, BarTokens: 1440})
	for _, v := range []*prometheus.HistogramVec{m.gates.gapSeconds, m.gates.gapTokens, m.gates.barSeconds, m.gates.barTokens, m.gates.gapOfBar} {
		if n := testutil.CollectAndCount(v); n != 0 {
			t.Errorf("%d histograms hold an unknown gap", n)
		}
	}
}

// A gap in favour of the sticky endpoint, which is negative, is in the lowest bucket, and no sum ever falls.
func TestGapsInFavourOfTheStickyEndpoint(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, 0)
	for range 3 {
		m.gates.judged(&scheduling.GateReport{Filter: "f", Verdict: scheduling.GateHeld, GapMs: -250, GapTokens: -4000, BarMs: 18000, BarTokens: 1440})
	}
	sums, counts, within := histograms(t, reg, 0)
	for _, id := range []string{"sluice_gate_gap_seconds f held", "sluice_gate_gap_tokens f held", "sluice_gate_gap_bar_ratio f"} {
		if counts[id] != 3 || within[id] != 3 || sums[id] != 0 {
			t.Errorf("%s: %d of %d gaps are up to 0, the sum is %v", id, within[id], counts[id], sums[id])
		}
	}
	if sums["sluice_gate_bar_seconds f"] != 54 || sums["sluice_gate_bar_tokens f"] != 4320 {
		t.Errorf("bars of %v s and %v tokens in all, want 54 and 4320", sums["sluice_gate_bar_seconds f"], sums["sluice_gate_bar_tokens f"])
	}
}

// The ratio is that of the bar that is nearest, and up to 1 exactly where the gate held.
func TestGapOverItsBar(t *testing.T) {
	nan := math.NaN()
	for name, tc := range map[string]struct {
		report scheduling.GateReport
		want   float64 // NaN: none
	}{
		"at the bar":      {scheduling.GateReport{GapMs: 18000, BarMs: 18000, GapTokens: 100, BarTokens: nan}, 1},
		"above":           {scheduling.GateReport{GapMs: 36000, BarMs: 18000, GapTokens: 100, BarTokens: nan}, 2},
		"of tokens":       {scheduling.GateReport{GapMs: 100, BarMs: 18000, GapTokens: 720, BarTokens: 1440}, 0.5},
		"of the ceiling":  {scheduling.GateReport{GapMs: 27000, BarMs: 18000, GapTokens: 720, BarTokens: 1440}, 1.5},
		"none applies":    {scheduling.GateReport{GapMs: 100, BarMs: 0, GapTokens: 100, BarTokens: nan}, nan},
		"no bar but gaps": {scheduling.GateReport{GapMs: nan, BarMs: 0, GapTokens: 100, BarTokens: 200}, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m := NewMetrics(reg, 0)
			tc.report.Filter = "f"
			m.gates.judged(&tc.report)
			sums, counts, within := histograms(t, reg, 1)
			const id = "sluice_gate_gap_bar_ratio f"
			if math.IsNaN(tc.want) {
				if counts[id] != 0 {
					t.Errorf("a ratio of %v without a bar", sums[id])
				}
				return
			}
			if counts[id] != 1 || sums[id] != tc.want || (within[id] == 1) != (tc.want <= 1) {
				t.Errorf("%d ratios of %v, %d up to 1; want %v", counts[id], sums[id], within[id], tc.want)
			}
		})
	}
}

// What a real gate reports: a gap that it opens at is above 1, one that it holds at is not.
func TestGapOverItsBarOfAGate(t *testing.T) {
	for gap, opens := range map[int64]bool{100: false, 160: false, 161: true, 4000: true} {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg, 0)
		c, f := decided(t, gap, "{explorationProbability: 0, penaltyMode: matchedTokens}")
		m.Picked(c, f, 0)
		_, counts, within := histograms(t, reg, 1)
		if counts["sluice_gate_gap_bar_ratio prefix-cache-affinity-filter"] != 1 {
			t.Fatalf("gap %d: no ratio", gap)
		}
		if above := within["sluice_gate_gap_bar_ratio prefix-cache-affinity-filter"] == 0; above != opens {
			t.Errorf("gap %d: above 1 is %v, want %v", gap, above, opens)
		}
		if verdict := c.Gates[0].Verdict.String(); strings.HasPrefix(verdict, "released") != opens {
			t.Errorf("gap %d: %s", gap, verdict)
		}
	}
}
