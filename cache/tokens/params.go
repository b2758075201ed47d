package tokens

import (
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// Parameters are the plugin's parameters.
type Parameters struct {
	// ModelName names the model whose tokenizer counts. Estimates are kept per model that requests name and need no
	// name, so it is read and not used.
	ModelName string `yaml:"modelName"`
	// Backend says who counts: "estimate", also when empty.
	Backend string `yaml:"backend"`
	// Estimate configures estimates; it may be empty.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM configures counting by an engine.
	VLLM any `yaml:"vllm"`
	// BytesPerToken is the ratio that a model starts at; 0 means 4.
	BytesPerToken float64 `yaml:"bytesPerToken"`
}

const defaultBytesPerToken = 4

// The backends that configuration files name.
const (
	backendEstimate = "estimate"
	backendVLLM     = "vllm"
)

var errNoEngine = errors.New(`counting tokens by an engine is not in this version; "estimate" is`)

func (p *Parameters) complete() error {
	if p.VLLM != nil {
		return fmt.Errorf("parameters.vllm: %w", errNoEngine)
	}
	switch p.Backend {
	case "", backendEstimate:
	case backendVLLM:
		return fmt.Errorf("parameters.backend: %w", errNoEngine)
	default:
		hint := scheduling.Hint(p.Backend, []string{backendEstimate, backendVLLM})
		return fmt.Errorf("parameters.backend: must be %q, got %q%s", backendEstimate, p.Backend, hint)
	}
	if p.BytesPerToken == 0 {
		p.BytesPerToken = defaultBytesPerToken
	}
	if !(p.BytesPerToken >= minRatio && p.BytesPerToken <= maxRatio) { // false for NaN too
		return fmt.Errorf("parameters.bytesPerToken: must be %v to %v, got %v", minRatio, maxRatio, p.BytesPerToken)
	}
	return nil
}
