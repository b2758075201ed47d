package rates

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Learnt is what is known of an endpoint.
type Learnt struct {
	// Address is the instance's "ip:port".
	Address string
	// LearntRates are its rates.
	scheduling.LearntRates
	// BreakEven is how many tokens in flight cost as much as one uncached token of a request where nobody decodes.
	BreakEven float64
}

// Rates returns what is known of an instance; ok is false for one that nobody has told of.
func (p *Plugin) Rates(ordinal int, generation uint64) (learnt Learnt, ok bool) {
	in := p.known.endpoints.Find(ordinal, generation)
	if in == nil || in.Value.class.Load() == nil {
		return learnt, false
	}
	return Learnt{in.Endpoint.Address, in.Value.latest(), 1 + p.Pressure().Alpha()}, true
}

// All walks the current instances by ordinal.
func (p *Plugin) All() iter.Seq[Learnt] {
	return func(yield func(Learnt) bool) {
		for i, in := range p.known.endpoints.Shown() {
			if learnt, ok := p.Rates(i, in.Endpoint.Generation); ok && !yield(learnt) {
				return
			}
		}
	}
}

// Pressure is what is known of the pool.
func (p *Plugin) Pressure() scheduling.PoolPressure {
	pressure := *p.known.decode.known.Load()
	pressure.Utilisation = p.known.busy.latest()
	return pressure
}

// Samples is how many requests have taught something of first tokens, and of them how many of decodes too.
func (p *Plugin) Samples() (firstTokens, decodes uint64) {
	return p.known.samples.Load(), p.known.decodeSamples.Load()
}

// MaxEndpointLabels is how many endpoints have metric series of their own.
const MaxEndpointLabels = 1000

// Collector exports what is learnt to Prometheus. NewCollector makes one.
type Collector struct {
	plugins iter.Seq2[string, *Plugin]

	prefill, wait, confidence, breakEven       *prometheus.Desc
	utilisation, stall, company, poolConfident *prometheus.Desc
	samples, decodes, skipped, classes         *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector of the plugins that the sequence yields, by name, at every scrape: those of the
// configuration then in force.
func NewCollector(plugins iter.Seq2[string, *Plugin]) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_rates_"+name, help, append([]string{"producer"}, labels...), nil)
	}
	return &Collector{
		plugins:       plugins,
		prefill:       desc("prefill_tokens_per_second", "Uncached prompt tokens that an endpoint computes in a second, as learnt.", "endpoint"),
		wait:          desc("wait_seconds_per_token", "How long each token in flight on an endpoint makes a request wait, as learnt.", "endpoint"),
		breakEven:     desc("break_even_tokens", "Tokens in flight on an endpoint that cost as much as one uncached token where nobody decodes.", "endpoint"),
		confidence:    desc("confidence", "How far an endpoint's rates are measured, 0 to 1.", "endpoint"),
		utilisation:   desc("utilisation", "Share of the endpoints' time in which they have prompts of this process to compute, 0 to 1."),
		stall:         desc("decode_stall", "By how many seconds each second of prefill holds up each request that decodes on the endpoint."),
		company:       desc("company_seconds", "By how much a request and one in flight on the same endpoint make each other decode longer, for both together."),
		poolConfident: desc("decode_confidence", "How far decode_stall and company_seconds are measured, 0 to 1."),
		samples:       desc("samples_total", "Requests whose time to the first token taught something."),
		decodes:       desc("decode_samples_total", "Requests whose time after the first token taught something."),
		skipped:       desc("skipped_total", "Requests that taught nothing, by reason: failed, moved (served by another endpoint than was picked), not_streamed.", "reason"),
		classes:       desc("classes", "Classes of endpoints that are learnt apart."),
	}
}

// Describe implements prometheus.Collector.
func (m *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.prefill, m.wait, m.breakEven, m.confidence, m.utilisation, m.stall, m.company, m.poolConfident, m.samples, m.decodes, m.skipped, m.classes,
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
		for l := range p.All() {
			if n++; n > MaxEndpointLabels {
				break
			}
			send(m.prefill, prometheus.GaugeValue, 1000/l.PrefillMsPerToken, l.Address)
			send(m.wait, prometheus.GaugeValue, l.WaitMsPerToken/1000, l.Address)
			send(m.breakEven, prometheus.GaugeValue, l.BreakEven, l.Address)
			send(m.confidence, prometheus.GaugeValue, l.Confidence, l.Address)
		}
		pressure := p.Pressure()
		send(m.utilisation, prometheus.GaugeValue, pressure.Utilisation)
		send(m.stall, prometheus.GaugeValue, pressure.DecodeStall)
		send(m.company, prometheus.GaugeValue, pressure.CompanyMs/1000)
		send(m.poolConfident, prometheus.GaugeValue, pressure.Confidence)
		first, decodes := p.Samples()
		send(m.samples, prometheus.CounterValue, float64(first))
		send(m.decodes, prometheus.CounterValue, float64(decodes))
		for i, reason := range skipNames {
			send(m.skipped, prometheus.CounterValue, float64(p.known.skipped[i].Load()), reason)
		}
		send(m.classes, prometheus.GaugeValue, float64(p.known.classes.Len()))
	}
}
