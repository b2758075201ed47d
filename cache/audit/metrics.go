package audit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Index is the kind of index that predictions come from.
type Index string

// The kinds. A producer may have both: what it cannot look up in the precise one it asks the approximate one for.
const (
	Precise     Index = "precise"
	Approximate Index = "approximate"
)

// MaxEndpointLabels is how many endpoints have series of their own; what further ones have is summed under the label value
// OtherEndpoints.
const (
	MaxEndpointLabels = 1000
	OtherEndpoints    = "other"
)

// Collector exports tables to Prometheus. It reads them when it is scraped, so that answers pay for no metric. A nil one
// takes tables in and does nothing with them.
type Collector struct {
	tables scheduling.Alive[*source]
}

type source struct {
	producer string
	index    Index
	table    *Table
}

// NewCollector returns a collector, registered with reg unless that is nil. One for each registry.
func NewCollector(reg prometheus.Registerer) *Collector {
	c := &Collector{}
	if reg != nil {
		reg.MustRegister(c)
	}
	return c
}

// Add shows a producer's table until withdraw is called. Of two of the same producer and index the later one is shown.
func (c *Collector) Add(producer string, index Index, t *Table) (withdraw func()) {
	if c == nil {
		return func() {}
	}
	s := &source{producer, index, t}
	c.tables.Add(producer+" "+string(index), s)
	return func() { c.tables.Remove(s) }
}

func desc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_prefix_cache_"+name, help, append([]string{"producer", "index", "endpoint"}, more...), nil)
}

var (
	descOutcomes = desc("predictions_total", "Answers that said how many of their prompt's tokens were cached, by how that compares with what was "+
		"predicted at the pick: exact (to the block), over (a false hit: less was cached), under (a miss: more was cached), or unconfirmed "+
		"(a hit predicted, none reported, by an engine that never reported any).", "outcome")
	descPredicted = desc("predicted_tokens_total", "Cached tokens predicted at the pick, over the exact, over and under answers of sluice_prefix_cache_predictions_total.")
	descReported  = desc("reported_tokens_total", "Cached tokens that engines reported for the same answers.")
	descOver      = desc("overpredicted_tokens_total", "Tokens of the same answers that were predicted to be cached and were not.")
	descUnder     = desc("underpredicted_tokens_total", "Tokens of the same answers that were cached and not predicted to be.")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descOutcomes, descPredicted, descReported, descOver, descUnder} {
		to <- d
	}
}

// Collect implements prometheus.Collector. An endpoint without answers to audit has no series.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, s := range c.tables.Current() {
		var rest Counts
		shown := 0
		for _, in := range s.table.endpoints.Shown() {
			counts := in.Value.counts()
			switch {
			case counts.Answers+counts.Unconfirmed == 0:
			case shown == MaxEndpointLabels:
				rest.add(counts)
			default:
				shown++
				s.send(to, in.Endpoint.Address, counts)
			}
		}
		if rest.Answers+rest.Unconfirmed > 0 {
			s.send(to, OtherEndpoints, rest)
		}
	}
}

func (s *source) send(to chan<- prometheus.Metric, endpoint string, c Counts) {
	count := func(d *prometheus.Desc, v int64, more ...string) {
		m, err := prometheus.NewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.producer, string(s.index), endpoint}, more...)...)
		if err != nil { // a label that Prometheus refuses is an error of the scrape
			m = prometheus.NewInvalidMetric(d, err)
		}
		to <- m
	}
	count(descOutcomes, c.Answers-c.FalseHits-c.Misses, "exact")
	count(descOutcomes, c.FalseHits, "over")
	count(descOutcomes, c.Misses, "under")
	count(descOutcomes, c.Unconfirmed, "unconfirmed")
	count(descPredicted, c.Predicted)
	count(descReported, c.Reported)
	count(descOver, c.Over)
	count(descUnder, c.Under)
}
