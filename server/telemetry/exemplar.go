package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// exemplarLabel is the label of an exemplar by which dashboards find its trace.
const exemplarLabel = "trace_id"

// observe adds a latency to a histogram. That of a request whose trace is recorded becomes its bucket's exemplar, which
// pages in the OpenMetrics format show.
func observe(h prometheus.Observer, d time.Duration, traceID string) {
	if traceID != "" {
		if e, ok := h.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(d.Seconds(), prometheus.Labels{exemplarLabel: traceID})
			return
		}
	}
	h.Observe(d.Seconds())
}
