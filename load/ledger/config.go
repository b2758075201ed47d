package ledger

import (
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "inflight-load-producer"

// maxOutputRatio bounds outputRatio: nothing generates a thousand times its prompt, so a larger value is a slip.
const maxOutputRatio = 1000

// Parameters are the plugin's parameters.
type Parameters struct {
	// PrefixMatchInfoProducerName names the producer of PrefixCacheMatchInfo; empty means the only one there is.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// TokenProducerName names the producer of TokenizedPrompt; empty means the only one there is.
	TokenProducerName string `yaml:"tokenProducerName"`
	// AddEstimatedOutputTokens charges the output that a request is expected to generate, too.
	AddEstimatedOutputTokens bool `yaml:"addEstimatedOutputTokens"`
	// OutputRatio is the expected number of output tokens per input token, above 0 and at most 1000.
	OutputRatio float64 `yaml:"outputRatio"`
	// MaxEstimatedOutputTokens bounds the estimate per choice, in tokens; 0 means no bound.
	MaxEstimatedOutputTokens int64 `yaml:"maxEstimatedOutputTokens"`
}

// DefaultParameters returns the parameters of a plugin without a parameters section.
func DefaultParameters() Parameters { return Parameters{OutputRatio: 1.5} }

// Validate reports every parameter that is out of range.
func (p Parameters) Validate() error {
	var errs []error
	if !(p.OutputRatio > 0 && p.OutputRatio <= maxOutputRatio) { // also refuses NaN
		errs = append(errs, fmt.Errorf("parameters.outputRatio: must be > 0 and at most %d, got %v", maxOutputRatio, p.OutputRatio))
	}
	if p.MaxEstimatedOutputTokens < 0 || p.MaxEstimatedOutputTokens > maxTokens {
		errs = append(errs, fmt.Errorf("parameters.maxEstimatedOutputTokens: must be from 0 (no bound) to %d, got %d",
			int64(maxTokens), p.MaxEstimatedOutputTokens))
	}
	return errors.Join(errs...)
}

// Type describes the plugin. It is what produces InFlightLoad and UncachedRequestTokens where nothing else does.
func Type() scheduling.PluginType {
	defaults := DefaultParameters()
	return scheduling.PluginType{
		Type:    TypeName,
		Summary: "counts requests and uncached tokens in flight on each endpoint, and says what this request would add",
		DefaultFor: []string{
			scheduling.DataTypeOf[scheduling.InFlightLoad](),
			scheduling.DataTypeOf[scheduling.UncachedRequestTokens](),
		},
		Parameters: &defaults,
		New:        newPlugin,
	}
}
