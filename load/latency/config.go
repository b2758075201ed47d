package latency

import (
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "predicted-latency-producer"

// Parameters are the plugin's parameters.
type Parameters struct {
	// PrefixMatchInfoProducerName names the producer of PrefixCacheMatchInfo; empty means the only one there is.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// InFlightLoadProducerName names the producer of the load and of requests' uncached tokens; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// EngineMetricsProducerName names the producer of the engine metrics; empty means the only one.
	EngineMetricsProducerName string `yaml:"engineMetricsProducerName"`
	// SLOBufferFactor multiplies a request's latency objectives before the headroom is computed: below 1 keeps a reserve.
	SLOBufferFactor float64 `yaml:"sloBufferFactor"`
	// StreamingMode says that clients stream their answers: what is predicted is the time to the first token. Where it is false it
	// is the time to the end of the whole response, as where nobody streams, and a file without a profile gets the one by cost.
	StreamingMode bool `yaml:"streamingMode"`
	// ClassLabel is a label of endpoints; those with the same value of it, and the same engine, are taken to be alike. Empty: all of
	// an engine are.
	ClassLabel string `yaml:"classLabel"`
	// PeakPrefillThroughput is what an endpoint is taken to prefill until it has been measured, in tokens per second.
	PeakPrefillThroughput float64 `yaml:"peakPrefillThroughput"`
}

// DefaultParameters returns the parameters of a plugin without a parameters section.
func DefaultParameters() Parameters {
	return Parameters{SLOBufferFactor: 1, StreamingMode: true, PeakPrefillThroughput: scheduling.DefaultPrefillThroughput}
}

// maxBuffer is ten times what was asked for: a larger value is a slip.
const maxBuffer = 10

// Validate reports every parameter that is out of range.
func (p Parameters) Validate() error {
	errs := []error{scheduling.CheckPrefillThroughput(p.PeakPrefillThroughput)}
	if !(p.SLOBufferFactor > 0 && p.SLOBufferFactor <= maxBuffer) {
		errs = append(errs, fmt.Errorf("parameters.sloBufferFactor: must be > 0 and at most %d, got %v", maxBuffer, p.SLOBufferFactor))
	}
	return errors.Join(errs...)
}

// learnsAs reports whether what was learnt under other parameters holds under these.
func (p Parameters) learnsAs(other Parameters) bool {
	return p.StreamingMode == other.StreamingMode && p.ClassLabel == other.ClassLabel && p.PeakPrefillThroughput == other.PeakPrefillThroughput
}

// classes are those of endpoints of which nothing has been learnt.
func (p Parameters) classes() *classes.Set[class] {
	return classes.New(p.ClassLabel, func() *class { return newClass(p.PeakPrefillThroughput/1000, !p.StreamingMode) })
}

// Type describes the plugin. It is what produces LatencyPrediction where nothing else does.
func Type() scheduling.PluginType {
	defaults := DefaultParameters()
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "predicts the time to the first token and the time per output token on each endpoint, and learns from what comes",
		DefaultFor: []string{scheduling.DataTypeOf[scheduling.LatencyPrediction](), scheduling.DataTypeOf[scheduling.LatencyObjective]()},
		Parameters: &defaults,
		New:        newPlugin,
	}
}
