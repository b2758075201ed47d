// Package lab puts together what the end-to-end and conformance tests run: simulated engines and small HTTP servers on
// loopback addresses that stand for pods, Sluice inside the test process, and a real Envoy in front.
package lab
