package engine

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/sim"
)

// metrics are the families of vLLM's /metrics page that routers read, under vLLM's names and
// labels. Gauges and counters are read from the model when the page is asked for.
type metrics struct {
	started time.Time
	cfg     Config
	labels  prometheus.Labels

	ttft, queue, prefill, decode, e2e, perToken prometheus.Histogram
}

// Bucket borders in seconds, as on vLLM's page.
var (
	ttftBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	timeBuckets = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	tpotBuckets = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
)

func newMetrics(cfg Config, started time.Time) *metrics {
	m := &metrics{cfg: cfg, started: started, labels: prometheus.Labels{"engine": "0", "model_name": cfg.Models[0]}}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vllm:" + name, Help: help, Buckets: buckets, ConstLabels: m.labels,
		})
	}
	m.ttft = histogram("time_to_first_token_seconds", "Time from arrival to the first token.", ttftBuckets)
	m.queue = histogram("request_queue_time_seconds", "Time from arrival to admission.", timeBuckets)
	m.prefill = histogram("request_prefill_time_seconds", "Time from admission to the first token.", timeBuckets)
	m.decode = histogram("request_decode_time_seconds", "Time from the first token to the last.", timeBuckets)
	m.e2e = histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", timeBuckets)
	m.perToken = histogram("request_time_per_output_token_seconds", "Decode time over tokens after the first.", tpotBuckets)
	return m
}

// observe records the latencies of a sequence that has ended, and TTFT at its first token. Times
// are wall times.
func (m *metrics) observe(ev sim.Event, toWall func(time.Duration) time.Duration) {
	p := ev.Job.Progress()
	seconds := func(d time.Duration) float64 { return toWall(d).Seconds() }
	switch ev.Kind {
	case sim.FirstToken:
		m.ttft.Observe(seconds(p.FirstToken - p.Submitted))
	case sim.Finished:
		m.queue.Observe(seconds(p.Scheduled - p.Submitted))
		m.prefill.Observe(seconds(p.FirstToken - p.Scheduled))
		m.decode.Observe(seconds(p.Finished - p.FirstToken))
		m.e2e.Observe(seconds(p.Finished - p.Submitted))
		if p.Generated > 1 {
			m.perToken.Observe(seconds(p.Finished-p.FirstToken) / float64(p.Generated-1))
		}
	}
}

func (m *metrics) register(l *loop) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{m.ttft, m.queue, m.prefill, m.decode, m.e2e, m.perToken, &collector{m, l}} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return r, nil
}

// collector asks the loop for the model's state at each scrape.
type collector struct {
	m    *metrics
	loop *loop
}

// Describe declares nothing: the collector is unchecked, since its families depend on the
// configuration.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the state of the model, or nothing once the server is closed.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	var s sim.Stats
	var running, waiting string
	asleep, answers := 0, 0
	if c.loop.do(func() {
		s, asleep, answers = c.loop.model.Stats(), c.loop.asleep, c.loop.answers
		running, waiting = adapters(c.loop.model.Running()), adapters(c.loop.model.Waiting())
	}) != nil {
		return
	}
	emit := func(kind prometheus.ValueType, name, help string, v float64, labels prometheus.Labels) {
		desc := prometheus.NewDesc(name, help, nil, labels)
		metric, err := prometheus.NewConstMetric(desc, kind, v)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		out <- metric
	}
	plus := func(name, value string) prometheus.Labels {
		l := prometheus.Labels{name: value}
		for k, v := range c.m.labels {
			l[k] = v
		}
		return l
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for _, f := range []struct {
		kind       prometheus.ValueType
		name, help string
		v          float64
	}{
		{gauge, "num_requests_running", "Sequences admitted.", float64(s.Running)},
		{gauge, "num_requests_waiting", "Sequences that wait for admission.", float64(s.Waiting)},
		{gauge, "kv_cache_usage_perc", "Share of KV blocks in use; 1 is all of them.", float64(s.TotalBlocks-s.FreeBlocks) / float64(s.TotalBlocks)},
		{counter, "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", float64(s.PrefixQueries)},
		{counter, "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", float64(s.PrefixHits)},
		{counter, "num_preemptions_total", "Sequences sent back to the queue.", float64(s.Preemptions)},
		{counter, "prompt_tokens_total", "Prompt tokens processed, cached ones included.", float64(s.PromptTokens)},
		{counter, "generation_tokens_total", "Output tokens generated.", float64(s.GeneratedTokens)},
	} {
		emit(f.kind, "vllm:"+f.name, f.help, f.v, c.m.labels)
	}
	const success = "Sequences ended, by reason."
	emit(counter, "vllm:request_success_total", success, float64(s.Finished), plus("finished_reason", "length"))
	emit(counter, "vllm:request_success_total", success, float64(s.Aborted), plus("finished_reason", "abort"))
	const sleep = "State of sleep; awake = 1 means that the engine works."
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		v := 0.0
		if level == asleep {
			v = 1
		}
		emit(gauge, "vllm:engine_sleep_state", sleep, v, plus("sleep_state", state))
	}
	emit(gauge, "process_start_time_seconds", "Start of the server in seconds since the epoch.",
		float64(c.m.started.UnixMilli())/1000, nil)
	if c.m.cfg.Params.OffloadBlocks > 0 {
		emit(counter, "vllm:external_prefix_cache_queries_total", "Prompt tokens looked up in the offload tier.", float64(s.OffloadQueries), c.m.labels)
		emit(counter, "vllm:external_prefix_cache_hits_total", "Prompt tokens found in the offload tier.", float64(s.OffloadHits), c.m.labels)
	}
	emit(gauge, "sim:answer_tokens", "Tokens of the answers that are being made or sent.", float64(answers), c.m.labels)
	if e := c.loop.events; e != nil {
		batches, bytes := e.history.size()
		emit(counter, "sim:kv_event_batches_total", "Batches of KV events, by sequence number.", float64(e.published.Load()), c.m.labels)
		emit(counter, "sim:kv_event_batches_dropped_total", "Batches that a subscriber's full queue dropped, once for each subscriber.", float64(e.publisher.Dropped()), c.m.labels)
		emit(gauge, "sim:kv_event_replay_batches", "Batches kept for replay.", float64(batches), c.m.labels)
		emit(gauge, "sim:kv_event_replay_bytes", "Bytes of the batches kept for replay.", float64(bytes), c.m.labels)
	}
	c.info(emit, running, waiting)
}

// info emits the families whose labels are the information.
func (c *collector) info(emit func(prometheus.ValueType, string, string, float64, prometheus.Labels), running, waiting string) {
	p := c.m.cfg.Params
	emit(prometheus.GaugeValue, "vllm:cache_config_info", "Configuration of the KV cache.", 1, prometheus.Labels{
		"engine": "0", "block_size": strconv.Itoa(p.BlockSize), "num_gpu_blocks": strconv.Itoa(p.NumBlocks),
		"enable_prefix_caching": "True", "cache_dtype": "auto", "prefix_caching_hash_algo": "xxh3",
	})
	if n := len(c.m.cfg.Adapters); n > 0 {
		emit(prometheus.GaugeValue, "vllm:lora_requests_info", "Adapters in use; the value is the time.",
			float64(time.Now().UnixMilli())/1000, prometheus.Labels{
				"max_lora": strconv.Itoa(n), "running_lora_adapters": running, "waiting_lora_adapters": waiting,
			})
	}
}

// adapters lists the distinct adapters of jobs, sorted and joined by commas.
func adapters(jobs iter.Seq[*sim.Job]) string {
	var names []string
	for j := range jobs {
		if j.Adapter != "" && !slices.Contains(names, j.Adapter) {
			names = append(names, j.Adapter)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}
