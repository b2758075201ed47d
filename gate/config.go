package gate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "prefix-cache-affinity-filter"

// The values of penaltyMode.
const (
	ModeStatic        = "static"
	ModeMatchedTokens = "matchedTokens"
	ModeBreakEven     = "breakEven"
)

// The values of ttftSource.
const (
	SourcePrefillThroughput = "prefillThroughput"
	SourceLatencyPredictor  = "latencyPredictor"
)

// The defaults. The throughput is the measured peak of Qwen3-32B on two H100 (tensor parallel); the penalties are what
// some 287,000 tokens ahead mean there, and a tighter one for the predictor, which sees more than the tokens ahead.
const (
	DefaultAffinityThreshold      = 0.80
	DefaultExplorationProbability = 0.01
	DefaultPeakPrefillThroughput  = scheduling.DefaultPrefillThroughput
	DefaultPenaltyMs              = 18000
	DefaultPredictorPenaltyMs     = 5000
)

// maxPenaltyMs is a day: only a slip exceeds it.
const maxPenaltyMs = 24 * 60 * 60 * 1000

// MaxPrice is the upper bound of alpha, kappa and decodePrice.
const MaxPrice = 1000

// Parameters are the filter's parameters. Three of them have a second spelling; Complete folds it into the first.
type Parameters struct {
	// AffinityThreshold is the prefix_cache_score from which (inclusive) an endpoint is sticky. At most 1; 0 or less
	// turns the filter off.
	AffinityThreshold *float64 `yaml:"affinityThreshold,omitempty"`
	// AffinityGateTau is another spelling of affinityThreshold.
	AffinityGateTau *float64 `yaml:"affinityGateTau,omitempty"`
	// ExplorationProbability is the share of requests, 0 to 1, that may go anywhere, to seed caches elsewhere.
	ExplorationProbability *float64 `yaml:"explorationProbability,omitempty"`
	// EpsilonExploreSticky is another spelling of explorationProbability.
	EpsilonExploreSticky *float64 `yaml:"epsilonExploreSticky,omitempty"`
	// MaxTTFTPenaltyMs is by how much, in ms, the best sticky endpoint's TTFT may exceed the best other one's. 0 means
	// without bound: static always sticks, matchedTokens and breakEven have no ceiling.
	MaxTTFTPenaltyMs *float64 `yaml:"maxTTFTPenaltyMs,omitempty"`
	// AffinityMaxTTFTPenaltyMs is another spelling of maxTTFTPenaltyMs.
	AffinityMaxTTFTPenaltyMs *float64 `yaml:"affinityMaxTTFTPenaltyMs,omitempty"`
	// PenaltyMode is what releases the pin: static, matchedTokens, or breakEven, which measures where that pays.
	PenaltyMode string `yaml:"penaltyMode"`
	// TTFTSource is where an endpoint's TTFT comes from: prefillThroughput, or latencyPredictor, which matchedTokens does not go with.
	TTFTSource string `yaml:"ttftSource"`
	// PeakPrefillThroughput turns tokens in flight into TTFT, in tokens per second; must be > 0.
	PeakPrefillThroughput float64 `yaml:"peakPrefillThroughput"`
	// Alpha prices what a prefill takes from requests still to come, in units of its own time, in place of what follows
	// from the pool's utilisation; breakEven only.
	Alpha *float64 `yaml:"alpha,omitempty"`
	// Kappa prices what it takes from each request that is decoding on the endpoint, in the same units, in place of what
	// follows from the measured slowdown of decodes; breakEven only.
	Kappa *float64 `yaml:"kappa,omitempty"`
	// DecodePrice is what a ms that an answer takes longer counts, in ms to a first token; breakEven only.
	DecodePrice *float64 `yaml:"decodePrice,omitempty"`
	// LearntRatesProducerName names the producer of what has been learnt; empty means the only one. breakEven only.
	LearntRatesProducerName string `yaml:"learntRatesProducerName"`
	// PrefixMatchInfoProducerName names the producer of PrefixCacheMatchInfo; empty means the only one there is.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// InFlightLoadProducerName names the producer of InFlightLoad; empty means the only one there is.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// LatencyPredictionInfoProducerName names the producer of the predicted TTFT; empty means the only one. latencyPredictor only.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

// DefaultParameters returns the effective parameters of a filter without a parameters section.
func DefaultParameters() Parameters {
	p := unset()
	_ = p.Complete() // cannot fail: no two spellings are given
	return p
}

// unset holds the defaults of what has one spelling only; the rest shows whether it was written.
func unset() Parameters {
	return Parameters{
		PenaltyMode: ModeStatic, TTFTSource: SourcePrefillThroughput, PeakPrefillThroughput: DefaultPeakPrefillThroughput,
	}
}

// Complete folds second spellings into the first ones and fills in what was not written. Both spellings of one
// parameter at once are an error that names both.
func (p *Parameters) Complete() error {
	penalty := float64(DefaultPenaltyMs)
	switch {
	case p.PenaltyMode == ModeBreakEven:
		penalty = 0
	case p.TTFTSource == SourceLatencyPredictor:
		penalty = DefaultPredictorPenaltyMs
	}
	return errors.Join(
		fold(&p.AffinityThreshold, &p.AffinityGateTau, "affinityThreshold", "affinityGateTau", DefaultAffinityThreshold),
		fold(&p.ExplorationProbability, &p.EpsilonExploreSticky, "explorationProbability", "epsilonExploreSticky",
			DefaultExplorationProbability),
		fold(&p.MaxTTFTPenaltyMs, &p.AffinityMaxTTFTPenaltyMs, "maxTTFTPenaltyMs", "affinityMaxTTFTPenaltyMs", penalty),
	)
}

func fold(first, second **float64, firstName, secondName string, byDefault float64) error {
	switch {
	case *first != nil && *second != nil:
		return fmt.Errorf("parameters.%s and parameters.%s are two spellings of one thing: give one, got %v and %v",
			firstName, secondName, **first, **second)
	case *second != nil:
		*first, *second = *second, nil
	case *first == nil:
		*first = &byDefault
	}
	return nil
}

// Validate reports every parameter that is out of range, and every choice that cannot be had. It looks at the first
// spellings, after Complete.
func (p *Parameters) Validate() error {
	var errs []error
	check := func(ok bool, name, want string, got float64) { // ok is written so that NaN fails it
		if !ok {
			errs = append(errs, fmt.Errorf("parameters.%s: must be %s, got %v", name, want, got))
		}
	}
	tau := given(p.AffinityThreshold, DefaultAffinityThreshold)
	epsilon := given(p.ExplorationProbability, DefaultExplorationProbability)
	penalty := given(p.MaxTTFTPenaltyMs, DefaultPenaltyMs)
	check(tau <= 1 && !math.IsInf(tau, -1), "affinityThreshold", "at most 1 (0 or less turns the filter off)", tau)
	check(epsilon >= 0 && epsilon <= 1, "explorationProbability", "from 0 to 1", epsilon)
	check(penalty >= 0 && penalty <= maxPenaltyMs, "maxTTFTPenaltyMs",
		fmt.Sprintf("from 0 (no bound) to %d", maxPenaltyMs), penalty)
	return errors.Join(append(errs, scheduling.CheckPrefillThroughput(p.PeakPrefillThroughput), p.validateChoices())...)
}

func given(v *float64, byDefault float64) float64 {
	if v == nil {
		return byDefault
	}
	return *v
}

func (p *Parameters) validateChoices() error {
	errs := []error{
		choice("penaltyMode", p.PenaltyMode, ModeStatic, ModeMatchedTokens, ModeBreakEven),
		choice("ttftSource", p.TTFTSource, SourcePrefillThroughput, SourceLatencyPredictor),
	}
	if p.PenaltyMode == ModeMatchedTokens && p.TTFTSource == SourceLatencyPredictor {
		errs = append(errs, fmt.Errorf("parameters.penaltyMode: %s cannot be used with ttftSource %s: milliseconds and tokens do not compare; use %s or %s",
			ModeMatchedTokens, SourceLatencyPredictor, ModeBreakEven, ModeStatic))
	}
	return errors.Join(append(errs, p.validateKnobs())...)
}

// validateKnobs checks what only breakEven reads.
func (p *Parameters) validateKnobs() error {
	var errs []error
	for _, knob := range []struct {
		name  string
		value *float64
	}{{"alpha", p.Alpha}, {"kappa", p.Kappa}, {"decodePrice", p.DecodePrice}} {
		switch v := knob.value; {
		case v == nil:
		case p.PenaltyMode != ModeBreakEven:
			errs = append(errs, fmt.Errorf("parameters.%s: only penaltyMode %s reads it, this one is %s", knob.name, ModeBreakEven, p.PenaltyMode))
		case !(*v >= 0 && *v <= MaxPrice):
			errs = append(errs, fmt.Errorf("parameters.%s: must be from 0 to %d, got %v", knob.name, MaxPrice, *v))
		}
	}
	return errors.Join(errs...)
}

// knobs are what the configuration gives in place of what is learnt.
func (p *Parameters) knobs() scheduling.PriceKnobs {
	return scheduling.PriceKnobs{Alpha: p.Alpha, Kappa: p.Kappa, DecodePrice: given(p.DecodePrice, scheduling.DefaultDecodePrice)}
}

// choice checks a name.
func choice(name, got string, valid ...string) error {
	if slices.Contains(valid, got) {
		return nil
	}
	return fmt.Errorf("parameters.%s: must be %s, got %q%s", name, strings.Join(valid, " or "), got, scheduling.Hint(got, valid))
}

// Type describes the filter.
func Type() scheduling.PluginType {
	defaults := DefaultParameters()
	return scheduling.PluginType{
		Type: TypeName,
		Summary: "keeps a request on the endpoints that hold its prefix, until they are so much busier than the others " +
			"that the prefix is not worth the wait",
		Parameters: &defaults,
		New:        newFilter,
	}
}
