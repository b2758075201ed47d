// Package telemetry is what Sluice tells its operators: Prometheus metrics with bounded labels, logs with bounded rates,
// and traces.
package telemetry

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Metrics counts what happens to requests. It implements extproc.Observer.
type Metrics struct {
	models *Label

	requests      *prometheus.CounterVec
	notes         *prometheus.CounterVec
	faults        *prometheus.CounterVec
	picks         *prometheus.CounterVec
	ended         *prometheus.CounterVec
	gates         gates
	predictions   predictions
	decision      prometheus.Histogram
	firstToken    *prometheus.HistogramVec
	duration      *prometheus.HistogramVec
	promptTokens  *prometheus.CounterVec
	cachedTokens  *prometheus.CounterVec
	matchedTokens *prometheus.CounterVec
	outputTokens  *prometheus.CounterVec
}

// NewMetrics registers the metrics. models are the configured model names, which always keep their own label; limit is how
// many others get one, 0 for DefaultLabelValues.
func NewMetrics(reg prometheus.Registerer, limit int, models ...string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		reg.MustRegister(v)
		return v
	}
	latency := prometheus.ExponentialBuckets(0.005, 2, 15) // 5 ms to 82 s
	m := &Metrics{
		models: NewLabel(cmp.Or(limit, DefaultLabelValues), models...),
		requests: counter("sluice_requests_total",
			"Requests that a pick was asked for, by API, model and result (picked, or no_endpoint).", "operation", "model", "result"),
		notes: counter("sluice_notes_total",
			"Unusual events and answered errors, by kind.", "kind"),
		faults: counter("sluice_producer_faults_total",
			"Requests decided without what a producer would have known, by producer.", "producer"),
		picks: counter("sluice_picks_total",
			"Picks, by endpoint.", "endpoint"),
		ended: counter("sluice_ended_total",
			"Ends of picked requests, by reason: complete, error, disconnect, or estimated where the end is not seen.", "reason"),
		gates:       newGates(counter, histogram),
		predictions: newPredictions(histogram, latency),
		firstToken: histogram("sluice_first_token_seconds",
			"Time from the pick to the first token of streamed answers.", latency, "model"),
		duration: histogram("sluice_request_seconds",
			"Time from the pick to the end of the response.", latency, "model"),
		promptTokens: counter("sluice_prompt_tokens_total",
			"Input tokens as the engines counted them.", "model"),
		cachedTokens: counter("sluice_cached_tokens_total",
			"Input tokens that the engines reported as cached.", "model"),
		matchedTokens: counter("sluice_matched_tokens_total",
			"Input tokens that Sluice knew to be cached on the picked endpoint.", "model"),
		outputTokens: counter("sluice_output_tokens_total",
			"Generated tokens as the engines counted them.", "model"),
	}
	m.decision = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "sluice_decision_seconds", Help: "Time from a complete request to its decision.",
		Buckets: prometheus.ExponentialBuckets(5e-6, 2, 16)}) // 5 µs to 164 ms
	reg.MustRegister(m.decision, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_model_labels", Help: "Model names with a metric label of their own, the configured ones included.",
	}, func() float64 { return float64(m.models.Len()) }))
	return m
}

// Expect shows the counters of these kinds from the start: an alert must be able to tell none from unknown.
func (m *Metrics) Expect(kinds ...string) {
	for _, k := range kinds {
		m.notes.WithLabelValues(k)
	}
}

// Picked counts a decision.
func (m *Metrics) Picked(c *scheduling.Cycle, f *scheduling.Flight, took time.Duration) {
	result := "picked"
	if f == nil {
		result = "no_endpoint"
	}
	model := m.models.Known(c.Request.Model)
	m.requests.WithLabelValues(c.Request.Operation.String(), model, result).Inc()
	observe(m.decision, took, c.Request.TraceID)
	for i := range c.Faults {
		m.faults.WithLabelValues(c.Faults[i].Producer).Inc()
	}
	for i := range c.Gates {
		m.gates.judged(&c.Gates[i])
	}
	if f == nil {
		return
	}
	m.gates.picked(c, f)
	m.picks.WithLabelValues(f.Endpoint.Address).Inc()
	if info, ok := scheduling.ColumnOf[scheduling.PrefixCacheMatchInfo](c).Get(f.Endpoint.Ordinal); ok {
		m.matchedTokens.WithLabelValues(model).Add(float64(max(0, info.CachedBlockCount*info.BlockSizeTokens)))
	}
}

// Ended counts the end of a picked request.
func (m *Metrics) Ended(f *scheduling.Flight, outcome scheduling.Outcome, firstToken, total time.Duration) {
	m.ended.WithLabelValues(outcome.Reason.String()).Inc()
	// Only a model that an engine has answered for takes a label: clients could make names up without end.
	model := m.models.Known(f.Model)
	if outcome.Status >= 200 && outcome.Status < 300 {
		model = m.models.Value(f.Model)
	}
	if firstToken >= 0 {
		observe(m.firstToken.WithLabelValues(model), firstToken, f.TraceID)
		m.predictions.seen(f, model, firstToken)
	}
	if outcome.Reason != scheduling.EndComplete {
		return
	}
	observe(m.duration.WithLabelValues(model), total, f.TraceID)
	add := func(v *prometheus.CounterVec, n int) {
		if n > 0 {
			v.WithLabelValues(model).Add(float64(n))
		}
	}
	add(m.promptTokens, outcome.Usage.PromptTokens)
	add(m.cachedTokens, outcome.Usage.CachedTokens)
	add(m.outputTokens, outcome.Usage.CompletionTokens)
}

// Noted counts something unusual.
func (m *Metrics) Noted(kind string) { m.notes.WithLabelValues(kind).Inc() }

// EndpointsChanged drops the series of endpoints that left the pool.
func (m *Metrics) EndpointsChanged(left []string) {
	for _, address := range left {
		m.picks.DeleteLabelValues(address)
	}
}
