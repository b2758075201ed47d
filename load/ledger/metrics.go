package ledger

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// EndpointLoad is what is in flight on one endpoint instance.
type EndpointLoad struct {
	// Address is the instance's "ip:port".
	Address string
	// Ordinal and Generation name the instance.
	Ordinal    int
	Generation uint64
	// InFlightLoad is what is in flight on it.
	scheduling.InFlightLoad
}

// Load returns what is in flight on an instance; ok is false for one that the ledger does not have (any more).
func (p *Plugin) Load(ordinal int, generation uint64) (load scheduling.InFlightLoad, ok bool) {
	k := p.table.find(ordinal, generation)
	if k == nil {
		return load, false
	}
	return k.load(), true
}

// Loads walks the current instances by ordinal.
func (p *Plugin) Loads() iter.Seq[EndpointLoad] {
	return func(yield func(EndpointLoad) bool) {
		for i, in := range p.table.counters.Shown() {
			if !yield(EndpointLoad{in.Endpoint.Address, i, in.Endpoint.Generation, in.Value.load()}) {
				return
			}
		}
	}
}

// ChargedWithoutMatchInfo is the number of requests with a prompt that were charged in full because their endpoint had
// no usable match info. A number that grows as fast as the requests means that no index is wired to the ledger.
func (p *Plugin) ChargedWithoutMatchInfo() uint64 { return p.table.withoutMatch.Load() }

// ChargedWithoutTokens is the number of requests whose input was guessed from their bytes because the token producer
// said nothing.
func (p *Plugin) ChargedWithoutTokens() uint64 { return p.table.withoutTokens.Load() }

// Released is the number of charges released for a reason.
func (p *Plugin) Released(reason scheduling.EndReason) uint64 {
	if int(reason) >= endReasons {
		return 0
	}
	return p.table.releases[reason].Load()
}

// MaxEndpointLabels is how many endpoints have metric series of their own; what is in flight on further ones is summed
// under the label value OtherEndpoints.
const (
	MaxEndpointLabels = 1000
	OtherEndpoints    = "other"
)

// Collector exports ledgers to Prometheus. NewCollector makes one.
type Collector struct {
	ledgers iter.Seq2[string, *Plugin]

	requests, tokens, decoding            *prometheus.Desc
	withoutMatch, withoutTokens, releases *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector of the ledgers that the sequence yields, by plugin name, at every scrape: those of
// the configuration then in force.
func NewCollector(ledgers iter.Seq2[string, *Plugin]) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_ledger_"+name, help, append([]string{"producer"}, labels...), nil)
	}
	return &Collector{
		ledgers:       ledgers,
		requests:      desc("inflight_requests", "Requests in flight on an endpoint.", "endpoint"),
		tokens:        desc("inflight_tokens", "Uncached prompt tokens not yet prefilled on an endpoint, plus estimated output where configured.", "endpoint"),
		decoding:      desc("decoding_requests", "Requests in flight on an endpoint that are past their first token.", "endpoint"),
		withoutMatch:  desc("charged_without_match_info_total", "Requests charged in full because no usable prefix match info was there."),
		withoutTokens: desc("charged_without_tokens_total", "Requests charged by their bytes because no token count was there."),
		releases:      desc("releases_total", "Charges released, by how the stream ended.", "release"),
	}
}

// Describe implements prometheus.Collector.
func (m *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.tokens, m.decoding, m.withoutMatch, m.withoutTokens, m.releases} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Collector) Collect(ch chan<- prometheus.Metric) {
	for name, p := range m.ledgers {
		m.collectLoads(ch, name, p)
		send(ch, m.withoutMatch, prometheus.CounterValue, float64(p.ChargedWithoutMatchInfo()), name)
		send(ch, m.withoutTokens, prometheus.CounterValue, float64(p.ChargedWithoutTokens()), name)
		for r := range endReasons {
			reason := scheduling.EndReason(r)
			send(ch, m.releases, prometheus.CounterValue, float64(p.Released(reason)), name, reason.String())
		}
	}
}

func (m *Collector) collectLoads(ch chan<- prometheus.Metric, name string, p *Plugin) {
	gauges := func(endpoint string, l scheduling.InFlightLoad) {
		send(ch, m.requests, prometheus.GaugeValue, float64(l.Requests), name, endpoint)
		send(ch, m.tokens, prometheus.GaugeValue, float64(l.Tokens), name, endpoint)
		send(ch, m.decoding, prometheus.GaugeValue, float64(l.Decoding), name, endpoint)
	}
	var rest scheduling.InFlightLoad
	n := 0
	for l := range p.Loads() {
		if n++; n <= MaxEndpointLabels {
			gauges(l.Address, l.InFlightLoad)
			continue
		}
		rest.Requests += l.Requests
		rest.Tokens += l.Tokens
		rest.Decoding += l.Decoding
	}
	if n > MaxEndpointLabels {
		gauges(OtherEndpoints, rest)
	}
}

// send emits one sample; a label that Prometheus refuses becomes an error of the scrape.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
	metric, err := prometheus.NewConstMetric(d, kind, v, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(d, err)
	}
	ch <- metric
}
