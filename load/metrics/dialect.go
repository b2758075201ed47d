package metrics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// field is what a sample counts towards.
type field uint8

const (
	waiting field = iota
	running
	kvUsage
	kvUsageOld // the same under the name of older engines
	kvUsed     // blocks in use, where no share is given
	blockSize
	numBlocks
	prefixQueries
	prefixQueriesOld
	prefixHits
	prefixHitsOld
	startTime
	numFields

	// The fields below are read from labels.
	cacheInfo
	sleepState
	loraInfo
)

// rule says what the samples of one name count towards.
type rule struct {
	name string
	to   field
	// label and value, where set, restrict the rule to samples whose label has the value.
	label, value string
	// sizeLabel and countLabel are the labels of a cacheInfo.
	sizeLabel, countLabel string
}

// dialect is an engine's names.
type dialect struct {
	name string
	// path is where the engine serves its page.
	path string
	// prefix begins every name but process_start_time_seconds.
	prefix string
	// onlyEmpty names a label whose samples count only where it is absent or empty: the engine repeats its gauges per
	// value of it.
	onlyEmpty string
	// sumBlocks says that the number of cache blocks is given per engine of the page, not for all of them.
	sumBlocks bool
	rules     []rule

	// byNext finds rules by the byte behind the prefix.
	byNext [256][]rule
}

// startRule is on the pages of all engines whose metrics come from one process.
var startRule = rule{name: "process_start_time_seconds", to: startTime}

// dialects are the engines whose names are known. vLLM's number of blocks is the sum over its data-parallel engines
// already, repeated with each of them.
var dialects = indexed([]*dialect{
	{
		name: "vllm", path: "/metrics", prefix: "vllm:",
		rules: []rule{
			{name: "vllm:num_requests_waiting", to: waiting},
			{name: "vllm:num_requests_running", to: running},
			{name: "vllm:kv_cache_usage_perc", to: kvUsage},
			{name: "vllm:gpu_cache_usage_perc", to: kvUsageOld},
			{name: "vllm:prefix_cache_queries_total", to: prefixQueries},
			{name: "vllm:prefix_cache_hits_total", to: prefixHits},
			{name: "vllm:gpu_prefix_cache_queries_total", to: prefixQueriesOld},
			{name: "vllm:gpu_prefix_cache_hits_total", to: prefixHitsOld},
			{name: "vllm:cache_config_info", to: cacheInfo, sizeLabel: "block_size", countLabel: "num_gpu_blocks"},
			{name: "vllm:engine_sleep_state", to: sleepState},
			{name: "vllm:lora_requests_info", to: loraInfo},
		},
	},
	{
		name: "sglang", path: "/metrics", prefix: "sglang:", onlyEmpty: "priority", sumBlocks: true,
		rules: []rule{
			{name: "sglang:num_queue_reqs", to: waiting},
			{name: "sglang:num_running_reqs", to: running},
			{name: "sglang:token_usage", to: kvUsage},
			{name: "sglang:cache_config_info", to: cacheInfo, sizeLabel: "page_size", countLabel: "num_pages"},
			// From 0.5.11 on, instead of the labels.
			{name: "sglang:page_size", to: blockSize},
			{name: "sglang:num_pages", to: numBlocks},
			{name: "sglang:prompt_tokens_total", to: prefixQueries},
		},
	},
	{
		name: "trtllm", path: "/prometheus/metrics", prefix: "trtllm_", sumBlocks: true,
		rules: []rule{
			{name: "trtllm_num_requests_waiting", to: waiting},
			{name: "trtllm_num_requests_running", to: running},
			{name: "trtllm_kv_cache_utilization", to: kvUsage},
			{name: "trtllm_kv_cache_tokens_per_block", to: blockSize},
			{name: "trtllm_kv_cache_max_blocks", to: numBlocks},
		},
	},
	{
		name: "triton", path: "/metrics", prefix: "nv_trt_llm_", sumBlocks: true,
		rules: []rule{
			{name: "nv_trt_llm_request_metrics", to: waiting, label: "request_type", value: "waiting"},
			{name: "nv_trt_llm_request_metrics", to: running, label: "request_type", value: "scheduled"},
			{name: "nv_trt_llm_kv_cache_block_metrics", to: kvUsage, label: "kv_cache_block_type", value: "fraction"},
			{name: "nv_trt_llm_kv_cache_block_metrics", to: kvUsed, label: "kv_cache_block_type", value: "used"},
			{name: "nv_trt_llm_kv_cache_block_metrics", to: blockSize, label: "kv_cache_block_type", value: "tokens_per"},
			{name: "nv_trt_llm_kv_cache_block_metrics", to: numBlocks, label: "kv_cache_block_type", value: "max"},
		},
	},
})

// indexed fills the dialects' indexes in.
func indexed(all []*dialect) []*dialect {
	for _, d := range all {
		for _, r := range d.rules {
			next := r.name[len(d.prefix)]
			d.byNext[next] = append(d.byNext[next], r)
		}
	}
	return all
}

// dialectNamed finds a dialect; an empty name is the fallback's.
func dialectNamed(name string, fallback *dialect) *dialect {
	for _, d := range dialects {
		if d.name == name {
			return d
		}
	}
	return fallback
}

// checkDialect reports a name that no engine has.
func checkDialect(key, name string) error {
	names := make([]string, len(dialects))
	for i, d := range dialects {
		names[i] = d.name
	}
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("%s: unknown engine %q%s; engines: %s", key, name, scheduling.Hint(name, names), strings.Join(names, ", "))
}
