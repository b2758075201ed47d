package server

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/server/telemetry"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const metricsPage = "../docs/metrics.md"

const metricsHead = `# Metrics

<!-- Written by the tests of package server from what a process registers: go test ./server -run MetricsPage -update. Do not edit. -->

What ` + "`/metrics`" + ` on the admin port serves beside the Go runtime's and the process's own (` + "`go_…`, `process_…`" + `). A
histogram has the usual ` + "`_bucket`, `_sum` and `_count`" + `. [operating.md](operating.md) says which to watch,
[engine-metrics.md](engine-metrics.md) what Sluice reads of the engines' metrics.

| metric | type | labels | meaning |
|---|---|---|---|
`

const labelsHead = `
## Labels

Every label takes a bounded number of values.

| label | values |
|---|---|
`

// labelValues say what bounds the values of each label.
var labelValues = map[string]string{
	"alarm":     "fixed",
	"cause":     "fixed",
	"endpoint":  "the addresses of the endpoints, whose series go with them; the ledger's and the audit's metrics show 1,000 and sum up further ones as `other`",
	"filter":    "the names of the configured plugins",
	"goversion": "one",
	"hash":      "one at a time",
	"index":     "`approximate`, `precise`",
	"key":       "fixed",
	"kind":      "fixed: reasons of refusals and kinds of oddities",
	"listener":  "`admin`, `grpc`",
	"model":     "`telemetry.modelLabels`, and as many others that an engine has answered for as `telemetry.maxModelLabels` says; then `other`. Longer than 256 bytes is cut. The token producer's: at most 1,000 models",
	"moved":     "`true`, `false`",
	"operation": "fixed: the APIs",
	"outcome":   "fixed",
	"producer":  "the names of the configured plugins",
	"reason":    "fixed",
	"release":   "fixed",
	"result":    "fixed",
	"route":     "fixed",
	"source":    "fixed",
	"state":     "fixed",
	"verdict":   "fixed",
	"version":   "one",
	"what":      "fixed",
}

const peersPart = `
## What others call it

For dashboards and rules that were written for another picker. The third column is the endpoint picker of Gateway API Inference
Extension, from which llm-d's began; llm-d's own names are in the second.

| Sluice | llm-d (` + "`llm_d_epp_…`" + `) | Inference Extension |
|---|---|---|
| ` + "`sluice_requests_total{result}`" + ` | ` + "`request_total`" + `, ` + "`scheduler_attempts_total{status}`" + ` | ` + "`inference_objective_request_total`" + `, ` + "`inference_extension_scheduler_attempts_total{status}`" + ` |
| ` + "`sluice_requests_total{result=\"no_endpoint\"}`" + `, ` + "`sluice_notes_total{kind}`" + `, ` + "`sluice_ended_total{reason=\"error\"}`" + ` | ` + "`request_error_total`" + ` | ` + "`inference_objective_request_error_total{error_code}`" + ` |
| ` + "`sluice_decision_seconds`" + ` | ` + "`scheduler_e2e_duration_seconds`" + ` | ` + "`inference_extension_scheduler_e2e_duration_seconds`" + ` |
| ` + "`sluice_first_token_seconds{model}`" + ` | ` + "`request_ttft_seconds`" + ` | ` + "`inference_objective_request_ttft_seconds`" + ` |
| ` + "`sluice_predicted_first_token_seconds{model}`" + ` | ` + "`request_predicted_ttft_seconds`" + ` | ` + "`inference_objective_request_predicted_ttft_seconds`" + ` |
| ` + "`sluice_request_seconds{model}`" + ` | ` + "`request_duration_seconds`" + ` | ` + "`inference_objective_request_duration_seconds`" + ` |
| ` + "`sluice_prompt_tokens_total{model}`" + `, a sum where the others have a histogram | ` + "`request_input_tokens`" + ` | ` + "`inference_objective_input_tokens`" + ` |
| ` + "`sluice_output_tokens_total{model}`" + `, a sum | ` + "`request_output_tokens`" + ` | ` + "`inference_objective_output_tokens`" + ` |
| ` + "`sluice_cached_tokens_total{model}`" + `, a sum | ` + "`request_cached_tokens`" + ` | ` + "`inference_objective_prompt_cached_tokens`" + ` |
| ` + "`sluice_ledger_inflight_requests{endpoint}`" + `, summed | ` + "`request_running`" + ` | ` + "`inference_objective_running_requests`" + ` |
| ` + "`sluice_endpoints{state=\"ready\"}`" + ` | ` + "`ready_endpoints`" + ` | ` + "`inference_pool_ready_pods`" + ` |
| ` + "`sluice_kv_index_blocks`" + `, ` + "`sluice_prefix_index_entries`" + ` | ` + "`prefix_indexer_size`" + ` | ` + "`inference_extension_prefix_indexer_size`" + ` |
| ` + "`sluice_matched_tokens_total`" + ` over ` + "`sluice_prompt_tokens_total`" + ` | ` + "`prefix_indexer_hit_ratio`" + ` | ` + "`inference_extension_prefix_indexer_hit_ratio`" + ` |
| ` + "`sluice_build_info`" + ` | ` + "`info`" + ` | ` + "`inference_extension_info`" + ` |

An engine's own metrics stay the engine's: where those pickers show averages over a pool of queue length and KV cache use, ask
vLLM (` + "`vllm:num_requests_waiting`, `vllm:kv_cache_usage_perc`" + `). ` + "`sluice_cached_tokens_total` and `sluice_prompt_tokens_total`" + ` are what
the answers say; vLLM counts ` + "`vllm:prefix_cache_hits_total` and `vllm:prefix_cache_queries_total`" + ` itself, those requests included
that did not pass Sluice.
`

// described matches the text of a prometheus.Desc, which keeps its fields to itself.
var described = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// family is a metric that a process may serve.
type family struct {
	name, help, kind string
	labels           []string
}

// families are what a registry may serve, by name, but for those of the Go runtime and the process.
func families(t *testing.T, registry *prometheus.Registry) []family {
	t.Helper()
	kinds := kindsOf(t, registry)
	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	byName := map[string]family{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		f := family{}
		for at, part := range map[*string]string{&f.name: m[1], &f.help: m[2]} {
			var err error
			if *at, err = strconv.Unquote(part); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasPrefix(f.name, "go_") || strings.HasPrefix(f.name, "process_") {
			continue
		}
		for _, list := range m[3:] {
			for label := range strings.SplitSeq(list, ",") {
				if label, _, _ = strings.Cut(strings.TrimSpace(label), "="); label != "" {
					f.labels = append(f.labels, strings.TrimPrefix(label, "c("))
				}
			}
		}
		f.kind = cmp.Or(kinds[f.name], "gauge")
		if kinds[f.name] == "" && strings.HasSuffix(f.name, "_total") {
			f.kind = "counter"
		}
		byName[f.name] = f
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b family) int { return strings.Compare(a.name, b.name) })
}

// seen notes what is registered with it.
type seen struct {
	prometheus.Registerer
	kinds map[string]string
}

func (s seen) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		var kind string
		switch c.(type) {
		case *prometheus.HistogramVec, prometheus.Histogram:
			kind = "histogram"
		case *prometheus.GaugeVec, prometheus.Gauge: // before Counter, which is a part of it
			kind = "gauge"
		case *prometheus.CounterVec, prometheus.Counter:
			kind = "counter"
		default: // says itself when it is collected
			continue
		}
		descs := make(chan *prometheus.Desc, 8)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			if m := described.FindStringSubmatch(d.String()); m != nil {
				s.kinds[strings.Trim(m[1], `"`)] = kind
			}
		}
	}
}

// kindsOf are the types of metrics by name: of those that have series, and of those that will.
func kindsOf(t *testing.T, registry *prometheus.Registry) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	reg := seen{prometheus.NewRegistry(), kinds}
	engines := metrics.NewStore(metrics.Options{Now: func() time.Duration { return 0 }, Registerer: reg})
	Plugins(Environment{Now: func() time.Duration { return 0 }, Logger: slog.New(slog.DiscardHandler), Registerer: reg, Engines: engines})
	telemetry.NewMetrics(reg, 0)
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		kind := strings.ToLower(f.GetType().String())
		if was := kinds[f.GetName()]; was != "" && was != kind {
			t.Errorf("%s is a %s and a %s", f.GetName(), was, kind)
		}
		kinds[f.GetName()] = kind
	}
	return kinds
}

// tableOf lists what a registry may serve.
func tableOf(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(metricsHead)
	used := map[string]bool{}
	for _, f := range families(t, registry) {
		if !strings.HasSuffix(f.help, ".") || !strings.HasPrefix(f.name, "sluice_") {
			t.Errorf("%s: its help is no sentence: %q", f.name, f.help)
		}
		var labels []string
		for _, l := range f.labels {
			labels, used[l] = append(labels, "`"+l+"`"), true
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(labels, ", "), strings.ReplaceAll(f.help, "|", `\|`))
	}
	b.WriteString(labelsHead)
	for _, l := range slices.Sorted(maps.Keys(used)) {
		if labelValues[l] == "" {
			t.Errorf("nobody says what bounds the values of the label %q", l)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", l, labelValues[l])
	}
	b.WriteString(peersPart)
	return b.String()
}

// everything is a process that has all there is.
func everything(t *testing.T) string {
	t.Helper()
	return "server: {tls: {mode: selfSigned}}\ntelemetry: {decisionLog: {path: " + t.TempDir() + "}}\n"
}

// The page lists every metric, of a process that has all there is.
func TestMetricsPage(t *testing.T) {
	registry := prometheus.NewRegistry()
	launch(t, everything(t), func(o *Options) { o.Registry = registry })
	got := tableOf(t, registry)
	if *update {
		if err := os.WriteFile(metricsPage, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is not fresh (-page +process; go test ./server -run MetricsPage -update writes it):\n%s", diff)
	}
	if rows := strings.Count(got, "\n| `sluice_"); rows < 40 {
		t.Errorf("only %d metrics", rows)
	}
	for _, name := range regexp.MustCompile("`(sluice_[a-z_]+)").FindAllStringSubmatch(peersPart, -1) {
		if !strings.Contains(got, "\n| `"+name[1]+"` | ") {
			t.Errorf("%s stands for what others have, and there is no such metric", name[1])
		}
	}
}

// Every metric is named by Prometheus' conventions: those that a process serves at once as they are served, and those that
// come with traffic by what they say of themselves.
func TestMetricsAreNamedByConvention(t *testing.T) {
	registry := prometheus.NewRegistry()
	p := launch(t, everything(t), func(o *Options) { o.Registry = registry })
	_, served := p.page(t, "/metrics")
	problems, err := promlint.New(strings.NewReader(served)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]dto.MetricType{
		"counter": dto.MetricType_COUNTER, "gauge": dto.MetricType_GAUGE, "histogram": dto.MetricType_HISTOGRAM,
	}
	var all []*dto.MetricFamily
	for _, f := range families(t, registry) {
		kind, known := types[f.kind]
		if !known {
			t.Errorf("%s is a %s", f.name, f.kind)
		}
		m := &dto.Metric{}
		for _, l := range f.labels {
			m.Label = append(m.Label, &dto.LabelPair{Name: &l, Value: &l})
		}
		all = append(all, &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: &kind, Metric: []*dto.Metric{m}})
	}
	more, err := promlint.NewWithMetricFamilies(all).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range append(problems, more...) {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	name, help, kind := "sluice_waited_ms", "Bad.", dto.MetricType_COUNTER
	found, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{{Name: &name, Help: &help, Type: &kind}}).Lint()
	if err != nil || len(found) == 0 {
		t.Errorf("%s passes: %v", name, err)
	}
}
