package rates

import (
	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "learnt-rates-producer"

// DefaultPeakPrefillThroughput is where learning starts, in tokens per second: the measured peak of Qwen3-32B on two H100
// (tensor parallel).
const DefaultPeakPrefillThroughput = scheduling.DefaultPrefillThroughput

// Parameters are the plugin's parameters.
type Parameters struct {
	// InFlightLoadProducerName names the producer of the load and of requests' uncached tokens; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// ClassLabel is a label of endpoints; those with the same value of it, and the same engine, are taken to be alike. Empty: all of
	// an engine are.
	ClassLabel string `yaml:"classLabel"`
	// PeakPrefillThroughput is what an endpoint is taken to prefill until it has been measured, in tokens per second.
	PeakPrefillThroughput float64 `yaml:"peakPrefillThroughput"`
}

// DefaultParameters returns the parameters of a plugin without a parameters section.
func DefaultParameters() Parameters {
	return Parameters{PeakPrefillThroughput: DefaultPeakPrefillThroughput}
}

// Validate reports every parameter that is out of range.
func (p Parameters) Validate() error {
	return scheduling.CheckPrefillThroughput(p.PeakPrefillThroughput)
}

// Type describes the plugin. It is what produces LearntRates and PoolPressure where nothing else does.
func Type() scheduling.PluginType {
	defaults := DefaultParameters()
	return scheduling.PluginType{
		Type:    TypeName,
		Summary: "learns what prefill and decode cost on each endpoint from the times of requests and what engines say was cached",
		DefaultFor: []string{
			scheduling.DataTypeOf[scheduling.LearntRates](),
			scheduling.DataTypeOf[scheduling.PoolPressure](),
		},
		Parameters: &defaults,
		New:        newPlugin,
	}
}
