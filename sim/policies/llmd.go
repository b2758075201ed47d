package policies

import "slices"

// llmd are the policies of llm-d-router, in its own configuration format.
func llmd() []Policy {
	gate := []Parameter{
		{Name: "threshold", Default: "0.80", Help: "share of the prompt from which an endpoint that holds it is kept to"},
		{Name: "epsilon", Default: "0", Help: "share of requests that may go anywhere"},
		{Name: "penalty", Default: "18000", Help: "how much longer the wait may be there, in ms; 0 is without bound"},
		{Name: "peak", Default: "15928", Help: "prompt tokens that an engine computes in a second"},
	}
	weights := []Parameter{
		{Name: "prefix", Default: "3", Help: "weight of prefix-cache-scorer"},
		{Name: "queue", Default: "2", Help: "weight of queue-scorer"},
		{Name: "kv", Default: "2", Help: "weight of kv-cache-utilization-scorer"},
	}
	weighted := func(ps []Parameter) []Parameter {
		return append(slices.Clone(ps), indexBy(approx), tunedCapacity())
	}
	blend := append(slices.Clone(weights), Parameter{Name: "lru", Default: "2", Help: "weight of no-hit-lru-scorer"})
	gate = append(gate, indexBy(precise), tunedCapacity())
	return []Policy{
		{
			Name: "llm-d", Summary: "llm-d's default: prefix match, queue and KV cache use, weighted, by its own record of picks",
			Source:     "llm-d-router default configuration at ebab68792",
			config:     "llm-d.yaml",
			Parameters: weighted(weights),
			Tuned:      grid(weighted(weights), over("prefix", "1 3 6 10"), over("queue", "1 2"), over("index", "approx precise")),
		},
		{
			Name: "llm-d-blend", Summary: "the same, and requests that nobody has anything of in turn to who got such a one longest ago",
			Source:     "llm-d-router sample configurations (no-hit-lru-scorer) at ebab68792",
			config:     "llm-d-blend.yaml",
			Parameters: weighted(blend),
			Tuned:      grid(weighted(blend), over("prefix", "1 3 6 10"), over("queue", "1 2"), over("index", "approx precise")),
		},
		{
			Name: "llm-d-gate", Summary: "keeps to who holds the prompt until the wait there is 18 s longer, then fewest tokens in flight",
			Source:     "llm-d-router prefix-cache-affinity-filter and token-load-scorer at ebab68792, pull request 2071",
			config:     "llm-d-gate.yaml",
			Parameters: gate,
			Tuned:      append(grid(gate, over("threshold", "0.50 0.80"), over("penalty", "1000 5000 18000")), Params{"epsilon": "0.01"}),
		},
		{
			Name: "llm-d-matched", Summary: "the same, until it has more tokens ahead than the match saves",
			Source:     "llm-d-router prefix-cache-affinity-filter, penaltyMode matchedTokens",
			config:     "llm-d-matched.yaml",
			Parameters: gate,
			Tuned:      append(grid(gate, over("threshold", "0.50 0.80"), over("penalty", "5000 18000")), Params{"epsilon": "0.01"}),
		},
	}
}
