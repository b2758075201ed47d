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

type tokenParams struct {
	ModelName string `yaml:"modelName"`
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

type pickerParams struct {
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

type tierParams struct {
	Tiers map[string]float64 `yaml:"tiers"`
}

type labelParams struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// testType is a plugin type whose parameters have defaults; build gets them with what the file sets.
func testType[P any](name string, defaults P, build func(*scheduling.Builder, P) (any, error)) scheduling.PluginType {
	shown := defaults
	return scheduling.PluginType{Type: name, Parameters: &shown, New: func(b *scheduling.Builder) (any, error) {
		p := defaults
		if err := b.Parameters(&p); err != nil {
			return nil, err
		}
		return build(b, p)
	}}
}

func defaultFor[T any](t scheduling.PluginType) scheduling.PluginType {
	t.DefaultFor = []string{scheduling.DataTypeOf[T]()}
	return t
}

func testTypes() []scheduling.PluginType {
	types := []scheduling.PluginType{
		defaultFor[scheduling.TokenizedPrompt](testType("token-producer", tokenParams{}, func(b *scheduling.Builder, _ tokenParams) (any, error) {
			scheduling.ProduceValue[scheduling.TokenizedPrompt](b)
			return testProducer{}, nil
		})),
		defaultFor[scheduling.PrefixCacheMatchInfo](testType("approx-prefix-cache-producer",
			approxParams{AutoTune: true, BlockSizeTokens: 16, LRUCapacityPerServer: 31250},
			func(b *scheduling.Builder, _ approxParams) (any, error) {
				scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
				scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "tokenProducerName", "")
				return testProducer{}, nil
			})),
		testType("precise-prefix-cache-producer", approxParams{}, func(b *scheduling.Builder, _ approxParams) (any, error) {
			scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
			return testProducer{}, nil
		}),
		testType("tiered-cache", tierParams{}, func(b *scheduling.Builder, p tierParams) (any, error) {
			scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
			return tieredCache{params: p}, nil
		}),
		defaultFor[scheduling.InFlightLoad](testType("inflight-load-producer", ledgerParams{OutputRatio: 1.5},
			func(b *scheduling.Builder, p ledgerParams) (any, error) {
				scheduling.ProduceColumn[scheduling.InFlightLoad](b)
				scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
				return testProducer{}, nil
			})),
		defaultFor[scheduling.LearntRates](testType("learnt-rates-producer", struct{}{}, func(b *scheduling.Builder, _ struct{}) (any, error) {
			scheduling.ProduceColumn[scheduling.LearntRates](b)
			return testProducer{}, nil
		})),
		testType("prefill-cost-scorer", struct{}{}, func(b *scheduling.Builder, _ struct{}) (any, error) {
			scheduling.ConsumeColumn[scheduling.LearntRates](b, "learntRatesProducerName", "")
			return testScorer{}, nil
		}),
		testType("outlier-detection-filter", struct{}{}, func(*scheduling.Builder, struct{}) (any, error) { return testFilter{}, nil }),
		testType("prefix-cache-affinity-filter",
			gateParams{AffinityThreshold: 0.8, ExplorationProbability: 0.01, PenaltyMode: "static"},
			func(b *scheduling.Builder, p gateParams) (any, error) {
				scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", "")
				if p.PenaltyMode == "breakEven" {
					scheduling.ConsumeColumn[scheduling.LearntRates](b, "learntRatesProducerName", "")
				}
				return testFilter{}, p.check()
			}),
		testType("label-selector-filter", labelParams{}, func(*scheduling.Builder, labelParams) (any, error) { return testFilter{}, nil }),
		testType("max-score-picker", pickerParams{}, func(*scheduling.Builder, pickerParams) (any, error) { return testPicker{}, nil }),
		testType("random-picker", pickerParams{}, func(*scheduling.Builder, pickerParams) (any, error) { return testPicker{}, nil }),
	}
	for _, name := range []string{"prefix-cache-scorer", "queue-scorer", "token-load-scorer", "active-request-scorer"} {
		types = append(types, scheduling.PluginType{Type: name, New: func(*scheduling.Builder) (any, error) { return testScorer{}, nil }})
	}
	return types
}

// environment is a lookup of a few names.
func environment(name string) (string, bool) {
	v, ok := map[string]string{
		"MODEL_NAME": "meta-llama/Llama-3.1-8B", "PORT": "9100", "EMPTY": "", "SECRET": "hunter2",
		"YAML": "x}\nplugins: [{type: evil}]", "THRESHOLD": "0.9", "WORD": "many",
	}[name]
	return v, ok
}
