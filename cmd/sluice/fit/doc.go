// Package fit reads measured times of requests, from tables and from decision logs, and says what costs of an engine's steps
// they amount to: the work of `sluice fit`.
package fit
