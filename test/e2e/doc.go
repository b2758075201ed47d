// Package e2e tests the whole path: clients speak HTTP to a real Envoy, Envoy asks Sluice, and the picked engine, a
// simulated vLLM on an address of its own, answers.
package e2e
