package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stats counts what the store's plugins do.
type stats struct {
	results         [numResults]atomic.Int64
	bytes           atomic.Int64
	malformed       atomic.Int64
	droppedAdapters atomic.Int64
	losses          [2]atomic.Int64
	seconds         prometheus.Histogram
}

func (s *stats) init() {
	s.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "sluice_engine_scrape_duration_seconds",
		Help:    "Time from asking for an engine's metrics page to its last byte or the failure.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	})
}

func (s *stats) scraped(result Result, took time.Duration, bytes int64) {
	s.results[result].Add(1)
	s.bytes.Add(bytes)
	s.seconds.Observe(took.Seconds())
}

// Scrapes is how many scrapes have ended so.
func (s *Store) Scrapes(result Result) int64 {
	if result >= numResults {
		return 0
	}
	return s.stats.results[result].Load()
}

// census counts endpoints by what is known of them.
type census struct{ fresh, stale, unknown, asleep int }

// census looks at every endpoint.
func (s *Store) census() (c census) {
	staleAfter := s.StaleAfter()
	now := s.now()
	for _, r := range *s.table.Load() {
		if r == nil {
			continue
		}
		last := r.last.Load()
		switch {
		case last == nil:
			c.unknown++
			continue
		case now-last.At > staleAfter:
			c.stale++
		default:
			c.fresh++
		}
		if last.Sleep == Asleep {
			c.asleep++
		}
	}
	return c
}

// collector exports a store to Prometheus.
type collector struct{ store *Store }

var (
	scrapesDesc = prometheus.NewDesc("sluice_engine_scrapes_total",
		"Readings of engines' metrics pages, by how they ended.", []string{"result"}, nil)
	bytesDesc = prometheus.NewDesc("sluice_engine_scrape_bytes_total",
		"Bytes of engines' metrics pages read.", nil, nil)
	malformedDesc = prometheus.NewDesc("sluice_engine_malformed_samples_total",
		"Needed samples on engines' metrics pages that could not be read; their family counted as unknown.", nil, nil)
	droppedDesc = prometheus.NewDesc("sluice_engine_dropped_adapters_total",
		"Adapter names on engines' metrics pages beyond what is kept of one endpoint.", nil, nil)
	lossesDesc = prometheus.NewDesc("sluice_engine_cache_losses_total",
		"Engines seen to have lost their KV cache, by cause.", []string{"cause"}, nil)
	endpointsDesc = prometheus.NewDesc("sluice_engine_metrics_endpoints",
		"Endpoints by the state of what is known of their engine: fresh, stale (too old to be used) or unknown (never read).",
		[]string{"state"}, nil)
	asleepDesc = prometheus.NewDesc("sluice_engine_sleeping_endpoints",
		"Endpoints whose engine said last that it sleeps.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		scrapesDesc, bytesDesc, malformedDesc, droppedDesc, lossesDesc, endpointsDesc, asleepDesc,
	} {
		ch <- d
	}
	c.store.stats.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := &c.store.stats
	for r := range numResults {
		send(ch, scrapesDesc, prometheus.CounterValue, float64(s.results[r].Load()), r.String())
	}
	send(ch, bytesDesc, prometheus.CounterValue, float64(s.bytes.Load()))
	send(ch, malformedDesc, prometheus.CounterValue, float64(s.malformed.Load()))
	send(ch, droppedDesc, prometheus.CounterValue, float64(s.droppedAdapters.Load()))
	for _, cause := range []loss{lostByRestart, lostBySleep} {
		send(ch, lossesDesc, prometheus.CounterValue, float64(s.losses[cause].Load()), cause.String())
	}
	n := c.store.census()
	send(ch, endpointsDesc, prometheus.GaugeValue, float64(n.fresh), "fresh")
	send(ch, endpointsDesc, prometheus.GaugeValue, float64(n.stale), "stale")
	send(ch, endpointsDesc, prometheus.GaugeValue, float64(n.unknown), "unknown")
	send(ch, asleepDesc, prometheus.GaugeValue, float64(n.asleep))
	s.seconds.Collect(ch)
}

// send emits one sample; a label that Prometheus refuses becomes an error of the scrape.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
	metric, err := prometheus.NewConstMetric(d, kind, v, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(d, err)
	}
	ch <- metric
}
