package scorer_test

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// adapters is an endpoint whose engine uses so many adapters of so many.
func adapters(use scheduling.AdapterUse, used, most int) schedtest.Endpoint {
	return metrics(scheduling.EngineMetrics{
		Known: scheduling.MetricsAdapters, Adapter: use, Adapters: used, MaxAdapters: most,
	})
}

func TestLoRAAffinityScorer(t *testing.T) {
	var (
		running     = adapters(scheduling.AdapterRunning, 2, 2)
		waiting     = adapters(scheduling.AdapterWaiting, 3, 2)
		waitingRoom = adapters(scheduling.AdapterWaiting, 1, 2)
		free        = adapters(scheduling.AdapterUnused, 1, 2)
		full        = adapters(scheduling.AdapterUnused, 2, 2)
		over        = adapters(scheduling.AdapterUnused, 3, 2)
		noBound     = adapters(scheduling.AdapterUnused, 1, 0)
		noAdapters  = metrics(scheduling.EngineMetrics{
			Known: scheduling.MetricsWaiting, Adapter: scheduling.AdapterRunning, MaxAdapters: 2,
		})
		notSaid = adapters(scheduling.AdapterUnknown, 1, 2)
	)
	sql := scheduling.Request{Model: "sql"}
	all := []schedtest.Endpoint{full, waiting, free, running, over, waitingRoom}
	runScoreCases(t, "lora-affinity-scorer", []scoreCase{
		{name: "running, waiting, free, full", request: sql, endpoints: all, want: []float64{0, 0.8, 0.6, 1, 0, 0.8}},
		{
			name: "a free slot before the queue", parameters: "{waitingScore: 0.6, freeSlotScore: 0.8}", request: sql,
			endpoints: all, want: []float64{0, 0.6, 0.8, 1, 0, 0.8},
		},
		{
			name: "what is unknown is the mean of the others", request: sql,
			endpoints: []schedtest.Endpoint{running, {}, noAdapters, noBound, notSaid, full},
			want:      []float64{1, 0.5, 0.5, 0.5, 0.5, 0},
		},
		{
			name: "running and waiting are known without a bound", request: sql,
			endpoints: []schedtest.Endpoint{adapters(scheduling.AdapterRunning, 1, 0), adapters(scheduling.AdapterWaiting, 1, 0)},
			want:      []float64{1, 0.8},
		},
		{name: "nobody says", request: sql, endpoints: []schedtest.Endpoint{{}, noAdapters}, want: []float64{0, 0}},
		{name: "no model", endpoints: all, want: []float64{0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
		{
			name: "a base model", parameters: "baseModels: [llama, llama-8b]", request: scheduling.Request{Model: "llama-8b"},
			endpoints: []schedtest.Endpoint{running, free, full, {}}, want: []float64{0.5, 0.5, 0.5, 0.5},
		},
		{
			name: "an adapter beside base models", parameters: "baseModels: [llama]", request: sql,
			endpoints: []schedtest.Endpoint{running, full}, want: []float64{1, 0},
		},
	})
}

// TestC10_APageWithoutAdaptersCostsNothingElse: an engine whose page lacks the adapters is neither preferred nor left out.
func TestC10_APageWithoutAdaptersCostsNothingElse(t *testing.T) {
	known := adapters(scheduling.AdapterUnused, 1, 2)
	lacking := metrics(scheduling.EngineMetrics{Known: scheduling.MetricsWaiting | scheduling.MetricsKVUsage})
	runScoreCases(t, "lora-affinity-scorer", []scoreCase{{
		name: "one lacks it", request: scheduling.Request{Model: "sql"},
		endpoints: []schedtest.Endpoint{known, lacking, known}, want: []float64{0.6, 0.6, 0.6},
	}})
}
