package scorer_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// scoreCase is one table row of a scorer's test: endpoints in, raw scores out.
type scoreCase struct {
	name       string
	parameters string
	request    scheduling.Request
	endpoints  []schedtest.Endpoint
	want       []float64
}

func runScoreCases(t *testing.T, typ string, cases []scoreCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			table := schedtest.Table{Endpoints: tc.endpoints}
			got := table.Scores(t, scorer.Types(), typ, tc.parameters, &tc.request)
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

// buildError builds a configuration with one scorer and returns what is wrong with it.
func buildError(typ, parameters string) error {
	table := &schedtest.Table{}
	cfg := schedtest.Config([]scheduling.Spec{{Name: typ, Type: typ, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}},
		typ, schedtest.First.Type)
	types := append(append(table.Types(), scorer.Types()...), schedtest.First)
	s, err := scheduling.Build(types, cfg, nil)
	if err == nil {
		return s.Close()
	}
	return err
}

func TestParameterRanges(t *testing.T) {
	cases := []struct {
		typ, parameters, want string // want "": accepted
	}{
		{"prefix-cache-scorer", "matchLengthWeight: 0", ""},
		{"prefix-cache-scorer", "matchLengthWeight: 1", ""},
		{"prefix-cache-scorer", "matchLengthWeight: -0.1", "plugins[0]: parameters.matchLengthWeight: must be between 0 and 1, got -0.1"},
		{"prefix-cache-scorer", "matchLengthWeight: 1.1", "parameters.matchLengthWeight: must be between 0 and 1, got 1.1"},
		{"prefix-cache-scorer", "matchLengthWeight: .nan", "parameters.matchLengthWeight: must be between 0 and 1, got NaN"},
		{"prefix-cache-scorer", "matchLengthScaleTokens: 0", "parameters.matchLengthScaleTokens: must be between 1"},
		{"prefix-cache-scorer", "matchLengthScaleTokens: 1", ""},
		{"prefix-cache-scorer", "matchLengthScaleTokens: 1000000001", "parameters.matchLengthScaleTokens: must be between 1"},
		{"token-load-scorer", "queueThresholdTokens: 0", "parameters.queueThresholdTokens: must be between 1"},
		{"token-load-scorer", "queueThresholdTokens: -5", "got -5"},
		{"token-load-scorer", "queueThresholdTokens: 1", ""},
		{"active-request-scorer", "idleThreshold: -1", "parameters.idleThreshold: must be between 0"},
		{"active-request-scorer", "maxBusyScore: 1.5", "parameters.maxBusyScore: must be between 0 and 1, got 1.5"},
		{"active-request-scorer", "maxBusyScore: .inf", "parameters.maxBusyScore: must be between 0 and 1, got +Inf"},
		{"active-request-scorer", "{idleThreshold: 3, maxBusyScore: 0, requestTimeout: 2m}", ""},
		{"prefill-cost-scorer", "peakPrefillThroughput: 0", "parameters.peakPrefillThroughput: must be between 1 and 1e+09, got 0"},
		{"prefill-cost-scorer", "peakPrefillThroughput: -1", "got -1"},
		{"prefill-cost-scorer", "peakPrefillThroughput: 1e99", "got 1e+99"},
		{"prefill-cost-scorer", "alpha: -1", "parameters.alpha: must be between 0 and 1000, got -1"},
		{"prefill-cost-scorer", "kappa: .nan", "parameters.kappa: must be between 0 and 1000, got NaN"},
		{"prefill-cost-scorer", "{alpha: 0, kappa: 0, peakPrefillThroughput: 743}", ""},
		{"prefill-cost-scorer", "alhpa: 2", "unknown field"},
		{"latency-scorer", "{ttftWeight: 0, tpotWeight: 1}", ""},
		{"latency-scorer", "tpotWeight: 0", ""},
		{"latency-scorer", "ttftWeight: -1", "parameters.ttftWeight: must be between 0 and 1e+06, got -1"},
		{"latency-scorer", "tpotWeight: .nan", "parameters.tpotWeight: must be between 0 and 1e+06, got NaN"},
		{"latency-scorer", "tpotWeight: .inf", "got +Inf"},
		{"latency-scorer", "{ttftWeight: 0, tpotWeight: 0}", "parameters.ttftWeight and parameters.tpotWeight are both 0"},
		{"latency-scorer", "latencyPredictionInfoProducerName: nobody", `latencyPredictionInfoProducerName: unknown producer "nobody"`},
		{"latency-scorer", "ttftWieght: 1", "unknown field"},
		{"lora-affinity-scorer", "{waitingScore: 0, freeSlotScore: 1, baseModels: [llama]}", ""},
		{"lora-affinity-scorer", "waitingScore: 1.1", "parameters.waitingScore: must be between 0 and 1, got 1.1"},
		{"lora-affinity-scorer", "freeSlotScore: .nan", "parameters.freeSlotScore: must be between 0 and 1, got NaN"},
		{"lora-affinity-scorer", "engineMetricsProducerName: nobody", `engineMetricsProducerName: unknown producer "nobody"`},
		{"queue-scorer", "threshold: 2", "unknown field"},
		{"queue-scorer", "engineMetricsProducerName: nobody", `engineMetricsProducerName: unknown producer "nobody"`},
		{"kv-cache-utilization-scorer", "engineMetricsProducerName: table-early", ""},
		{"kv-cache-utilization-scorer", "engineMetricsProducerName: table-late", `"table-late" does not produce EngineMetrics`},
	}
	for _, tc := range cases {
		t.Run(tc.typ+" "+tc.parameters, func(t *testing.T) {
			err := buildError(tc.typ, tc.parameters)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && err == nil:
				t.Error("accepted")
			case tc.want != "" && !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %q, want it to hold %q", err, tc.want)
			}
		})
	}
}

// TestAllFaultsOfOnePlugin makes sure that a user sees every wrong parameter at once.
func TestAllFaultsOfOnePlugin(t *testing.T) {
	err := buildError("prefill-cost-scorer", "{peakPrefillThroughput: 0, alpha: -1, kappa: -2}")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{"peakPrefillThroughput", "alpha", "kappa"} {
		if !strings.Contains(err.Error(), "parameters."+key) {
			t.Errorf("%q does not name %s", err, key)
		}
	}
}

func TestTypesAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, typ := range scorer.Types() {
		if seen[typ.Type] {
			t.Errorf("%s stands in the list twice", typ.Type)
		}
		seen[typ.Type] = true
		if typ.Summary == "" || typ.Parameters == nil {
			t.Errorf("%s has no summary or no parameters", typ.Type)
		}
	}
}

// manyEndpoints is a table of n different endpoints of which one in seven is unknown.
func manyEndpoints(n int) *schedtest.Table {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, n)}
	for i := range table.Endpoints {
		if i%7 == 0 {
			continue
		}
		table.Endpoints[i] = schedtest.Endpoint{
			Match:    schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(i%100, 100, 16)),
			Load:     &scheduling.InFlightLoad{Requests: int64(i), Tokens: int64(i * 100), Decoding: int64(i % 3)},
			Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(1600 - 16*(i%100))),
			Metrics: &scheduling.EngineMetrics{
				Known:   scheduling.MetricsWaiting | scheduling.MetricsKVUsage | scheduling.MetricsAdapters,
				Waiting: float64(i), Adapter: scheduling.AdapterUse(i % 4), Adapters: i % 5, MaxAdapters: 4,
			},
			Latency: &scheduling.LatencyPrediction{TTFTMs: float64(10 + i), TPOTMs: 20, TTFTHeadroomMs: float64(i - 50), TPOTHeadroomMs: 1},
		}
	}
	return table
}

// TestScoresAllocateNothing holds for every scorer: they run inside the critical section.
func TestScoresAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	table := manyEndpoints(100)
	profile := []string{}
	for _, typ := range scorer.Types() {
		profile = append(profile, typ.Type)
	}
	s := table.Build(t, append(scorer.Types(), schedtest.First), nil, append(profile, schedtest.First.Type)...)
	c := table.Decide(t, s, &scheduling.Request{ID: 1, Model: "sql"})
	plugins := make([]scheduling.Scorer, 0, len(profile))
	for _, name := range profile {
		p, ok := s.Plugin(name).(scheduling.Scorer)
		if !ok {
			t.Fatalf("%s is no scorer", name)
		}
		plugins = append(plugins, p)
	}
	table.Objective = &scheduling.LatencyObjective{TTFTMs: 100, TPOTMs: 40}
	asking := table.Decide(t, s, &scheduling.Request{ID: 2})
	if n := testing.AllocsPerRun(100, func() {
		for i, p := range plugins {
			p.Score(c, c.Candidates, c.Scores[i].Raw)
			p.Score(asking, asking.Candidates, asking.Scores[i].Raw)
		}
	}); n != 0 {
		t.Errorf("the scorers allocate %v times a request", n)
	}
}
