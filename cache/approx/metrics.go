package approx

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// What an entry, a distinct hash and a set word take, in bytes; see docs/prefix-cache.md for where the numbers come from.
const (
	entryBytes = 130
	hashBytes  = 30
	wordBytes  = 8
)

// memory is what an index takes, in bytes.
func memory(entries, hashes, words int) int {
	return entries*entryBytes + hashes*hashBytes + words*wordBytes
}

var (
	label       = []string{"producer"}
	descEntries = prometheus.NewDesc("sluice_prefix_index_entries",
		"Entries of the approximate prefix index over all endpoints.", label, nil)
	descHashes = prometheus.NewDesc("sluice_prefix_index_hashes",
		"Distinct block hashes in the approximate prefix index.", label, nil)
	descBytes = prometheus.NewDesc("sluice_prefix_index_bytes",
		"Memory of the approximate prefix index, estimated from its entries.", label, nil)
	descEndpoints = prometheus.NewDesc("sluice_prefix_index_endpoints",
		"Endpoints that the approximate prefix index keeps entries for.", label, nil)
	descBlock = prometheus.NewDesc("sluice_prefix_index_block_size_tokens",
		"Block size of the approximate prefix index in tokens.", label, nil)
	descEvicted = prometheus.NewDesc("sluice_prefix_index_evicted_total",
		"Entries that an endpoint's capacity pushed out of the approximate prefix index.", label, nil)
	descCapped = prometheus.NewDesc("sluice_prefix_index_capped_prompts_total",
		"Prompts longer than the index looks; what lies beyond counts as uncached.", label, nil)
)

// collector reads the indexes when they are scraped, so that requests pay for no gauge.
type collector struct{ producers scheduling.Alive[*Producer] }

// Describe sends the metrics' descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descEntries, descHashes, descBytes, descEndpoints, descBlock, descEvicted, descCapped,
	} {
		ch <- d
	}
}

// Collect sends the metrics' values.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.producers.Current() {
		x := p.index.Load()
		entries, hashes, words, instances := x.size()
		gauge := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), p.name)
		}
		gauge(descEntries, entries)
		gauge(descHashes, hashes)
		gauge(descBytes, memory(entries, hashes, words))
		gauge(descEndpoints, instances)
		gauge(descBlock, x.layout.BlockTokens())
		counter := func(d *prometheus.Desc, v int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), p.name)
		}
		counter(descEvicted, x.evicted.Load())
		counter(descCapped, p.capped.Load())
	}
}
