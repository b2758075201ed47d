// Package latency predicts a request's time to the first token and its time per output token on each endpoint, in process and
// while it serves.
//
// What it sees of its own requests (each dispatch, first token, piece and end) it keeps as the work that each endpoint has before
// it. From that and the request follow the terms of a linear model of an engine's steps, whose coefficients are learnt online,
// may not be negative and stay near what physics says. What that cannot say (queues for KV memory, above all) a small forest of
// trees learns from the errors that it leaves; it is grown in the background.
package latency
