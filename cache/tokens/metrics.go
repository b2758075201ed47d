package tokens

import (
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

var (
	descModels = prometheus.NewDesc("sluice_token_models",
		"Models whose bytes per token are learnt.", []string{"producer"}, nil)
	descRatio = prometheus.NewDesc("sluice_token_bytes_per_token",
		"Learnt bytes of prompt text per token.", []string{"producer", "model"}, nil)
	descSamples = prometheus.NewDesc("sluice_token_samples_total",
		"Answers whose prompt length was compared with its text, by whether the ratio was plausible.",
		[]string{"producer", "result"}, nil)
	descGuessed = prometheus.NewDesc("sluice_token_guessed_prompts_total",
		"Requests with a body whose text is not known; their length is a guess.", []string{"producer"}, nil)
)

// collector reads the tables when they are scraped. A model's series lives as long as its ratio: at most 1,000 a
// producer, however many names come and go.
type collector struct{ producers scheduling.Alive[*Producer] }

// Describe sends the metrics' descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descModels, descRatio, descSamples, descGuessed} {
		ch <- d
	}
}

// Collect sends the metrics' values.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.producers.Current() {
		t := p.table
		ch <- prometheus.MustNewConstMetric(descModels, prometheus.GaugeValue, float64(t.models.Len()), p.name)
		for _, model := range t.models.Keys() {
			if r, ok := t.models.Peek(model); ok && utf8.ValidString(model) { // no label value otherwise
				ch <- prometheus.MustNewConstMetric(descRatio, prometheus.GaugeValue, r.bytesPerToken(), p.name, model)
			}
		}
		count := func(n int64, result string) {
			ch <- prometheus.MustNewConstMetric(descSamples, prometheus.CounterValue, float64(n), p.name, result)
		}
		count(t.learned.Load(), "learned")
		count(t.rejected.Load(), "rejected")
		ch <- prometheus.MustNewConstMetric(descGuessed, prometheus.CounterValue, float64(t.guessed.Load()), p.name)
	}
}
