// Package fleet runs a trace of requests through engines and a picker in virtual time, closed loop: where a request is sent
// changes what the engines hold and have to do, and so what the next one finds.
//
// The engines are those of package sim. What the picker sees of them is not their state but what it would see of real ones:
// KV events that come late or never, metrics as old as the last scrape, first tokens and ends as they stream by. See [View].
package fleet
