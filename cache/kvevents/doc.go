// Package kvevents follows engines' KV events: what enters and leaves their prefix caches. A [Feed] finds out where an
// endpoint's engine publishes, keeps a connection to each publisher, reads the past from the replay sockets, and tells a
// [Sink] per data-parallel rank what the engine holds, in order. Frames are read by package zmtp and events by package
// wire; what gaps, repeats and restarts mean is decided by package cursor, which this package only obeys.
//
// Goroutines. A Feed has one of its own, for what is due by time; one per publisher that it keeps a connection to; and one
// while a replay runs or the engine is asked where it publishes. They share the Feed's lock, under which the sinks are called, so calls for one source, and
// for all ranks of one endpoint, come one at a time. Feeds share nothing but an [Acceptor]: an engine that is dead, in
// whatever way, holds up its own Feed only.
//
// Whose a message is. The connection tells the endpoint, the batch tells the rank. Topics are free text that engines are
// configured with; where an engine connects by itself, from an address that it may share, one that names an endpoint's
// address tells whose it is.
//
// Limits. All are constants in limits.go; what exceeds one is dropped and counted in [Stats], and the log says so at most
// once a minute for each endpoint and kind of trouble.
package kvevents
