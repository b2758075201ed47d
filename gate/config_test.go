package gate_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// build builds a gate from a parameter block (and nothing beside it).
func build(t *testing.T, decode func(any) error) (*gate.Filter, error) {
	t.Helper()
	table := &schedtest.Table{}
	types := append(table.Types(), gate.Type(), schedtest.First)
	specs := []scheduling.Spec{{Name: "gate", Type: gate.TypeName, Path: "plugins[0]", Decode: decode}}
	s, err := scheduling.Build(types, schedtest.Config(specs, "gate", schedtest.First.Type), nil)
	if err != nil {
		return nil, err
	}
	filter, ok := s.Plugin("gate").(*gate.Filter)
	if !ok {
		t.Fatalf("plugin is a %T", s.Plugin("gate"))
	}
	return filter, nil
}

// refused builds a gate that must not be and checks its error.
func refused(t *testing.T, parameters string, want ...string) {
	t.Helper()
	_, err := build(t, schedtest.YAML(parameters))
	if err == nil {
		t.Fatalf("%q is accepted", parameters)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q: error %q does not say %q", parameters, err, w)
		}
	}
}

func TestMatchedTokensRejectsLatencyPredictor(t *testing.T) {
	refused(t, "penaltyMode: matchedTokens\nttftSource: latencyPredictor",
		"matchedTokens cannot be used with ttftSource latencyPredictor", "milliseconds and tokens do not compare; use breakEven or static")
}

func TestRejectsUnknownPenaltyMode(t *testing.T) {
	refused(t, "penaltyMode: matchedTokans",
		`plugins[0]: parameters.penaltyMode: must be static or matchedTokens or breakEven, got "matchedTokans" (did you mean "matchedTokens"?)`)
	refused(t, "penaltyMode: Static", `got "Static" (did you mean "static"?)`)
	refused(t, "ttftSource: prefilThroughput", `ttftSource: must be prefillThroughput or latencyPredictor, got`, `(did you mean "prefillThroughput"?)`)
}

func TestRangesAreChecked(t *testing.T) {
	for parameters, want := range map[string]string{
		"affinityThreshold: 1.01":                   "parameters.affinityThreshold: must be at most 1 (0 or less turns the filter off), got 1.01",
		"affinityThreshold: .nan":                   "got NaN",
		"affinityThreshold: -.inf":                  "got -Inf",
		"affinityGateTau: 80":                       "parameters.affinityThreshold: must be at most 1",
		"explorationProbability: -1":                "parameters.explorationProbability: must be from 0 to 1, got -1",
		"explorationProbability: 1.5":               "got 1.5",
		"explorationProbability: .nan":              "got NaN",
		"maxTTFTPenaltyMs: -1":                      "parameters.maxTTFTPenaltyMs: must be from 0 (no bound) to 86400000, got -1",
		"maxTTFTPenaltyMs: 1e99":                    "got 1e+99",
		"maxTTFTPenaltyMs: .inf":                    "got +Inf",
		"maxTTFTPenaltyMs: 5s":                      "5s",
		"peakPrefillThroughput: 0":                  "parameters.peakPrefillThroughput: must be > 0 and at most 1e+09 tokens per second, got 0",
		"peakPrefillThroughput: -15928":             "got -15928",
		"peakPrefillThroughput: .nan":               "got NaN",
		"peakPrefillThroughput: 1e99":               "got 1e+99",
		"alpha: 1":                                  "parameters.alpha: only penaltyMode breakEven reads it, this one is static",
		"penaltyMode: breakEven\nkappa: -1":         "parameters.kappa: must be from 0 to 1000, got -1",
		"penaltyMode: breakEven\ndecodePrice: .nan": "parameters.decodePrice: must be from 0 to 1000, got NaN",
		"affinityTreshold: 0.5":                     "affinityTreshold",
		"prefixMatchInfoProducerName: x":            `prefixMatchInfoProducerName: unknown producer "x"`,
		"inFlightLoadProducerName: x":               `inFlightLoadProducerName: unknown producer "x"`,
	} {
		t.Run(parameters, func(t *testing.T) { refused(t, parameters, want) })
	}
}

func TestAllFaultsAreListed(t *testing.T) {
	refused(t, "affinityThreshold: 2\nexplorationProbability: 2\nmaxTTFTPenaltyMs: -2\npeakPrefillThroughput: -2\npenaltyMode: x\n"+
		"affinityGateTau: 0.5", "affinityThreshold and parameters.affinityGateTau", "affinityThreshold: must", "explorationProbability",
		"maxTTFTPenaltyMs", "peakPrefillThroughput", "penaltyMode")
}

func TestSpellings(t *testing.T) {
	effective := func(tau, epsilon, penalty float64) gate.Parameters {
		p := gate.DefaultParameters()
		*p.AffinityThreshold, *p.ExplorationProbability, *p.MaxTTFTPenaltyMs = tau, epsilon, penalty
		return p
	}
	tests := map[string]struct {
		parameters string
		want       gate.Parameters
	}{
		"defaults":         {"", effective(0.80, 0.01, 18000)},
		"first spellings":  {"affinityThreshold: 0.7\nexplorationProbability: 0.2\nmaxTTFTPenaltyMs: 300", effective(0.7, 0.2, 300)},
		"second spellings": {"affinityGateTau: 0.7\nepsilonExploreSticky: 0.2\naffinityMaxTTFTPenaltyMs: 300", effective(0.7, 0.2, 300)},
		"zeros are values": {"affinityGateTau: 0\nepsilonExploreSticky: 0\naffinityMaxTTFTPenaltyMs: 0", effective(0, 0, 0)},
		"null is unset":    {"affinityThreshold: null\naffinityGateTau: 0.7", effective(0.7, 0.01, 18000)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			filter, err := build(t, schedtest.YAML(test.parameters))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, filter.Parameters()); diff != "" {
				t.Errorf("effective parameters (-want +got):\n%s", diff)
			}
		})
	}
	for _, both := range [][2]string{
		{"affinityThreshold", "affinityGateTau"},
		{"explorationProbability", "epsilonExploreSticky"},
		{"maxTTFTPenaltyMs", "affinityMaxTTFTPenaltyMs"},
	} {
		t.Run("both "+both[0], func(t *testing.T) {
			refused(t, both[0]+": 0.5\n"+both[1]+": 0.5", both[0], both[1], "two spellings")
		})
	}
}

func TestPredictorHasItsOwnPenalty(t *testing.T) {
	p := gate.Parameters{TTFTSource: gate.SourceLatencyPredictor}
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	if *p.MaxTTFTPenaltyMs != 5000 {
		t.Errorf("default penalty with the predictor is %v ms, want 5000", *p.MaxTTFTPenaltyMs)
	}
}

func TestBreakEvenHasNoCeiling(t *testing.T) {
	for parameters, want := range map[string]float64{
		"penaltyMode: breakEven":                             0,
		"penaltyMode: breakEven\nmaxTTFTPenaltyMs: 300":      300,
		"penaltyMode: matchedTokens\nmaxTTFTPenaltyMs: null": 18000,
	} {
		filter, err := build(t, schedtest.YAML(parameters))
		if err != nil {
			t.Fatalf("%s: %v", parameters, err)
		}
		if got := *filter.Parameters().MaxTTFTPenaltyMs; got != want {
			t.Errorf("%s: ceiling %v ms, want %v", parameters, got, want)
		}
	}
}

func TestDescribesItself(t *testing.T) {
	typ := gate.Type()
	defaults, ok := typ.Parameters.(*gate.Parameters)
	if !ok {
		t.Fatalf("parameters are a %T", typ.Parameters)
	}
	if err := defaults.Validate(); err != nil {
		t.Errorf("the defaults are invalid: %v", err)
	}
	if typ.Type != "prefix-cache-affinity-filter" || defaults.PenaltyMode != "static" || defaults.TTFTSource != "prefillThroughput" {
		t.Errorf("type %q, mode %q, source %q", typ.Type, defaults.PenaltyMode, defaults.TTFTSource)
	}
}

func FuzzParameters(f *testing.F) {
	f.Add(0.8, 0.01, 18000.0, 15928.0, "static", "prefillThroughput", 90, 100, 16, int64(4000), int64(0))
	f.Add(math.NaN(), math.Inf(1), -1.0, 0.0, "matchedTokens", "latencyPredictor", -1, 0, -16, int64(-1), int64(math.MaxInt64))
	f.Add(0.0, 1.0, 0.0, 1e-300, "matchedTokens", "prefillThroughput", math.MaxInt, 1, math.MaxInt, int64(math.MaxInt64), int64(math.MinInt64))
	f.Add(0.8, 0.0, 5000.0, 15928.0, "static", "latencyPredictor", 90, 100, 16, int64(4000), int64(0))
	f.Add(0.8, 0.0, 0.0, 1.0, "breakEven", "latencyPredictor", 90, 100, 16, int64(-1), int64(math.MaxInt64))
	f.Add(-0.5, 0.5, 1e9, 1e9, "breakEven", "", 1, 1, 1, int64(1), int64(1))
	f.Fuzz(func(t *testing.T, tau, epsilon, penalty, throughput float64, mode, source string,
		matchBlocks, totalBlocks, blockSize int, sticky, other int64) {
		filter, err := build(t, func(into any) error {
			p := into.(*gate.Parameters)
			p.AffinityThreshold, p.EpsilonExploreSticky, p.MaxTTFTPenaltyMs = &tau, &epsilon, &penalty
			p.PeakPrefillThroughput, p.PenaltyMode, p.TTFTSource = throughput, mode, source
			return nil
		})
		if err != nil {
			return
		}
		for _, v := range []float64{tau, epsilon, penalty, throughput} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("parameter %v is accepted", v)
			}
		}
		table := &schedtest.Table{Endpoints: []schedtest.Endpoint{predicted(loaded(sticky), float64(sticky)), predicted(loaded(other), math.Float64frombits(uint64(other)))}}
		table.Endpoints[0].Match = &scheduling.PrefixCacheMatchInfo{
			MatchBlocks: matchBlocks, CachedBlockCount: matchBlocks, TotalBlocks: totalBlocks, BlockSizeTokens: blockSize,
		}
		effective := filter.Parameters()
		s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{{
			Name: "gate", Type: gate.TypeName, Decode: func(into any) error { *into.(*gate.Parameters) = effective; return nil },
		}}, "gate", schedtest.First.Type)
		c := table.Decide(t, s, &scheduling.Request{ID: uint64(sticky)})
		if c.Candidates.Empty() || len(c.Picks) != 1 {
			t.Fatalf("the gate left %d candidates", c.Candidates.Len())
		}
	})
}
