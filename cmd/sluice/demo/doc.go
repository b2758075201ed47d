// Package demo runs the whole path on one machine, as a person would see it: simulated engines, Sluice, a real Envoy, and
// a multi-turn chat workload that goes once through Sluice's picks and once round robin.
package demo
