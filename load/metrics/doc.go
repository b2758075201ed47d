// Package metrics reads what engines say of themselves on their metrics pages: how many requests wait and run, how full
// the KV cache is, how large it is, which adapters are in use, whether the engine sleeps, and when it was started.
//
// It provides two plugins over one Store. engine-metrics-producer reads often and fills the EngineMetrics column, for
// scorers and filters that decide by the engine's load. engine-info-producer reads seldom and serves what changes
// seldom: the shape of the cache, restarts and sleep. A page is read by at most one of them at a time, and what either
// has read is known to both.
//
// A page is scanned for the few families that matter as it comes in, without building anything of the rest. What a page
// does not say, or does not say any more, is unknown; it is never taken for zero.
package metrics
