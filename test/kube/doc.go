// Package kube holds tests of what Sluice finds in Kubernetes, against a real API server, and of what becomes of traffic
// through a real Envoy while that is away. `make test-kube` runs them.
package kube
