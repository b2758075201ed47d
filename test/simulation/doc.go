// Package simulation compares what package fleet says of a trace in virtual time with what comes of it in wall-clock time:
// the same requests through a real Envoy and a real Sluice to simulated engines behind sockets.
package simulation
