// Package calibrate measures what a deployment prefills per second, and how long it may be waited for a prefix: out of a
// decision log, or by asking a live endpoint.
package calibrate
