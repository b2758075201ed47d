package tokens

import (
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/tokens/render"
	"github.com/sluice-epp/sluice/scheduling"
)

var (
	descModels  = desc("sluice_token_models", "Models whose bytes per token are learnt.")
	descRatio   = desc("sluice_token_bytes_per_token", "Learnt bytes of prompt text per token.", "model")
	descSamples = desc("sluice_token_samples_total",
		"Answers whose prompt length was compared with its text, by whether the ratio was plausible.", "result")
	descGuessed = desc("sluice_token_guessed_prompts_total",
		"Requests with a body whose text is not known; their length is a guess.")

	descExact   = desc("sluice_token_exact_prompts_total", "Requests whose prompt's tokens are known exactly, by where they come from.", "source")
	descInexact = desc("sluice_token_inexact_prompts_total",
		"Requests that went on with an estimate although an engine counts tokens, by the reason.", "reason")
	descChecks = desc("sluice_token_checks_total",
		"Prompts whose own tokens were compared with what the engine said of them, by model and result.", "model", "result")
	descMismatch = desc("sluice_token_mismatch_ratio", "Share of mismatches among a model's last 64 checks.", "model")
	descDemoted  = desc("sluice_token_model_demoted", "Whether a model's tokens are not used, because they are not what its engines count.", "model")
	descLookups  = desc("sluice_token_memo_lookups_total", "Requests looked up among the prompts rendered before, by result.", "result")
	descPrompts  = desc("sluice_token_memo_prompts", "Prompts held whose tokens are known.")
	descBytes    = desc("sluice_token_memo_bytes", "Memory of the prompts held, in bytes.")
	descLimit    = desc("sluice_token_memo_limit_bytes", "Bound on the memory of the prompts held, in bytes.")
	descEvicted  = desc("sluice_token_memo_evicted_total", "Prompts that had to go for others.")
	descLearned  = desc("sluice_token_memo_learned_total", "Prompts whose tokens an engine gave with its answer.")
	descJoins    = desc("sluice_token_joins_total",
		"Conversations whose known beginning was held against the whole, or could not be used, by result.", "result")
	descClasses = desc("sluice_token_join_classes", "Kinds of conversation that are looked at for joining.")
	descTrusted = desc("sluice_token_join_trusted_classes", "Kinds of conversation that are joined.")
	descNoJoins = desc("sluice_token_join_disabled_models", "Models whose conversations are not joined, after a mismatch.")
	descServers = desc("sluice_token_render_servers", "Servers that are asked for tokens, by the state of their breaker.", "state")
	descCalls   = desc("sluice_token_render_calls", "Calls for tokens under way.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"producer"}, labels...), nil)
}

// collector reads the tables when they are scraped. A model's series lives as long as it is among the 1,000 of a producer
// that answered most recently, however many names come and go.
type collector struct {
	producers scheduling.Alive[*Producer]
	seconds   *prometheus.HistogramVec
}

func newCollector() *collector {
	return &collector{seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_token_render_seconds",
		Help:    "Time that servers took to give a prompt's tokens.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .15, .2, .5, 1, 2, 5},
	}, []string{"producer", "route"})}
}

// observer takes the times of a producer's calls.
func (c *collector) observer(producer string) func(route string, took time.Duration) {
	return func(route string, took time.Duration) {
		c.seconds.WithLabelValues(producer, route).Observe(took.Seconds())
	}
}

// Describe sends the metrics' descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descModels, descRatio, descSamples, descGuessed, descExact, descInexact, descChecks, descMismatch, descDemoted,
		descLookups, descPrompts, descBytes, descLimit, descEvicted, descLearned, descJoins, descClasses, descTrusted,
		descNoJoins, descServers, descCalls,
	} {
		ch <- d
	}
}

// Collect sends the metrics' values.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.producers.Current() {
		out := sender{ch: ch, producer: p.name}
		out.estimates(p.table)
		if p.exact != nil {
			out.exact(p.exact)
		}
	}
}

// sender sends the values of one producer.
type sender struct {
	ch       chan<- prometheus.Metric
	producer string
}

func (s sender) send(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{s.producer}, labels...)...)
}

func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.send(d, prometheus.GaugeValue, v, labels...)
}

func (s sender) counter(d *prometheus.Desc, n int64, labels ...string) {
	s.send(d, prometheus.CounterValue, float64(n), labels...)
}

func (s sender) counters(d *prometheus.Desc, c counters) {
	for l, n := range c {
		s.counter(d, n.Load(), l)
	}
}

func (s sender) estimates(t *table) {
	s.gauge(descModels, float64(t.models.Len()))
	for _, model := range t.models.Keys() {
		if r, ok := t.models.Peek(model); ok && utf8.ValidString(model) { // no label value otherwise
			s.gauge(descRatio, r.bytesPerToken(), model)
		}
	}
	s.counter(descSamples, t.learned.Load(), "learned")
	s.counter(descSamples, t.rejected.Load(), "rejected")
	s.counter(descGuessed, t.guessed.Load())
}

func (s sender) exact(x *exact) {
	s.counters(descExact, x.counts.exact)
	s.counters(descInexact, x.counts.inexact)
	s.counters(descJoins, x.counts.joins)
	s.counter(descLookups, x.counts.hits.Load(), "hit")
	s.counter(descLookups, x.counts.misses.Load(), "miss")
	s.counter(descLearned, x.counts.learned.Load())
	prompts, bytes, evicted := x.known.memo.Size()
	s.gauge(descPrompts, float64(prompts))
	s.gauge(descBytes, float64(bytes))
	s.gauge(descLimit, float64(x.known.memo.Limit()))
	s.counter(descEvicted, evicted)
	classes, trusted, disabled := x.known.classes.Census()
	s.gauge(descClasses, float64(classes))
	s.gauge(descTrusted, float64(trusted))
	s.gauge(descNoJoins, float64(disabled))
	states, calls := x.fleet.Census(time.Now())
	for state, n := range states {
		s.gauge(descServers, float64(n), render.State(state).String())
	}
	s.gauge(descCalls, float64(calls))
	s.models(x.known.trust)
}

func (s sender) models(t *trust) {
	for _, model := range t.models.Keys() {
		r, ok := t.models.Peek(model)
		if !ok || !utf8.ValidString(model) {
			continue
		}
		matches, mismatches, ratio, demoted := r.state()
		s.counter(descChecks, matches, model, "match")
		s.counter(descChecks, mismatches, model, "mismatch")
		s.gauge(descMismatch, ratio, model)
		value := 0.0
		if demoted {
			value = 1
		}
		s.gauge(descDemoted, value, model)
	}
}
