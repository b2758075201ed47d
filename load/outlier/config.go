package outlier

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "outlier-detection-filter"

// maxEjection bounds how long an endpoint can be left out: an engine that is back must be found again.
const maxEjection = time.Hour

// Parameters are the plugin's parameters.
type Parameters struct {
	// ConsecutiveFailures is how many requests in a row an endpoint must fail to be ejected: 1 to 1000.
	ConsecutiveFailures int `yaml:"consecutiveFailures"`
	// BaseEjectionTime is how long the first ejection lasts, 1ms to 1h; each one that follows without a success in between
	// lasts twice as long.
	BaseEjectionTime time.Duration `yaml:"baseEjectionTime"`
	// MaxEjectionTime bounds an ejection: BaseEjectionTime to 1h.
	MaxEjectionTime time.Duration `yaml:"maxEjectionTime"`
}

// DefaultParameters returns the parameters of a plugin without a parameters section.
func DefaultParameters() Parameters {
	return Parameters{ConsecutiveFailures: 3, BaseEjectionTime: time.Second, MaxEjectionTime: 30 * time.Second}
}

// Validate reports every parameter that is out of range.
func (p Parameters) Validate() error {
	var errs []error
	if p.ConsecutiveFailures < 1 || p.ConsecutiveFailures > 1000 {
		errs = append(errs, fmt.Errorf("parameters.consecutiveFailures: must be from 1 to 1000, got %d", p.ConsecutiveFailures))
	}
	if p.BaseEjectionTime < time.Millisecond || p.BaseEjectionTime > maxEjection {
		errs = append(errs, fmt.Errorf("parameters.baseEjectionTime: must be from 1ms to %v, got %v", maxEjection, p.BaseEjectionTime))
	}
	if p.MaxEjectionTime < p.BaseEjectionTime || p.MaxEjectionTime > maxEjection {
		errs = append(errs, fmt.Errorf("parameters.maxEjectionTime: must be from baseEjectionTime (%v) to %v, got %v",
			p.BaseEjectionTime, maxEjection, p.MaxEjectionTime))
	}
	return errors.Join(errs...)
}

// Options are what the plugin is given by the process.
type Options struct {
	// Logger is told of ejections and returns; nil for nobody.
	Logger *slog.Logger
	// Registerer is where metrics go; nil for nowhere.
	Registerer prometheus.Registerer
}

// Type describes the plugin. To be called once per Registerer.
func Type(o Options) scheduling.PluginType {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	counts := newCounts(o.Registerer)
	defaults := DefaultParameters()
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Leaves endpoints out for a while that failed several requests in a row, as long as others are left.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			params := DefaultParameters()
			if err := b.Parameters(&params); err != nil {
				return nil, err
			}
			if err := params.Validate(); err != nil {
				return nil, err
			}
			f := &Filter{
				params: params, logger: o.Logger, counts: counts, state: scheduling.KeepState[pick](b), table: &table{},
				column: scheduling.ProduceColumn[scheduling.Ejected](b),
			}
			if before, ok := b.Previous.(*Filter); ok {
				f.table = before.table
			}
			return f, nil
		},
	}
}

// counts are the plugin's metrics.
type counts struct {
	failures, ejections, returns prometheus.Counter
	ejected                      prometheus.Gauge
}

func newCounts(reg prometheus.Registerer) *counts {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_outlier_" + name, Help: help})
	}
	c := &counts{
		failures:  counter("failures_total", "Requests that an endpoint failed: a 5xx, or a retry elsewhere."),
		ejections: counter("ejections_total", "Times that an endpoint was left out for failing."),
		returns:   counter("returns_total", "Times that an endpoint served again after having been left out."),
		ejected:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_outlier_ejected_endpoints", Help: "Endpoints that failed and have not served again since."}),
	}
	if reg != nil {
		reg.MustRegister(c.failures, c.ejections, c.returns, c.ejected)
	}
	return c
}
