package gatereport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

func options() gatereport.Options {
	o := gatereport.Options{Threshold: 0.8, Behind: 5000}
	for _, bar := range []float64{1000, 5000, 18000} {
		o.Rules = append(o.Rules, gatereport.StaticRule(bar))
	}
	o.Rules = append(o.Rules, gatereport.MatchedRule(1), gatereport.MatchedRule(3), gatereport.BreakEvenRule())
	return o
}

func reportOn(t *testing.T, all []*decisionv1.Decision, o gatereport.Options) *gatereport.Report {
	t.Helper()
	r, err := gatereport.Run(t.Context(), sequence(all), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What was measured comes out of the log: quantiles and shares exactly.
func TestMeasuredFiguresAreRecovered(t *testing.T) {
	r := reportOn(t, fixtureLog(t), options())
	if len(r.Gates) != 1 || r.Decisions != 1002 || len(r.Skipped) != 0 {
		t.Fatalf("%d gates in %d decisions, skipped %v", len(r.Gates), r.Decisions, r.Skipped)
	}
	g := r.Gates[0]
	if diff := cmp.Diff(map[string]uint64{"held": 698, "released_static": 4, "no_sticky": 300}, g.Verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	want := gatereport.Share{
		Compared: 702, Released: 4, Pinned: 121,
		GapMs:     &gatereport.Quantiles{P50: 40, P90: 6459, P99: 15148, Max: slices.Max(floats(fixtureGaps())), Exact: true},
		GapTokens: &gatereport.Quantiles{P50: 640, P90: 103344, P99: 242368, Max: 16 * slices.Max(floats(fixtureGaps())), Exact: true},
	}
	if diff := cmp.Diff(want, g.Share); diff != "" {
		t.Errorf("share (-want +got):\n%s", diff)
	}
	if pinned := math.Round(1000*float64(g.Pinned)/float64(g.Compared)) / 10; pinned != 17.2 {
		t.Errorf("%v %% are pinned", pinned)
	}
	if g.Reconstructed != 702 || g.Checked != 702 {
		t.Errorf("%d of %d comparisons come out of the columns", g.Reconstructed, g.Checked)
	}
	if diff := cmp.Diff([]float64{fixturePeak}, g.PeaksPerS); diff != "" {
		t.Errorf("throughput (-want +got):\n%s", diff)
	}
	for _, step := range g.Steps {
		n := uint64(0)
		for _, gap := range fixtureGaps() {
			if float64(gap) >= step.BehindMs && gap <= 18000 {
				n++
			}
		}
		if step.Held != n {
			t.Errorf("%d are held %v ms or more behind, want %d", step.Held, step.BehindMs, n)
		}
	}
}

func floats(all []int64) (f []float64) {
	for _, v := range all {
		f = append(f, float64(v))
	}
	return f
}

// The rules say what their definition says, computed here from the gaps; and the rule that was in force changes nothing.
func TestWhatIf(t *testing.T) {
	g := reportOn(t, fixtureLog(t), options()).Gates[0]
	release := []func(gapMs int64, matched int) bool{
		func(gap int64, _ int) bool { return gap > 1000 },
		func(gap int64, _ int) bool { return gap > 5000 },
		func(gap int64, _ int) bool { return gap > 18000 },
		func(gap int64, matched int) bool { return gap*fixturePeak/1000 > int64(matched) },
		func(gap int64, matched int) bool { return gap*fixturePeak/1000 > 3*int64(matched) },
		func(gap int64, matched int) bool { return gap*fixturePeak/1000 > 2*int64(matched) }, // α is 1 where nothing was learnt
	}
	if len(g.WhatIf) != len(release) {
		t.Fatalf("%d rules, want %d", len(g.WhatIf), len(release))
	}
	for i, u := range g.WhatIf {
		want := gatereport.WhatIf{Rule: u.Rule, Compared: 702, Verdicts: u.Verdicts}
		for j, gap := range fixtureGaps() {
			released := release[i](gap, matchedOf(j))
			switch {
			case released:
				want.Released++
				want.SparedMs += float64(gap)
				want.RecomputedTokens += float64(matchedOf(j))
			case gap >= 5000:
				want.Pinned++
			}
			if released != (gap > 18000) {
				want.Changed++
			}
		}
		if diff := cmp.Diff(want, u, cmpopts.EquateApprox(1e-9, 0)); diff != "" || want.Released == 0 {
			t.Errorf("%s (-want +got):\n%s", u.Rule, diff)
		}
	}
	// Most of those that the bar of 18 s keeps far behind are let go where waiting costs more than computing again.
	if u := g.WhatIf[5]; u.Released != 175 || u.Pinned != 17 {
		t.Errorf("breakEven releases %d and leaves %d far behind, want 175 and 17", u.Released, u.Pinned)
	}
	if in := g.WhatIf[2]; in.Changed != 0 || in.Released != g.Released || in.Pinned != g.Pinned {
		t.Errorf("the bar that was in force: %+v, the log says %d released and %d pinned", in, g.Released, g.Pinned)
	}
}

// Models and hours add up to the whole.
func TestParts(t *testing.T) {
	g := reportOn(t, fixtureLog(t), options()).Gates[0]
	for name, parts := range map[string][]gatereport.Part{"models": g.Models, "hours": g.Periods} {
		var compared, released, pinned uint64
		for _, p := range parts {
			compared, released, pinned = compared+p.Compared, released+p.Released, pinned+p.Pinned
		}
		if compared != 702 || released != 4 || pinned != 121 {
			t.Errorf("%s add up to %d, %d, %d", name, compared, released, pinned)
		}
	}
	if len(g.Models) != 2 || g.Models[0].Model != "large" || g.Models[0].Compared != 351 {
		t.Errorf("models %+v", g.Models)
	}
	if len(g.Periods) != 18 || !g.Periods[0].Begin.Equal(fixtureBegin.Truncate(time.Hour)) || g.Periods[0].Hours != 1 {
		t.Errorf("%d periods from %v, %v h each", len(g.Periods), g.Periods[0].Begin, g.Periods[0].Hours)
	}
}

// Beyond the numbers that are kept, quantiles are within half a percent and counts still exact.
func TestLargeLogsAreWithinTheirError(t *testing.T) {
	all := fixtureLog(t)
	var many []*decisionv1.Decision
	for range 7 {
		many = append(many, all...)
	}
	r := reportOn(t, many, gatereport.Options{Threshold: 0.8, Behind: 5000})
	g := r.Gates[0]
	if g.Compared != 7*702 || g.Released != 28 || g.Pinned != 7*121 || g.GapMs.Exact {
		t.Errorf("%+v", g.Share)
	}
	for _, q := range [][2]float64{{g.GapMs.P50, 40}, {g.GapMs.P90, 6459}, {g.GapMs.P99, 15148}} {
		if math.Abs(q[0]-q[1]) > 0.005*q[1] {
			t.Errorf("%v, want %v within half a percent", q[0], q[1])
		}
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "within 0.5 %") {
		t.Errorf("the error is not stated: %q", r.Notes)
	}
}

// Where no gate ran, the columns say what one would have compared, and the pick who was pinned.
func TestWithoutAGate(t *testing.T) {
	f := newFixture(t, "{explorationProbability: 0}", gate.TypeName, schedtest.First.Type)
	var all []*decisionv1.Decision
	for _, gapMs := range []int64{-500, 100, 5000, 5001, 30000} {
		d := f.decide("m", gapMs*16, 1440) // to endpoint 0, which holds the prompt
		d.Gates, d.FilterSteps = nil, nil
		for _, c := range d.GetCandidates() {
			c.Exclusion, c.FilteredBy = decisionv1.Exclusion_EXCLUSION_UNSPECIFIED, ""
		}
		all = append(all, d)
	}
	o := options()
	o.Peak = 16000
	g := reportOn(t, all, o).Gates[0]
	if g.Name != gatereport.NoGate || g.Compared != 5 || g.Pinned != 3 || g.GapMs.P50 != 5000 || g.WhatIf[2].Released != 1 {
		t.Errorf("%+v", g)
	}
}

// A threshold that is not the gate's shows where records do not say the gate's; where they do, it takes no part.
func TestWrongThresholdIsSaid(t *testing.T) {
	o := options()
	o.Threshold = 0.95
	all := fixtureLog(t)
	if g := reportOn(t, all, o).Gates[0]; g.Reconstructed != 702 || g.WhatIf[0].Compared != 702 {
		t.Errorf("with settings: %d of %d, what-if over %d", g.Reconstructed, g.Checked, g.WhatIf[0].Compared)
	}
	r := reportOn(t, withoutSettings(all), o)
	if g := r.Gates[0]; g.Reconstructed != 0 || g.Compared != 702 || g.WhatIf[0].Compared != 0 {
		t.Errorf("%d of %d, what-if over %d", g.Reconstructed, g.Checked, g.WhatIf[0].Compared)
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "--threshold") {
		t.Errorf("notes %q", r.Notes)
	}
}

// What has nothing for a gate in it is counted, by its reason.
func TestSkipped(t *testing.T) {
	change := func(f func(*decisionv1.Decision)) *decisionv1.Decision {
		d := fixtureLog(t)[1]
		f(d)
		return d
	}
	all := []*decisionv1.Decision{
		change(func(d *decisionv1.Decision) { d.Picks = nil }),
		change(func(d *decisionv1.Decision) { d.Columns = nil }),
		change(func(d *decisionv1.Decision) { d.Picks[0] = 77 }),
		change(func(d *decisionv1.Decision) { d.Candidates[1].Ordinal = 0 }),
		change(func(d *decisionv1.Decision) { d.Candidates[1].Ordinal = 1 << 31 }),
		change(func(d *decisionv1.Decision) {
			d.Columns = append(d.Columns, &decisionv1.Column{DataType: "InFlightLoad", Producer: "another"})
		}),
		change(func(d *decisionv1.Decision) {}),
	}
	r := reportOn(t, all, options())
	want := map[string]uint64{
		gatereport.NoPick: 1, gatereport.NoMatch: 1, gatereport.Inconsistent: 3, gatereport.ManyLoads: 1,
	}
	if diff := cmp.Diff(want, r.Skipped); diff != "" || r.Gates[0].Compared != 1 {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// A filter in front of the gate has its say before.
func TestCandidatesBeforeTheGate(t *testing.T) {
	f := newFixture(t, "{explorationProbability: 0, peakPrefillThroughput: 16000}", gate.TypeName, schedtest.First.Type)
	d := f.decide("m", 16000, 1440)
	d.FilterSteps = append([]*decisionv1.FilterStep{{Filter: "zone", Left: 2}}, d.GetFilterSteps()...)
	d.Candidates[1].Exclusion, d.Candidates[1].FilteredBy = decisionv1.Exclusion_EXCLUSION_FILTER, "zone"
	g := reportOn(t, []*decisionv1.Decision{d}, options()).Gates[0]
	// Without endpoint 1 the comparison is with endpoint 2, which is far busier.
	if g.Reconstructed != 0 || g.WhatIf[0].Compared != 1 || g.WhatIf[0].Released != 0 || g.WhatIf[3].Released != 0 {
		t.Errorf("%+v", g.WhatIf)
	}
}

// Many models, many hours and garbage in times leave memory bounded.
func TestBounds(t *testing.T) {
	f := newFixture(t, "{explorationProbability: 0, peakPrefillThroughput: 16000}", gate.TypeName, schedtest.First.Type)
	var all []*decisionv1.Decision
	for i := range 400 {
		d := f.decide(fmt.Sprint("model ", i), 16, 1440)
		d.TimeUnixNano = int64(i) * int64(5*time.Hour)
		all = append(all, d)
	}
	all[7].TimeUnixNano, all[8].TimeUnixNano = math.MinInt64, math.MaxInt64
	g := reportOn(t, all, options()).Gates[0]
	n := uint64(0)
	for _, p := range g.Periods {
		n += p.Compared
	}
	if len(g.Models) > 33 || len(g.Periods) > 96 || n != 400 {
		t.Errorf("%d models, %d periods with %d", len(g.Models), len(g.Periods), n)
	}
}

func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := gatereport.Run(ctx, sequence(fixtureLog(t)), options()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	bad := func(yield func(*decisionv1.Decision, error) bool) {
		_ = yield(nil, &decisionlog.Skip{File: "a", Reason: decisionlog.SkippedTail})
	}
	r, err := gatereport.Run(t.Context(), bad, options())
	if err != nil || r.Skipped[decisionlog.SkippedTail] != 1 {
		t.Errorf("%v, %v", r, err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []gatereport.Options{
		{Threshold: 0, Behind: 1}, {Threshold: math.NaN(), Behind: 1}, {Threshold: 0.8}, {Threshold: 0.8, Behind: 1, Peak: -1},
		{Threshold: 0.8, Behind: 1, Rules: []gatereport.Rule{gatereport.StaticRule(-1)}},
	} {
		if _, err := gatereport.New(o); err == nil {
			t.Errorf("%+v is no error", o)
		}
	}
}

// All three forms say the same.
func TestForms(t *testing.T) {
	r := reportOn(t, fixtureLog(t), options())
	var text, page, figures bytes.Buffer
	if err := errors.Join(r.WriteText(&text, gatereport.Paper{Cells: 100}), r.WriteHTML(&page), r.WriteJSON(&figures)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"p50 40, p90 6,459, p99 15,148", "4 of 702, 0.6 %", "121 of 702, 17.2 %", "static 18 s", "matchedTokens ×3", "open loop"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	for _, want := range []string{"<svg", "bar 18 s", "17.2 %", "matchedTokens ×3", "open loop", "by time"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	var back struct {
		Gates []struct {
			Compared uint64           `json:"compared"`
			Gap      map[string]any   `json:"gap_ms"`
			CDF      []map[string]any `json:"gap_ms_cdf"`
			WhatIf   []map[string]any `json:"what_if"`
		} `json:"gates"`
	}
	if err := json.Unmarshal(figures.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if g := back.Gates[0]; g.Compared != 702 || g.Gap["p90"] != 6459.0 || len(g.CDF) < 50 || len(g.WhatIf) != 6 {
		t.Errorf("%+v", back)
	}
}

// breakEven is decided by the gate's code too: by the throughput where nothing has been learnt, by what has been where it was
// recorded.
func TestBreakEven(t *testing.T) {
	f := newFixture(t, "{explorationProbability: 0, peakPrefillThroughput: 16000}", gate.TypeName, schedtest.First.Type)
	o := options()
	o.Rules = []gatereport.Rule{gatereport.BreakEvenRule()}
	// The sticky endpoint saves 1440 tokens; with the default α of 1 they are worth 2880 tokens of wait.
	for gap, want := range map[int64]uint64{1441: 0, 2879: 0, 2882: 1} {
		if g := reportOn(t, []*decisionv1.Decision{f.decide("m", gap, 1440)}, o).Gates[0]; g.WhatIf[0].Released != want || g.WhatIf[0].Compared != 1 {
			t.Errorf("a gap of %d tokens: %+v", gap, g.WhatIf[0])
		}
	}
	d := f.decide("m", 1500, 1440)
	d.PoolPressures = []*decisionv1.PoolPressure{{}} // nothing else to do: α is 0
	if g := reportOn(t, []*decisionv1.Decision{d}, o).Gates[0]; g.WhatIf[0].Released != 1 {
		t.Errorf("an idle pool: %+v", g.WhatIf[0])
	}
	d.Candidates[1].LearntRates = []*decisionv1.LearntRates{{PrefillMsPerToken: 1, WaitMsPerToken: 1}} // the other one is slow
	if g := reportOn(t, []*decisionv1.Decision{d}, o).Gates[0]; g.WhatIf[0].Released != 0 {
		t.Errorf("a slow other one: %+v", g.WhatIf[0])
	}
}

// pricedLog are decisions of a gate in front of three engines with learnt rates, of which the sticky ones rank otherwise by cost than by tokens
// in flight.
func pricedLog(t *testing.T, parameters string, n int) []*decisionv1.Decision {
	t.Helper()
	f := newFixture(t, parameters, gate.TypeName, schedtest.First.Type)
	f.table.Pressure = &scheduling.PoolPressure{Utilisation: 0.3, DecodeStall: 1, CompanyMs: 40}
	rng := rand.New(rand.NewPCG(3, 4))
	var all []*decisionv1.Decision
	for range n {
		for i, matched := range []int{90, 85, 0} {
			ms := 0.05 + rng.Float64()
			m := scheduling.NewPrefixCacheMatchInfo(matched, 100, 16)
			f.table.Endpoints[i] = schedtest.Endpoint{
				Match: &m, Load: &scheduling.InFlightLoad{Tokens: rng.Int64N(4000), Requests: 3, Decoding: rng.Int64N(9)},
				Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(1600 - 16*matched)),
				Rates:    &scheduling.LearntRates{PrefillMsPerToken: ms, WaitMsPerToken: ms / 2, Confidence: 1},
			}
		}
		all = append(all, f.recorded("m"))
	}
	return all
}

// What a gate in any mode compared comes out of the columns by that mode's own rules, and what does not is said.
func TestEachModeIsCheckedByItsOwnRules(t *testing.T) {
	for mode, priced := range map[string]bool{"breakEven": true, "static": false, "matchedTokens": false} {
		all := pricedLog(t, "{explorationProbability: 0, penaltyMode: "+mode+", peakPrefillThroughput: 4000}", 200)
		r := reportOn(t, all, options())
		g := r.Gates[0]
		if g.Checked < 150 || g.Reconstructed != g.Checked || strings.Contains(strings.Join(r.Notes, "\n"), "another comparison") {
			t.Errorf("%s: %d of %d, notes %q", mode, g.Reconstructed, g.Checked, r.Notes)
		}
		if said := strings.Contains(strings.Join(r.Notes, "\n"), "the rates that had been learnt"); said != priced || (len(g.PeaksPerS) == 0) != priced {
			t.Errorf("%s: throughputs %v, notes %q", mode, g.PeaksPerS, r.Notes)
		}
		if own := map[string]int{"breakEven": 5}[mode]; own > 0 && g.WhatIf[own].Changed != 0 {
			t.Errorf("%s would turn %d of its own verdicts round", mode, g.WhatIf[own].Changed)
		}
		for _, d := range all {
			d.Candidates[0].InFlightLoads[0].Tokens += 7
		}
		if r := reportOn(t, all, options()); !strings.Contains(strings.Join(r.Notes, "\n"), "another comparison") {
			t.Errorf("%s: other loads are not told: %d of %d", mode, r.Gates[0].Reconstructed, r.Gates[0].Checked)
		}
	}
}

// The static bars of the plot and of the table are of the same milliseconds.
func TestPlotAndTableAgree(t *testing.T) {
	o := options()
	o.Rules = []gatereport.Rule{gatereport.StaticRule(50)}
	g := reportOn(t, pricedLog(t, "{explorationProbability: 0, penaltyMode: breakEven}", 400), o).Gates[0]
	below := 0.0
	for _, p := range g.BarCDF {
		if p.Value <= 50 {
			below = p.Share
		}
	}
	if released := float64(g.WhatIf[0].Released) / float64(g.Compared); released < 0.05 || math.Abs(1-below-released) > 0.02 {
		t.Errorf("the table releases %v, the plot %v", released, 1-below)
	}
}

// withoutSettings are records as versions wrote them that did not say the gate's settings.
func withoutSettings(all []*decisionv1.Decision) []*decisionv1.Decision {
	for _, d := range all {
		for _, g := range d.GetGates() {
			g.AffinityThreshold, g.Alpha, g.Kappa, g.DecodePrice = nil, nil, nil, nil
		}
	}
	return all
}
