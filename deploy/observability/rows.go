package observability

import "fmt"

// Units of panels, as Grafana names them.
const (
	perSecond = "reqps"
	seconds   = "s"
	share     = "percentunit"
	short     = "short"
	byteUnit  = "bytes"
	tokens    = "short"
)

// percentile names a quantile.
var percentile = map[string]string{"0.1": "p10", "0.5": "p50", "0.9": "p90", "0.99": "p99"}

// quantiles are queries for quantiles of a histogram, by further labels where some are given.
func quantiles(histogram, by, legend string, of ...string) []Query {
	queries := make([]Query, 0, len(of))
	for _, q := range of {
		labels := "le"
		if by != "" {
			labels += ", " + by
		}
		queries = append(queries, Query{
			fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket{$i}$r)))", q, labels, histogram), legend + percentile[q],
		})
	}
	return queries
}

// Rows are those of the dashboard.
func Rows() []Row {
	return []Row{overview(), latency(), cache(), audit(), gate(), learnt(), predicted(), load(), engines(), process()}
}

func overview() Row {
	return Row{"Overview", []Panel{
		{Title: "Ready endpoints", Kind: Number, Unit: short, Width: 4, Description: "The fewest that an instance knows.",
			Queries: []Query{{`min(sluice_endpoints{$i,state="ready"})`, ""}}},
		{Title: "Requests", Kind: Number, Unit: perSecond, Width: 4, Description: "Requests that a pick was asked for.",
			Queries: []Query{{`sum(rate(sluice_requests_total{$i}$r))`, ""}}},
		{Title: "Without endpoint", Kind: Number, Unit: share, Width: 4, Description: "The share of requests answered with 503 since no endpoint was left.",
			Queries: []Query{{`sum(rate(sluice_requests_total{$i,result="no_endpoint"}$r)) / sum(rate(sluice_requests_total{$i}$r))`, ""}}},
		{Title: "Cached", Kind: Number, Unit: share, Width: 4, Description: "The share of prompt tokens that engines report as cached.",
			Queries: []Query{{`sum(rate(sluice_cached_tokens_total{$i}$r)) / sum(rate(sluice_prompt_tokens_total{$i}$r))`, ""}}},
		{Title: "TTFT, p90", Kind: Number, Unit: seconds, Width: 4, Description: "From the pick to the first token of streamed answers.",
			Queries: quantiles("sluice_first_token_seconds", "", "", "0.9")},
		{Title: "Decision, p99", Kind: Number, Unit: seconds, Width: 4, Description: "From a complete request to its decision.",
			Queries: quantiles("sluice_decision_seconds", "", "", "0.99")},
		{Title: "Requests by result", Unit: perSecond, Queries: []Query{{`sum by (result) (rate(sluice_requests_total{$i}$r))`, "{{result}}"}}},
		{Title: "Ends", Unit: perSecond, Description: "How picked requests ended.",
			Queries: []Query{{`sum by (reason) (rate(sluice_ended_total{$i}$r))`, "{{reason}}"}}},
		{Title: "Refusals and oddities", Unit: perSecond, Description: "Answered errors by reason, and unusual events.",
			Queries: []Query{{`sum by (kind) (rate(sluice_notes_total{$i}$r)) > 0`, "{{kind}}"}}},
	}}
}

func latency() Row {
	return Row{"Latency", []Panel{
		{Title: "Time to first token", Unit: seconds, Queries: quantiles("sluice_first_token_seconds", "", "", "0.5", "0.9", "0.99")},
		{Title: "Time to first token by model, p90", Unit: seconds, Queries: quantiles("sluice_first_token_seconds", "model", "{{model}} ", "0.9")},
		{Title: "Request", Unit: seconds, Description: "From the pick to the end of the response.",
			Queries: quantiles("sluice_request_seconds", "", "", "0.5", "0.9", "0.99")},
		{Title: "Decision", Unit: seconds, Description: "With what producers ask others for, such as a prompt's tokens.",
			Queries: quantiles("sluice_decision_seconds", "", "", "0.5", "0.9", "0.99")},
		{Title: "Predicted and seen time to first token", Unit: seconds, Description: "Means. Empty as long as nobody predicts.",
			Queries: []Query{
				{`sum(rate(sluice_predicted_first_token_seconds_sum{$i}$r)) / sum(rate(sluice_predicted_first_token_seconds_count{$i}$r))`, "predicted"},
				{`sum(rate(sluice_first_token_seconds_sum{$i}$r)) / sum(rate(sluice_first_token_seconds_count{$i}$r))`, "seen"},
				{`sum(rate(sluice_first_token_prediction_error_seconds_sum{$i}$r)) / sum(rate(sluice_first_token_prediction_error_seconds_count{$i}$r))`, "error"},
			}},
		{Title: "Seen over predicted", Unit: short, Description: "Above 1, first tokens come later than predicted. Empty as long as nobody predicts.",
			Queries: quantiles("sluice_first_token_prediction_ratio", "", "", "0.1", "0.5", "0.9")},
	}}
}

func cache() Row {
	return Row{"Prefix cache", []Panel{
		{Title: "Share of prompt tokens", Unit: share, Description: "What Sluice knew to be cached at the pick, and what engines reported.",
			Queries: []Query{
				{`sum(rate(sluice_matched_tokens_total{$i}$r)) / sum(rate(sluice_prompt_tokens_total{$i}$r))`, "known at the pick"},
				{`sum(rate(sluice_cached_tokens_total{$i}$r)) / sum(rate(sluice_prompt_tokens_total{$i}$r))`, "reported"},
			}},
		{Title: "Engines by trust in their KV events", Unit: short, Queries: []Query{{`sum by (state) (sluice_kv_sources{$i}) > 0`, "{{state}}"}}},
		{Title: "KV alarms", Unit: short, Description: "Engines that something about their KV events has to be looked at for.",
			Queries: []Query{{`sum by (alarm) (sluice_kv_alarms{$i})`, "{{alarm}}"}}},
		{Title: "Blocks in the index", Unit: short, Queries: []Query{
			{`sum by (producer) (sluice_kv_index_blocks{$i})`, "{{producer}}: distinct"},
			{`sum by (producer) (sluice_kv_index_holder_blocks{$i})`, "{{producer}}: by engine"},
			{`sum by (producer) (sluice_prefix_index_entries{$i})`, "{{producer}}: approximate entries"},
		}},
		{Title: "Memory of the index", Unit: byteUnit, Queries: []Query{
			{`sum by (producer) (sluice_kv_index_bytes{$i})`, "{{producer}}: precise"},
			{`sum by (producer) (sluice_prefix_index_bytes{$i})`, "{{producer}}: approximate"},
		}},
		{Title: "Lost knowledge", Unit: perSecond, Description: "How often all that was known of an engine became void.",
			Queries: []Query{
				{`sum by (cause) (rate(sluice_kv_forgets_total{$i}$r)) > 0`, "events: {{cause}}"},
				{`sum by (cause) (rate(sluice_engine_cache_losses_total{$i}$r)) > 0`, "engine: {{cause}}"},
			}},
		{Title: "Prompts by their tokens' source", Unit: perSecond, Queries: []Query{
			{`sum by (source) (rate(sluice_token_exact_prompts_total{$i}$r))`, "exact: {{source}}"},
			{`sum by (reason) (rate(sluice_token_inexact_prompts_total{$i}$r)) > 0`, "estimate: {{reason}}"},
		}},
		{Title: "Rendering, p90", Unit: seconds, Queries: quantiles("sluice_token_render_seconds", "route", "{{route}} ", "0.9")},
		{Title: "Blocks in events", Unit: perSecond, Queries: []Query{{`sum by (what) (rate(sluice_kv_event_blocks_total{$i}$r)) > 0`, "{{what}}"}}},
	}}
}

func audit() Row {
	const of = `sum by (index) (rate(sluice_prefix_cache_predictions_total{$i,outcome=~"exact|over|under"}$r))`
	return Row{"Predicted and actual cache hits", []Panel{
		{Title: "False hits and misses", Unit: share, Description: "Shares of audited answers: less cached than predicted, and more.",
			Queries: []Query{
				{`sum by (index) (rate(sluice_prefix_cache_predictions_total{$i,outcome="over"}$r)) / ` + of, "false hits, {{index}}"},
				{`sum by (index) (rate(sluice_prefix_cache_predictions_total{$i,outcome="under"}$r)) / ` + of, "misses, {{index}}"},
			}},
		{Title: "False hits by endpoint", Unit: share, Description: "The ten endpoints with the most.",
			Queries: []Query{{`topk(10, sum by (endpoint) (rate(sluice_prefix_cache_predictions_total{$i,outcome="over"}$r)) / sum by (endpoint) (rate(sluice_prefix_cache_predictions_total{$i,outcome=~"exact|over|under"}$r)))`, "{{endpoint}}"}}},
		{Title: "Tokens", Unit: tokens, Description: "A second, of the audited answers.",
			Queries: []Query{
				{`sum by (index) (rate(sluice_prefix_cache_predicted_tokens_total{$i}$r))`, "predicted, {{index}}"},
				{`sum by (index) (rate(sluice_prefix_cache_reported_tokens_total{$i}$r))`, "reported, {{index}}"},
				{`sum by (index) (rate(sluice_prefix_cache_overpredicted_tokens_total{$i}$r))`, "predicted, not cached, {{index}}"},
				{`sum by (index) (rate(sluice_prefix_cache_underpredicted_tokens_total{$i}$r))`, "cached, not predicted, {{index}}"},
			}},
	}}
}

func gate() Row {
	return Row{"Gate", []Panel{
		{Title: "Verdicts", Unit: perSecond, Queries: []Query{{`sum by (verdict) (rate(sluice_gate_verdicts_total{$i}$r))`, "{{verdict}}"}}},
		{Title: "Gap", Unit: seconds, Description: "By how much the best sticky endpoint's TTFT exceeds the best other one's.",
			Queries: quantiles("sluice_gate_gap_seconds", "", "", "0.5", "0.9", "0.99")},
		{Title: "Gap of requests that were held", Unit: tokens, Description: "In tokens in flight.",
			Queries: []Query{
				{`histogram_quantile(0.5, sum by (le) (rate(sluice_gate_gap_tokens_bucket{$i,verdict="held"}$r)))`, "p50"},
				{`histogram_quantile(0.9, sum by (le) (rate(sluice_gate_gap_tokens_bucket{$i,verdict="held"}$r)))`, "p90"},
				{`histogram_quantile(0.99, sum by (le) (rate(sluice_gate_gap_tokens_bucket{$i,verdict="held"}$r)))`, "p99"},
			}},
		{Title: "Gap over its bar", Unit: short, Description: "Above 1 the gate opens.",
			Queries: quantiles("sluice_gate_gap_bar_ratio", "", "", "0.5", "0.9", "0.99")},
		{Title: "Bar", Unit: seconds, Description: "The gap in time at which the gate opens; with breakEven, what the prefix is worth.",
			Queries: quantiles("sluice_gate_bar_seconds", "", "", "0.1", "0.5", "0.9")},
		{Title: "Bar in tokens", Unit: tokens, Description: "The gap in tokens in flight at which leaving a warm engine breaks even.",
			Queries: quantiles("sluice_gate_bar_tokens", "", "", "0.1", "0.5", "0.9")},
		{Title: "Releases", Unit: perSecond, Description: "Whether a released pick then left the sticky endpoints.",
			Queries: []Query{{`sum by (moved) (rate(sluice_gate_released_picks_total{$i}$r))`, "moved: {{moved}}"}}},
	}}
}

func learnt() Row {
	return Row{"What is learnt", []Panel{
		{Title: "Prefill", Unit: tokens, Description: "Prompt tokens that an endpoint computes in a second.",
			Queries: []Query{{`max by (endpoint) (sluice_rates_prefill_tokens_per_second{$i})`, "{{endpoint}}"}}},
		{Title: "Break-even", Unit: short, Description: "Tokens in flight that cost as much as one uncached token where nobody decodes.",
			Queries: []Query{{`max(sluice_rates_break_even_tokens{$i})`, "tokens"}}},
		{Title: "Pressure", Unit: share, Description: "Endpoints' time in which they have prompts to compute, and what decodes lose meanwhile.",
			Queries: []Query{{`max(sluice_rates_utilisation{$i})`, "utilisation"}, {`max(sluice_rates_decode_stall{$i})`, "decodes stalled"}}},
		{Title: "Requests that taught something", Unit: perSecond, Queries: []Query{
			{`sum(rate(sluice_rates_samples_total{$i}$r))`, "learnt from"}, {`sum by (reason) (rate(sluice_rates_skipped_total{$i}$r))`, "not: {{reason}}"},
		}},
	}}
}

func predicted() Row {
	return Row{"What is predicted", []Panel{
		{Title: "Error of predicted times to the first token", Unit: share, Description: "Mean of |seen - predicted| over seen. The ten endpoints with the largest.",
			Queries: []Query{{`topk(10, max by (endpoint) (sluice_latency_prediction_error_ratio{$i}))`, "{{endpoint}}"}}},
		{Title: "Slower than its class", Unit: short, Description: "By what factor an endpoint is slower than others of its class, as learnt. The ten slowest.",
			Queries: []Query{{`topk(10, max by (endpoint) (sluice_latency_slowness_ratio{$i}))`, "{{endpoint}}"}}},
		{Title: "Confidence", Unit: share, Description: "How far predictions are measured: 0 is what the configured throughput says. The least sure endpoint, and the mean.",
			Queries: []Query{{`min(sluice_latency_confidence{$i})`, "least"}, {`avg(sluice_latency_confidence{$i})`, "mean"}}},
		{Title: "Prefill of a token", Unit: seconds, Description: "What an uncached prompt token is predicted to take.",
			Queries: []Query{{`max by (endpoint) (sluice_latency_prefill_seconds_per_token{$i})`, "{{endpoint}}"}}},
		{Title: "Answers that taught the predictor something", Unit: perSecond, Queries: []Query{
			{`sum(rate(sluice_latency_samples_total{$i}$r))`, "times to the first token"}, {`sum(rate(sluice_latency_tpot_samples_total{$i}$r))`, "times per output token"},
			{`sum by (reason) (rate(sluice_latency_skipped_total{$i}$r)) > 0`, "not: {{reason}}"},
		}},
		{Title: "Trees of the residual", Unit: short, Description: "Classes that are learnt apart, and those in which the trees make predictions better and are used.",
			Queries: []Query{{`max by (instance) (sluice_latency_classes{$i})`, "{{instance}}: classes"}, {`max by (instance) (sluice_latency_forests_trusted{$i})`, "{{instance}}: with trees"}}},
	}}
}

func load() Row {
	return Row{"Load", []Panel{
		{Title: "Tokens in flight", Unit: tokens, Description: "Uncached prompt tokens not yet prefilled, by endpoint.",
			Queries: []Query{{`sum by (endpoint) (sluice_ledger_inflight_tokens{$i})`, "{{endpoint}}"}}},
		{Title: "Requests in flight", Unit: short, Queries: []Query{{`sum by (endpoint) (sluice_ledger_inflight_requests{$i})`, "{{endpoint}}"}}},
		{Title: "Picks", Unit: perSecond, Queries: []Query{{`sum by (endpoint) (rate(sluice_picks_total{$i}$r))`, "{{endpoint}}"}}},
	}}
}

func engines() Row {
	return Row{"Engines and endpoints", []Panel{
		{Title: "Endpoints by state", Unit: short, Queries: []Query{
			{`max by (state) (sluice_endpoints{$i})`, "{{state}}"}, {`max(sluice_outlier_ejected_endpoints{$i})`, "ejected"},
		}},
		{Title: "What is known of engines", Unit: short, Queries: []Query{
			{`max by (state) (sluice_engine_metrics_endpoints{$i})`, "{{state}}"}, {`max(sluice_engine_sleeping_endpoints{$i})`, "asleep"},
		}},
		{Title: "Failures", Unit: perSecond, Queries: []Query{
			{`sum(rate(sluice_outlier_failures_total{$i}$r))`, "failed requests"},
			{`sum by (result) (rate(sluice_engine_scrapes_total{$i,result!="ok"}$r)) > 0`, "scrapes: {{result}}"},
			{`sum by (producer) (rate(sluice_producer_faults_total{$i}$r)) > 0`, "producer: {{producer}}"},
		}},
	}}
}

func process() Row {
	return Row{"Process", []Panel{
		{Title: "Of the limits", Unit: share, Queries: []Query{
			{`max(sluice_open_streams{$i} / ignoring (key) sluice_limit{$i,key="server.maxOpenStreams"})`, "open streams"},
			{`max(sluice_buffered_bytes{$i} / ignoring (key) sluice_limit_bytes{$i,key="server.maxBufferedBytes"})`, "buffered bytes"},
			{`max(sluice_model_labels{$i} / ignoring (key) sluice_limit{$i,key="telemetry.maxModelLabels"})`, "model labels"},
		}},
		{Title: "Memory", Unit: byteUnit, Queries: []Query{
			{`sum by (instance) (process_resident_memory_bytes{$i})`, "{{instance}}"}, {`sum by (instance) (sluice_buffered_bytes{$i})`, "{{instance}}: bodies"},
		}},
		{Title: "Processor", Unit: short, Description: "Cores.",
			Queries: []Query{{`sum by (instance) (rate(process_cpu_seconds_total{$i}$r))`, "{{instance}}"}}},
		{Title: "Open streams", Unit: short, Queries: []Query{{`sum by (instance) (sluice_open_streams{$i})`, "{{instance}}"}}},
		{Title: "Configuration", Unit: short, Description: "1 where the file as it stands is what runs; the number of configurations in force at once.",
			Queries: []Query{
				{`min by (instance) (sluice_config_last_reload_successful{$i})`, "{{instance}}"}, {`count(count by (hash) (sluice_config_info{$i}))`, "different ones"},
			}},
		{Title: "Decision log", Unit: perSecond, Queries: []Query{
			{`sum(rate(sluice_decision_log_rows_total{$i}$r))`, "written"},
			{`sum by (reason) (rate(sluice_decision_log_dropped_total{$i}$r))`, "dropped: {{reason}}"},
		}},
		{Title: "Versions", Unit: short, Queries: []Query{{`count by (version) (sluice_build_info{$i})`, "{{version}}"}}},
	}}
}
