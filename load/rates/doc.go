// Package rates learns what work costs on the engines from what Sluice sees of its own requests: how long a prompt token
// takes to compute, how long a token in flight ahead makes a request wait, how much prefill and company slow decodes, and
// how much of the pool's time prefill takes. Nothing has to be measured beforehand, and what it publishes begins as the
// configured constants and moves away from them as samples come.
package rates
