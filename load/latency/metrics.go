package latency

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Known is what is known of an endpoint.
type Known struct {
	// Address is the instance's "ip:port".
	Address string
	// Slowness is by what factor it is slower than others of its class.
	Slowness float64
	// ErrorShare is the mean of |seen − predicted| over seen, of the latest times to a first token.
	ErrorShare float64
	// PrefillMsPerToken is what an uncached prompt token is predicted to take on it, in ms.
	PrefillMsPerToken float64
	// Confidence is how far its predictions are measured, 0 to 1.
	Confidence float64
}

// All walks the current instances by ordinal.
func (p *Plugin) All() iter.Seq[Known] {
	return func(yield func(Known) bool) {
		for _, in := range p.known.endpoints.Shown() {
			if known, ok := p.known.latest(in); ok && !yield(known) {
				return
			}
		}
	}
}

// latest is what is known of an instance; ok is false for one that nobody has told of.
func (k *knowledge) latest(in *scheduling.Instance[endpoint]) (known Known, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &in.Value
	if e.class == nil {
		return known, false
	}
	m, slow := e.class.known.Load(), e.slow.latest()
	return Known{
		Address: in.Endpoint.Address, Slowness: slow, ErrorShare: e.error.share,
		PrefillMsPerToken: m.ttft[ttftOwn] * slow, Confidence: e.confidence(m, k.clock),
	}, true
}

// MaxEndpointLabels is how many endpoints have metric series of their own.
const MaxEndpointLabels = 1000

// Collector exports what is learnt to Prometheus. NewCollector makes one.
type Collector struct {
	plugins iter.Seq2[string, *Plugin]

	slowness, errors, prefill, confidence *prometheus.Desc
	samples, tpot, skipped, unread        *prometheus.Desc
	forests, failed, trusted, classes     *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector of the plugins that the sequence yields, by name, at every scrape: those of the
// configuration then in force.
func NewCollector(plugins iter.Seq2[string, *Plugin]) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_latency_"+name, help, append([]string{"producer"}, labels...), nil)
	}
	return &Collector{
		plugins:    plugins,
		slowness:   desc("slowness_ratio", "By what factor an endpoint is slower than others of its class, as learnt.", "endpoint"),
		errors:     desc("prediction_error_ratio", "Mean of |seen - predicted| over seen, of an endpoint's latest times to the first token.", "endpoint"),
		prefill:    desc("prefill_seconds_per_token", "What an uncached prompt token is predicted to take on an endpoint.", "endpoint"),
		confidence: desc("confidence", "How far an endpoint's predictions are measured, 0 to 1.", "endpoint"),
		samples:    desc("samples_total", "Requests whose time to the first token taught something."),
		tpot:       desc("tpot_samples_total", "Requests whose time per output token taught something."),
		skipped: desc("skipped_total", "Requests that taught nothing, by reason: failed, moved (served by another endpoint than was picked), "+
			"not_generated (a list of models, an embedding), not_streamed, just_started (of the first of a new process), endpoint_gone.", "reason"),
		unread: desc("objectives_unread_total", "Requests with a header that asks for a latency and whose value is not a number of ms above 0, "+
			"at most a day: that header counts for nothing."),
		forests: desc("forests_total", "Forests of trees whose growth was begun."),
		failed:  desc("forests_failed_total", "Forests whose growth ended in a fault of the program: the one before stays in use."),
		trusted: desc("forests_trusted", "Classes whose forest makes predictions better, and is used."),
		classes: desc("classes", "Classes of endpoints that are learnt apart."),
	}
}

// Describe implements prometheus.Collector.
func (m *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.slowness, m.errors, m.prefill, m.confidence, m.samples, m.tpot, m.skipped, m.unread, m.forests, m.failed, m.trusted, m.classes,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Collector) Collect(ch chan<- prometheus.Metric) {
	for name, p := range m.plugins {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
			metric, err := prometheus.NewConstMetric(d, kind, v, append([]string{name}, labels...)...)
			if err != nil {
				metric = prometheus.NewInvalidMetric(d, err)
			}
			ch <- metric
		}
		n := 0
		for e := range p.All() {
			if n++; n > MaxEndpointLabels {
				break
			}
			send(m.slowness, prometheus.GaugeValue, e.Slowness, e.Address)
			send(m.errors, prometheus.GaugeValue, e.ErrorShare, e.Address)
			send(m.prefill, prometheus.GaugeValue, e.PrefillMsPerToken/1000, e.Address)
			send(m.confidence, prometheus.GaugeValue, e.Confidence, e.Address)
		}
		k := p.known
		send(m.samples, prometheus.CounterValue, float64(k.samples.Load()))
		send(m.tpot, prometheus.CounterValue, float64(k.tpotSamples.Load()))
		for i, reason := range skipNames {
			send(m.skipped, prometheus.CounterValue, float64(k.skipped[i].Load()), reason)
		}
		send(m.unread, prometheus.CounterValue, float64(k.unread.Load()))
		kinds := k.kinds()
		trusted := kinds.Count(func(c *class) bool { return c.known.Load().forest != nil })
		send(m.forests, prometheus.CounterValue, float64(k.forests.Load()))
		send(m.failed, prometheus.CounterValue, float64(k.failed.Load()))
		send(m.trusted, prometheus.GaugeValue, float64(trusted))
		send(m.classes, prometheus.GaugeValue, float64(kinds.Len()))
	}
}
