package gate_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

const predictor = "ttftSource: latencyPredictor\n"

// predicted gives an endpoint a predicted time to the first token, in ms.
func predicted(e schedtest.Endpoint, ms float64) schedtest.Endpoint {
	e.Latency = &scheduling.LatencyPrediction{TTFTMs: ms}
	return e
}

// toTheEnd makes of a prediction one of the time to the end of the response.
func toTheEnd(e schedtest.Endpoint) schedtest.Endpoint {
	whole := *e.Latency
	whole.WholeResponse = true
	e.Latency = &whole
	return e
}

// TestC32_PredictorMissingSignal: with predictions as the source, what is not predicted takes no part, whatever is in flight.
func TestC32_PredictorMissingSignal(t *testing.T) {
	const limit = predictor + "maxTTFTPenaltyMs: 100"
	s := func(ms float64) schedtest.Endpoint { return predicted(endpoint(90, 100, 0), ms) }
	n := func(ms float64) schedtest.Endpoint { return predicted(endpoint(0, 100, 1<<40), ms) } // as if the load counted
	silent := func(e schedtest.Endpoint) schedtest.Endpoint { e.Latency = nil; return e }
	tests := map[string]struct {
		endpoints []schedtest.Endpoint
		left      []int
		verdict   scheduling.GateVerdict
		gap       float64 // ms; NaN: nothing compared
	}{
		"both known, S=500 N=20: open": {[]schedtest.Endpoint{s(500), n(20)}, []int{0, 1}, scheduling.GateReleasedStatic, 480},
		"both known, S=90 N=20: hold":  {[]schedtest.Endpoint{s(90), n(20)}, []int{0}, scheduling.GateHeld, 70},
		"exactly at the limit: hold":   {[]schedtest.Endpoint{s(120), n(20)}, []int{0}, scheduling.GateHeld, 100},
		"above the limit: open":        {[]schedtest.Endpoint{s(120.5), n(20)}, []int{0, 1}, scheduling.GateReleasedStatic, 100.5},
		"S unknown: hold":              {[]schedtest.Endpoint{silent(s(0)), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N unknown: hold":              {[]schedtest.Endpoint{s(500), silent(n(0))}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"both unknown: hold":           {[]schedtest.Endpoint{silent(s(0)), silent(n(0))}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"S NaN":                        {[]schedtest.Endpoint{s(math.NaN()), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"S +Inf":                       {[]schedtest.Endpoint{s(math.Inf(1)), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"S negative":                   {[]schedtest.Endpoint{s(-1), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"S 0 is no prediction":         {[]schedtest.Endpoint{s(0), n(20)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N NaN":                        {[]schedtest.Endpoint{s(500), n(math.NaN())}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N +Inf":                       {[]schedtest.Endpoint{s(500), n(math.Inf(1))}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"N negative":                   {[]schedtest.Endpoint{s(500), n(-1)}, []int{0}, scheduling.GateMissingSignal, math.NaN()},
		"3 sticky, one unknown, the best known is near: hold": {
			[]schedtest.Endpoint{s(500), silent(s(0)), s(90), n(20)}, []int{0, 1, 2}, scheduling.GateHeld, 70,
		},
		"3 sticky, one unknown, the known are far: open": {
			[]schedtest.Endpoint{s(500), silent(s(0)), s(400), n(20)}, []int{0, 1, 2, 3}, scheduling.GateReleasedStatic, 380,
		},
		"an unknown other does not stand for an idle one": {
			[]schedtest.Endpoint{s(500), silent(n(0)), n(450)}, []int{0}, scheduling.GateHeld, 50,
		},
		"the load need not be known": {[]schedtest.Endpoint{unloaded(s(500)), unloaded(n(20))}, []int{0, 1}, scheduling.GateReleasedStatic, 480},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			left, report := gated(t, limit, test.endpoints...)
			expect(t, left, report, test.left, test.verdict)
			if report.GapMs != test.gap && !(math.IsNaN(report.GapMs) && math.IsNaN(test.gap)) {
				t.Errorf("gap %v ms, want %v", report.GapMs, test.gap)
			}
		})
	}
}

// TestC36_TimesToTheEndAreNoSignal: 3 s to the end of a response is not held against a limit made for first tokens.
func TestC36_TimesToTheEndAreNoSignal(t *testing.T) {
	const limit = predictor + "maxTTFTPenaltyMs: 100"
	s, n := predicted(endpoint(90, 100, 0), 3000), predicted(endpoint(0, 100, 0), 20)
	for name, endpoints := range map[string][]schedtest.Endpoint{
		"sticky": {toTheEnd(s), n}, "other": {s, toTheEnd(n)}, "both": {toTheEnd(s), toTheEnd(n)},
	} {
		t.Run(name, func(t *testing.T) {
			left, report := gated(t, limit, endpoints...)
			expect(t, left, report, []int{0}, scheduling.GateMissingSignal)
		})
	}
}

func TestPredictorReport(t *testing.T) {
	_, report := gated(t, predictor, predicted(endpoint(90, 100, 1000), 5100), predicted(endpoint(0, 100, 400), 100))
	want := scheduling.GateReport{
		Filter: "gate", Verdict: scheduling.GateHeld, GapMs: 5000, BarMs: 5000, GapTokens: 600, BarTokens: math.NaN(), Sticky: 0, Other: 1,
		Settings: &scheduling.GateSettings{AffinityThreshold: 0.8, Predicted: true},
	}
	if diff := cmp.Diff(want, report, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	_, report = gated(t, predictor, predicted(unloaded(endpoint(90, 100, 0)), 5100), predicted(endpoint(0, 100, -3), 100))
	if !math.IsNaN(report.GapTokens) {
		t.Errorf("a gap of %v tokens, of a load that is not known", report.GapTokens)
	}
}

// TestPredictorBreakEven: the wait and the request's own prefill are the prediction's, the price of everyone else is as ever.
// 1 ms a token; the sticky endpoint saves 1,440 of 1,600 tokens; α = 1 and each decode on the other endpoint counts 0.1.
func TestPredictorBreakEven(t *testing.T) {
	pressure := &scheduling.PoolPressure{Utilisation: 0.5, DecodeStall: 1, CompanyMs: 100}
	for name, tc := range map[string]struct {
		sticky, other float64 // predicted, ms
		decoding      int64   // on the other endpoint
		released      bool
	}{
		// 10 for the sticky one's request in flight, 160 for its own tokens; 1,600 and 10 on the other.
		"even":             {1540, 100, 0, false},
		"a ms more":        {1541, 100, 0, true},
		"decodes stalled":  {1540 + 3*160 + 30, 100, 3, false}, // and 3 more in company, 10 each
		"and a ms more":    {1541 + 3*160 + 30, 100, 3, true},
		"sticky is faster": {90, 100, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := predicted(rated(engine(90, 1<<40, 0), 1), tc.sticky), predicted(rated(engine(0, 0, tc.decoding), 1), tc.other)
			left, report := breakEven(t, predictor, pressure, s, n)
			wantLeft, want := []int{0}, scheduling.GateHeld
			if tc.released {
				wantLeft, want = []int{0, 1}, scheduling.GateReleasedBreakEven
			}
			expect(t, left, report, wantLeft, want)
			bar := 1440 + float64(tc.decoding)*(160+10)
			if report.GapMs != tc.sticky-tc.other || math.Abs(report.BarMs-bar) > 1e-9 {
				t.Errorf("gap %v ms against %v, want %v against %v", report.GapMs, report.BarMs, tc.sticky-tc.other, bar)
			}
		})
	}
	left, report := breakEven(t, predictor+"maxTTFTPenaltyMs: 500", pressure,
		predicted(rated(engine(90, 0, 0), 1), 601), predicted(rated(engine(0, 0, 0), 1), 100))
	expect(t, left, report, []int{0, 1}, scheduling.GateReleasedCeiling)
}

func TestC32_PredictorBreakEvenMissingSignal(t *testing.T) {
	s, n := predicted(rated(engine(90, 0, 0), 1), 1e6), predicted(rated(engine(0, 0, 0), 1), 100)
	blind, unasked, silent := n, n, s
	blind.Load, unasked.Uncached, silent.Latency = nil, nil, nil
	for name, endpoints := range map[string][]schedtest.Endpoint{
		"no load": {s, blind}, "no uncached tokens": {s, unasked}, "no prediction": {silent, n},
		"no number": {s, predicted(n, math.NaN())}, "no end": {predicted(s, math.Inf(1)), n}, "negative load": {s, predicted(rated(engine(0, -1, 0), 1), 100)},
	} {
		t.Run(name, func(t *testing.T) {
			left, report := breakEven(t, predictor, nil, endpoints...)
			expect(t, left, report, []int{0}, scheduling.GateMissingSignal)
		})
	}
	left, report := breakEven(t, predictor, nil, toTheEnd(s), n)
	expect(t, left, report, []int{0}, scheduling.GateMissingSignal)
}

// TestPredictorOfWhatIsInFlight: predictions of what the throughput says decide as the throughput does.
func TestPredictorOfWhatIsInFlight(t *testing.T) {
	pressure := &scheduling.PoolPressure{Utilisation: 0.3, DecodeStall: 1, CompanyMs: 7}
	for lead := int64(0); lead < 4000; lead += 37 {
		s, n := rated(engine(90, lead, 2), 1), rated(engine(0, 100, 5), 1)
		left, report := breakEven(t, "", pressure, s, n)
		predictedLeft, predictedReport := breakEven(t, predictor, pressure, predicted(s, float64(lead)+160), predicted(n, 100+1600))
		if !slices.Equal(left, predictedLeft) || report.Verdict != predictedReport.Verdict {
			t.Fatalf("a lead of %d: %v and %v, predicted %v and %v", lead, left, report, predictedLeft, predictedReport)
		}
	}
}

func TestFirstTokensOf(t *testing.T) {
	for parameters, want := range map[string]string{"": "", predictor: schedtest.LatencyType, predictor + "penaltyMode: breakEven": schedtest.LatencyType} {
		filter, err := build(t, schedtest.YAML(parameters))
		if err != nil {
			t.Fatal(err)
		}
		if got := filter.FirstTokensOf(); got != want {
			t.Errorf("%q takes times to a first token of %q, want %q", parameters, got, want)
		}
	}
	refused(t, predictor+"latencyPredictionInfoProducerName: x", `latencyPredictionInfoProducerName: unknown producer "x"`)
	if _, err := build(t, schedtest.YAML("latencyPredictionInfoProducerName: x")); err != nil {
		t.Errorf("a producer that is not read: %v", err)
	}
	filter, err := build(t, schedtest.YAML(predictor))
	if err != nil {
		t.Fatal(err)
	}
	if got := *filter.Parameters().MaxTTFTPenaltyMs; got != gate.DefaultPredictorPenaltyMs {
		t.Errorf("penalty %v ms, want %v", got, gate.DefaultPredictorPenaltyMs)
	}
}
