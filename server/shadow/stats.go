package shadow

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling/explain"
)

// Why a decision is not compared.
const (
	droppedFull = iota
	droppedPanic
	droppedReload
	droppedReasons
)

var droppedNames = [droppedReasons]string{"full", "panic", "reload"}

// recent is how many decisions weigh in the share of agreement, about: each counts for one of so many.
const recent = 1000

// stats are what a Shadow counts.
type stats struct {
	compared  [explain.ByEndpoint + 1]atomic.Int64 // by cause
	dropped   [droppedReasons]atomic.Int64
	agreement atomic.Uint64 // a float64's bits; NaN before the first

	// Of the two configurations that are compared now; under Shadow.deciding.
	agreed, all int64
}

// begin forgets how often two configurations agreed: others are compared from now on.
func (s *stats) begin() {
	s.agreed, s.all = 0, 0
	s.agreement.Store(math.Float64bits(math.NaN()))
}

// count counts a comparison. One goroutine does.
func (s *stats) count(cause explain.Cause) {
	s.compared[cause].Add(1)
	s.all++
	agreed := 0.0
	if cause == explain.Unchanged {
		agreed = 1
		s.agreed++
	}
	share := math.Float64frombits(s.agreement.Load())
	if s.all <= recent { // the mean of all, at first
		share = float64(s.agreed) / float64(s.all)
	} else {
		share += (agreed - share) / recent
	}
	s.agreement.Store(math.Float64bits(share))
}

// series are metrics that are there only where a shadow is.
type series struct {
	of    *Shadow
	parts []prometheus.Collector
}

// Describe implements prometheus.Collector.
func (s *series) Describe(to chan<- *prometheus.Desc) {
	for _, p := range s.parts {
		p.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *series) Collect(to chan<- prometheus.Metric) {
	if s.of.current.Load() == nil {
		return
	}
	for _, p := range s.parts {
		p.Collect(to)
	}
}

// register registers the metrics, which are read at the moment of a scrape.
func (s *Shadow) register(reg prometheus.Registerer) error {
	all := &series{of: s}
	counter := func(name, help, label, value string, of *atomic.Int64) {
		all.parts = append(all.parts, prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{label: value}}, func() float64 { return float64(of.Load()) }))
	}
	for i := range s.stats.compared {
		result := explain.Cause(i).String()
		if explain.Cause(i) == explain.Unchanged {
			result = "agreed"
		}
		counter("sluice_shadow_decisions_total", "Decisions that shadow.config decided too, by result: agreed (the same first pick), or what made the pick another one: "+
			"gate, filter, scorer, draw (equal scores), picker, endpoint.", "result", result, &s.stats.compared[i])
	}
	for i := range s.stats.dropped {
		counter("sluice_shadow_dropped_total", "Decisions of the sample that were not compared, by reason: full (they come faster than they are compared), panic (of shadow.config), reload.",
			"reason", droppedNames[i], &s.stats.dropped[i])
	}
	gauge := func(name, help string, read func() float64) {
		all.parts = append(all.parts, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	gauge("sluice_shadow_agreement_ratio", "Share of decisions on which shadow.config agrees, 0 to 1, of about the last 1,000 since either configuration changed; NaN before the first.",
		func() float64 { return math.Float64frombits(s.stats.agreement.Load()) })
	gauge("sluice_shadow_queue_length", "Decisions that wait to be compared; at most 256.", func() float64 { return float64(len(s.queue)) })
	return reg.Register(all)
}
