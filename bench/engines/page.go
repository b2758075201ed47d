package engines

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the page
	"fmt"
	"io"
)

// short is what vLLM's metrics page says of load and of the KV cache.
const short = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.5
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="27000"} 1.0
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
`

// captured is the whole page of a real vLLM 0.33 that has served a few requests, 54 KB.
//
//go:embed pages/vllm.txt.gz
var captured []byte

// pages returns two metrics pages that differ in the number of running requests, as a page differs from one reading to
// the next.
func pages(realSize bool) (out [2][]byte, err error) {
	page := []byte(short)
	if realSize {
		z, err := gzip.NewReader(bytes.NewReader(captured))
		if err != nil {
			return out, fmt.Errorf("the captured metrics page: %w", err)
		}
		if page, err = io.ReadAll(z); err != nil {
			return out, fmt.Errorf("the captured metrics page: %w", err)
		}
	}
	at := bytes.Index(page, []byte("\nvllm:num_requests_running{"))
	end := -1
	if at >= 0 {
		end = bytes.IndexByte(page[at+1:], '\n')
	}
	if end < 0 {
		return out, fmt.Errorf("the metrics page does not tell the running requests")
	}
	line := page[at+1 : at+1+end]
	name := line[:bytes.LastIndexByte(line, ' ')]
	for i := range out {
		out[i] = bytes.Join([][]byte{page[:at+1], name, fmt.Appendf(nil, " %d.0", 4+i), page[at+1+end:]}, nil)
	}
	return out, nil
}
