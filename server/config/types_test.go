package config

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The plugin types of these tests: the names of the real ones, and of their parameters as many as the tests need.

type (
	testProducer struct{}
	testFilter   struct{}
	testScorer   struct{}
	testPicker   struct{}
	tieredCache  struct {
		testProducer
		params tierParams
	}
)

func (testProducer) Produce(context.Context, *scheduling.Cycle) error { return nil }
func (testFilter) Filter(*scheduling.Cycle, scheduling.Set)           {}
func (testScorer) Score(*scheduling.Cycle, scheduling.Set, []float64) {}
func (testPicker) Pick(_ *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return picks
}

func (t tieredCache) TierWeights() (map[string]float64, bool) {
	return t.params.Tiers, len(t.params.Tiers) > 1
}

type approxParams struct {
	AutoTune             bool   `yaml:"autoTune"`
	BlockSizeTokens      int    `yaml:"blockSizeTokens"`
	LRUCapacityPerServer int    `yaml:"lruCapacityPerServer"`
	HashSeed             string `yaml:"hashSeed" secret:"true"`
}

type ledgerParams struct {
	PrefixMatchInfoProducerName string  `yaml:"prefixMatchInfoProducerName"`
	AddEstimatedOutputTokens    bool    `yaml:"addEstimatedOutputTokens"`
	OutputRatio                 float64 `yaml:"outputRatio"`
}

type gateParams struct {
	AffinityThreshold      float64  `yaml:"affinityThreshold"`
	ExplorationProbability float64  `yaml:"explorationProbability"`
	MaxTTFTPenaltyMs       *float64 `yaml:"maxTTFTPenaltyMs"`
	PenaltyMode            string   `yaml:"penaltyMode"`
}

func (p gateParams) check() error {
	var errs []error
	if p.AffinityThreshold < 0 || p.AffinityThreshold > 1 {
		errs = append(errs, fmt.Errorf("affinityThreshold: must be from 0 to 1, got %v", p.AffinityThreshold))
	}
	if p.MaxTTFTPenaltyMs != nil && (*p.MaxTTFTPenaltyMs < 0 || *p.MaxTTFTPenaltyMs > 1e9) {
		errs = append(errs, fmt.Errorf("maxTTFTPenaltyMs: must be from 0 to 1e9, got %v", *p.MaxTTFTPenaltyMs))
	}
	return errors.Join(errs...)
}

type tierParams struct {
	Tiers map[string]float64 `yaml:"tiers"`
}

type labelParams struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

func testTypes() []scheduling.PluginType {
	types := []scheduling.PluginType{
		{
			Type: "token-producer", DefaultFor: []string{scheduling.DataTypeOf[scheduling.TokenizedPrompt]()},
			Parameters: &struct {
				ModelName string `yaml:"modelName"`
			}{},
			New: func(b *scheduling.Builder) (any, error) {
				var p struct {
					ModelName string `yaml:"modelName"`
				}
				scheduling.ProduceValue[scheduling.TokenizedPrompt](b)
				return testProducer{}, b.Parameters(&p)
			},
		},
		{
			Type: "approx-prefix-cache-producer", DefaultFor: []string{scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]()},
			Parameters: &approxParams{AutoTune: true, BlockSizeTokens: 16, LRUCapacityPerServer: 31250},
			New: func(b *scheduling.Builder) (any, error) {
				var p approxParams
				scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
				scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "tokenProducerName", "")
				return testProducer{}, b.Parameters(&p)
			},
		},
		{
			Type: "tiered-cache", Parameters: &tierParams{},
			New: func(b *scheduling.Builder) (any, error) {
				var p tierParams
				scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
				err := b.Parameters(&p)
				return tieredCache{params: p}, err
			},
		},
		{
			Type: "inflight-load-producer", DefaultFor: []string{scheduling.DataTypeOf[scheduling.InFlightLoad]()},
			Parameters: &ledgerParams{OutputRatio: 1.5},
			New: func(b *scheduling.Builder) (any, error) {
				p := ledgerParams{}
				if err := b.Parameters(&p); err != nil {
					return nil, err
				}
				scheduling.ProduceColumn[scheduling.InFlightLoad](b)
				scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
				return testProducer{}, nil
			},
		},
		{
			Type: "prefix-cache-affinity-filter", Parameters: &gateParams{AffinityThreshold: 0.8, ExplorationProbability: 0.01, PenaltyMode: "static"},
			New: func(b *scheduling.Builder) (any, error) {
				p := gateParams{AffinityThreshold: 0.8}
				if err := b.Parameters(&p); err != nil {
					return nil, err
				}
				scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", "")
				return testFilter{}, p.check()
			},
		},
		{
			Type: "label-selector-filter", Parameters: &labelParams{},
			New: func(b *scheduling.Builder) (any, error) {
				var p labelParams
				return testFilter{}, b.Parameters(&p)
			},
		},
	}
	for _, name := range []string{"prefill-cost-scorer", "prefix-cache-scorer", "queue-scorer", "token-load-scorer", "active-request-scorer"} {
		types = append(types, scheduling.PluginType{Type: name, New: func(*scheduling.Builder) (any, error) { return testScorer{}, nil }})
	}
	for _, name := range []string{"max-score-picker", "random-picker"} {
		types = append(types, scheduling.PluginType{Type: name, New: func(*scheduling.Builder) (any, error) { return testPicker{}, nil }})
	}
	return append(types, Later()...)
}

// environment is a lookup of a few names.
func environment(name string) (string, bool) {
	v, ok := map[string]string{
		"MODEL_NAME": "meta-llama/Llama-3.1-8B", "PORT": "9100", "EMPTY": "", "SECRET": "hunter2",
		"YAML": "x}\nplugins: [{type: evil}]", "THRESHOLD": "0.9", "WORD": "many",
	}[name]
	return v, ok
}
