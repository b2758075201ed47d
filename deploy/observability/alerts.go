package observability

import (
	"slices"
	"time"
)

// The groups of rules.
const (
	groupServing = "sluice-serving"
	groupCache   = "sluice-cache"
	groupEngines = "sluice-engines"
	groupProcess = "sluice-process"
)

// Alerts are all alerts, group by group.
func Alerts() []Alert {
	return slices.Concat(servingAlerts(), cacheAlerts(), engineAlerts(), processAlerts())
}

func servingAlerts() []Alert {
	return []Alert{
		{
			Name: "SluiceAbsent", Group: groupServing, Severity: Critical, For: 5 * time.Minute,
			Expr:        `absent(sluice_build_info)`,
			Summary:     "No Sluice is scraped.",
			Description: "Prometheus has no metrics of any Sluice. Either none runs, or its admin port is not scraped.",
			Means:       "Without a picker the proxy answers with an error, or sends requests to any engine, as it is configured to.",
			Do: []string{
				"Look whether a process runs and is ready: `/readyz` on the admin port, the log.",
				"If it does, look at the scrape: the admin port is on loopback unless `server.adminListen` says otherwise.",
			},
		},
		{
			Name: "SluiceNoReadyEndpoint", Group: groupServing, Severity: Critical, For: time.Minute,
			Expr:        `sluice_endpoints{state="ready"} == 0`,
			Summary:     "Sluice knows no endpoint that is ready.",
			Description: "{{ $labels.instance }} has no ready endpoint: it answers every request with 503.",
			Means:       "The list of endpoints is empty, or all on it are draining or not ready.",
			Do: []string{
				"`/endpoints` on the admin port shows what is listed and in which state.",
				"`sluice_discovery_files_failing`, `sluice_discovery_names_failing` and `sluice_discovery_kubernetes_failing` tell of a source that cannot be read; the log has the fault.",
				"[endpoints.md](endpoints.md) says where endpoints come from.",
			},
		},
		{
			Name: "SluiceRequestsWithoutEndpoint", Group: groupServing, Severity: Critical, For: 5 * time.Minute,
			Expr: `sum by (instance) (rate(sluice_requests_total{result="no_endpoint"}[5m]))
  > 0.01 * sum by (instance) (rate(sluice_requests_total[5m]))`,
			Summary:     "Requests find no endpoint.",
			Description: "{{ $labels.instance }} answers {{ $value | humanize }} requests a second with 503, since no endpoint was left for them: more than 1 % of all.",
			Means:       "Endpoints are known, and for these requests none may be used: the proxy's subset, or the filters of the profile, leave nobody.",
			Do: []string{
				"`sluice_notes_total` says which: `no_endpoint`, `no_endpoint_in_subset` (the proxy's subset) or `no_endpoint_left` (a filter).",
				"`sluice explain` shows for one request which filter left whom out.",
			},
		},
		{
			Name: "SluiceShedsRequests", Group: groupServing, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sum by (instance, kind) (rate(sluice_notes_total{kind=~"shed|shed_memory"}[5m])) > 0`,
			Summary:     "Sluice refuses requests to protect itself.",
			Description: "{{ $labels.instance }} answers {{ $value | humanize }} requests a second with 429 ({{ $labels.kind }}).",
			Means:       "`shed_memory`: the bodies being served reach `server.maxBufferedBytes`. `shed`: `server.maxOpenStreams` are open.",
			Do: []string{
				"Add replicas of Sluice, or raise the limit where memory allows it ([the limits](configuration.md#limits)).",
				"Look whether requests stay longer than they used to: `sluice_request_seconds`, and the engines' queues.",
			},
		},
		{
			Name: "SluiceDecisionsSlow", Group: groupServing, Severity: Warning, For: 10 * time.Minute,
			Expr:        `histogram_quantile(0.99, sum by (instance, le) (rate(sluice_decision_seconds_bucket[5m]))) > 0.05`,
			Summary:     "Decisions take long.",
			Description: "The 99th percentile of the time from a complete request to its decision is {{ $value | humanizeDuration }} on {{ $labels.instance }}.",
			Means:       "A decision is microseconds. What makes it longer are producers that ask somebody else, above all for a prompt's tokens, or a processor that is short.",
			Do: []string{
				"`sluice_token_render_seconds` is the time that tokenizers take, `sluice_token_render_calls` how many calls are under way; [tokens.md](tokens.md#what-it-may-cost) says how to bound it.",
				"Look at the processor's share: `process_cpu_seconds_total`, and throttling of the container.",
			},
		},
		{
			Name: "SluicePanics", Group: groupServing, Severity: Critical,
			Expr:        `increase(sluice_notes_total{kind="panic"}[15m]) > 0`,
			Summary:     "Sluice has recovered from a panic.",
			Description: "{{ $labels.instance }} recovered from {{ $value | humanize }} panics in 15 minutes. Each cost one request.",
			Means:       "A fault in Sluice. A panic ends the request that it came with, and no other.",
			Do:          []string{"The log has the stack. Please report it with the request's shape, not its text."},
		},
		{
			Name: "SluiceProducerFaults", Group: groupServing, Severity: Warning, For: 5 * time.Minute,
			Expr: `sum by (instance, producer) (rate(sluice_producer_faults_total[5m]))
  > on (instance) group_left () (0.05 * sum by (instance) (rate(sluice_requests_total[5m])))`,
			Summary:     "Decisions lack what a producer would know.",
			Description: "{{ $labels.producer }} on {{ $labels.instance }} fails {{ $value | humanize }} times a second: more than 5 % of decisions are made without it.",
			Means:       "A producer failed or did not end within `server.produceTimeout`. Requests are routed on what is left.",
			Do: []string{
				"The log names the fault. For `token-producer` see whether its servers answer: `sluice_token_render_servers`.",
			},
		},
		{
			Name: "SluiceGateUndone", Group: groupServing, Severity: Info, For: 30 * time.Minute,
			Expr: `sum by (instance, filter) (rate(sluice_gate_released_picks_total{moved="false"}[30m]))
  > 0.9 * sum by (instance, filter) (rate(sluice_gate_released_picks_total[30m]))`,
			Summary:     "The gate lets requests go, and they stay.",
			Description: "Of the requests that {{ $labels.filter }} on {{ $labels.instance }} lets leave their warm engine, more than 90 % are sent back to it.",
			Means:       "A scorer behind the gate undoes it, mostly a heavy `prefix-cache-scorer`.",
			Do:          []string{"Prefer `prefill-cost-scorer` behind the gate ([gate.md](gate.md#is-it-doing-the-right-thing))."},
		},
		{
			Name: "SluiceLatencyPredictionsOff", Group: groupServing, Severity: Info, For: 30 * time.Minute,
			Expr: `sum by (instance, model) (rate(sluice_first_token_prediction_error_seconds_sum[30m]))
  > 0.5 * sum by (instance, model) (rate(sluice_predicted_first_token_seconds_sum[30m]))`,
			Summary:     "Predicted times to the first token are off.",
			Description: "For {{ $labels.model }} on {{ $labels.instance }} the time to the first token differs from the predicted one by more than half of that.",
			Means:       "What was learnt of the engines does not hold: other hardware, another load, or traffic that does not pass Sluice.",
			Do:          []string{"`sluice_first_token_prediction_ratio` says to which side: above 1, answers come later than predicted."},
		},
	}
}

func cacheAlerts() []Alert {
	return []Alert{
		{
			Name: "SluiceKVEventsSilent", Group: groupCache, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sum by (instance, producer) (sluice_kv_alarms{alarm="silent"}) > 0`,
			Summary:     "Engines answer requests and publish no KV events.",
			Description: "{{ $labels.instance }} hears no KV events of {{ $value }} engines, although they answer requests. What they hold is guessed.",
			Means:       "Events are not enabled, or not reachable.",
			Do:          []string{"The log names the engines. [precise-prefix-cache.md](precise-prefix-cache.md#when-it-does-not-work) says what to look at."},
		},
		{
			Name: "SluiceKVEventsUnusable", Group: groupCache, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sum by (instance, producer, alarm) (sluice_kv_alarms{alarm!="silent"}) > 0`,
			Summary:     "KV events of engines do not fit.",
			Description: "Of {{ $value }} engines the KV events that {{ $labels.instance }} hears are of no use, or do not fit what else is known: {{ $labels.alarm }}.",
			Means:       "`unapplied`: nothing of them can be used. `block_size`: blocks have another size than the engine's metrics say. `unpredicted`: they explain none of the cached tokens that the engine reports.",
			Do:          []string{"[precise-prefix-cache.md](precise-prefix-cache.md#when-it-does-not-work) explains each."},
		},
		{
			Name: "SluiceIndexDegraded", Group: groupCache, Severity: Warning, For: 10 * time.Minute,
			Expr:        `sum by (instance, producer, state) (sluice_kv_sources{state=~"degraded|replaying"}) > 0`,
			Summary:     "The index lacks events of engines.",
			Description: "What {{ $labels.instance }} knows of {{ $value }} engines is not complete ({{ $labels.state }}), for 10 minutes.",
			Means:       "Events were lost and could not be had again. Until they are replayed, or the cache has turned over, the index believes too much or too little of these engines.",
			Do: []string{
				"Give the engines a replay endpoint ([precise-prefix-cache.md](precise-prefix-cache.md)).",
				"`sluice_kv_event_messages_total` says what became of messages, `sluice_kv_replays_total` of replays.",
			},
		},
		{
			Name: "SluiceFalseHits", Group: groupCache, Severity: Warning, For: 15 * time.Minute,
			Expr: `sum by (instance, producer, index, endpoint) (rate(sluice_prefix_cache_predictions_total{outcome="over"}[30m]))
  > 0.2 * sum by (instance, producer, index, endpoint) (rate(sluice_prefix_cache_predictions_total{outcome=~"exact|over|under"}[30m]))
and sum by (instance, producer, index, endpoint) (increase(sluice_prefix_cache_predictions_total{outcome="over"}[30m])) >= 10`,
			Summary:     "An endpoint has less cached than Sluice believes.",
			Description: "More than 20 % of the answers of {{ $labels.endpoint }} had less cached than the {{ $labels.index }} index of {{ $labels.producer }} had predicted.",
			Means:       "Requests are held on an engine for a cache that it does not have. [How right it is](prefix-cache.md#how-right-it-is) says what counts.",
			Do: []string{
				"`approximate`: the engine evicts sooner than the index thinks: its cache is smaller than `lruCapacityPerServer` (see that its metrics are read), or traffic reaches it that does not pass Sluice.",
				"`precise`: events are lost or late; look at `sluice_kv_event_messages_total` and `sluice_kv_sources`.",
				"One endpoint alone: it was restarted in place and nobody noticed; see [when an engine dies](operating.md#when-an-engine-dies).",
			},
		},
		{
			Name: "SluiceMisses", Group: groupCache, Severity: Info, For: 15 * time.Minute,
			Expr: `sum by (instance, producer, index) (rate(sluice_prefix_cache_predictions_total{outcome="under"}[30m]))
  > 0.3 * sum by (instance, producer, index) (rate(sluice_prefix_cache_predictions_total{outcome=~"exact|over|under"}[30m]))
and sum by (instance, producer, index) (increase(sluice_prefix_cache_predictions_total{outcome="under"}[30m])) >= 20`,
			Summary:     "Engines have more cached than Sluice knows.",
			Description: "More than 30 % of answers had more cached than the {{ $labels.index }} index of {{ $labels.producer }} on {{ $labels.instance }} had predicted.",
			Means:       "Sluice does not see caches that are there: they come from before it started, from traffic past it, or its blocks are larger than the engines'.",
			Do: []string{
				"After a start this passes. With several replicas the approximate index of each sees its own part only; the precise one sees all.",
				"`precise`: blocks are not joined or not known; see `sluice_kv_event_blocks_total`.",
			},
		},
		{
			Name: "SluiceCachedTokensUnconfirmed", Group: groupCache, Severity: Info, For: 15 * time.Minute,
			Expr:        `sum by (instance, endpoint) (increase(sluice_prefix_cache_predictions_total{outcome="unconfirmed"}[30m])) >= 20`,
			Summary:     "An engine never reports cached tokens where hits are expected.",
			Description: "{{ $labels.endpoint }} has reported 0 cached tokens {{ $value | humanize }} times in 30 minutes where a hit was predicted, and never more.",
			Means:       "The engine's prefix cache is off, or it reports 0 whatever it has. In the first case routing by prefix is worth nothing there.",
			Do:          []string{"vLLM: prefix caching must be on, and `--enable-prompt-tokens-details` makes it report. SGLang: `--enable-cache-report`."},
		},
		{
			Name: "SluiceModelTokensDemoted", Group: groupCache, Severity: Warning, For: 5 * time.Minute,
			Expr:        `max by (instance, producer, model) (sluice_token_model_demoted) == 1`,
			Summary:     "A model's tokens are not what its engines count.",
			Description: "The tokens of {{ $labels.model }} are not used on {{ $labels.instance }}, since engines count others. Its prompts are looked up in the approximate index.",
			Means:       "The server that renders has another tokenizer, chat template or adapter than the engines.",
			Do:          []string{"[tokens.md](tokens.md) says how checks work and what to compare."},
		},
		{
			Name: "SluicePromptsEstimated", Group: groupCache, Severity: Warning, For: 10 * time.Minute,
			Expr: `sum by (instance, producer) (rate(sluice_token_inexact_prompts_total{reason!~"canceled|mismatch_demoted|unreadable|unsupported"}[10m]))
  > 0.2 * (sum by (instance, producer) (rate(sluice_token_inexact_prompts_total[10m])) + sum by (instance, producer) (rate(sluice_token_exact_prompts_total[10m])))`,
			Summary:     "Prompts go on without their tokens.",
			Description: "For more than 20 % of the requests {{ $labels.producer }} on {{ $labels.instance }} could not have the prompt's tokens.",
			Means:       "Servers answer too late, or with faults, and not so often that their breakers open. Such prompts are estimated, and looked up in the approximate index.",
			Do: []string{
				"`sluice_token_inexact_prompts_total` says why. `timeout`: compare `sluice_token_render_seconds` with the time allowed; [what it may cost](tokens.md#what-it-may-cost).",
				"`sluice explain` shows such a request with `about` before its prompt's tokens.",
			},
		},
		{
			Name: "SluiceTokenServersDown", Group: groupCache, Severity: Warning, For: 5 * time.Minute,
			Expr: `sum by (instance, producer) (sluice_token_render_servers{state="closed"}) == 0
and sum by (instance, producer) (sluice_token_render_servers) > 0`,
			Summary:     "Nobody renders prompts.",
			Description: "All servers that {{ $labels.producer }} on {{ $labels.instance }} asks for tokens fail.",
			Means:       "Their breakers are open. Prompts without tokens are looked up in the approximate index.",
			Do:          []string{"See whether the addresses in `token-producer` answer; [tokens.md](tokens.md) has the calls to try."},
		},
	}
}
