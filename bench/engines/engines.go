// Package engines stands in for a pool of engines: loopback addresses that answer what a picker asks of an engine, and
// serve no inference.
package engines

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// page is what vLLM's metrics page says of load and of the KV cache.
const page = `# HELP vllm:num_requests_running Number of requests in model execution batches.
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

// Pool is a number of engines. Close ends them.
type Pool struct {
	addresses []string
	server    *http.Server
	serving   sync.WaitGroup
	mu        sync.Mutex
	failures  []error
}

// Start opens a listener per engine, each on a free port of 127.0.0.1.
func Start(n int) (*Pool, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(page)) // the reader may have gone
	})
	p := &Pool{server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(fmt.Errorf("engine %d of %d: %w", len(p.addresses)+1, n, err), p.Close())
		}
		p.addresses = append(p.addresses, l.Addr().String())
		p.serving.Go(func() { p.serve(l) })
	}
	return p, nil
}

func (p *Pool) serve(l net.Listener) {
	if err := p.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failures = append(p.failures, fmt.Errorf("engine %v: %w", l.Addr(), err))
	}
}

// Addresses are the engines' host:port.
func (p *Pool) Addresses() []string { return p.addresses }

// Close ends the engines. It returns what went wrong while they served.
func (p *Pool) Close() error {
	err := p.server.Close()
	p.serving.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(p.failures, err)...)
}
