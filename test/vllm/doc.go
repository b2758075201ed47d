// Package vllm tests Sluice in front of two real vLLM engines and a real Envoy: before each request Sluice says how many
// tokens of the prompt it knows to be cached where it sends it, and afterwards the engine says how many were.
//
// `make test-vllm` installs vLLM and runs it; without that the package's tests are skipped.
package vllm
