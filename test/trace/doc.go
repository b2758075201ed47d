// Package trace holds tests that read the traces of requests back from a real Jaeger: they went through a real Envoy, a
// Sluice and simulated engines, each a process of its own that sends its spans by itself. `make test-trace` runs them.
package trace
