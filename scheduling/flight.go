package scheduling

import "time"

// EndReason says how a stream ended.
type EndReason uint8

// The ends of a stream.
const (
	// EndComplete is the end of the response.
	EndComplete EndReason = iota
	// EndDisconnect is a stream that went before the end of the response was seen: the client or the proxy left.
	EndDisconnect
	// EndError is a response that the engine or the proxy failed.
	EndError
	// EndUnseen is a stream that the proxy closes by configuration before the response; Outcome then holds estimates.
	EndUnseen
)

var endReasonNames = [...]string{"complete", "disconnect", "error", "estimated"}

// String is the reason's name as metrics and records show it.
func (e EndReason) String() string {
	if int(e) < len(endReasonNames) {
		return endReasonNames[e]
	}
	return "unknown"
}

// Usage is what an engine counted for a request. A negative number is one that it did not give.
type Usage struct {
	// PromptTokens is the number of input tokens.
	PromptTokens int
	// CompletionTokens is the number of generated tokens.
	CompletionTokens int
	// CachedTokens is how many input tokens came out of the prefix cache.
	CachedTokens int
}

// UnknownUsage is the usage of an answer that had none.
var UnknownUsage = Usage{PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1}

// Outcome is what is known at the end of a flight.
type Outcome struct {
	// Reason says how the stream ended.
	Reason EndReason
	// Status is the HTTP status of the response; 0 when none was seen.
	Status int
	// Usage is what the engine counted.
	Usage Usage
	// PromptTokens are the first prompt's token ids as the engine gave them (return_token_ids); nil where it did not.
	// They are valid until Done returns.
	PromptTokens []uint32
}

// Flight is one picked request from its pick to its end.
type Flight struct {
	// ID is the request's ID.
	ID uint64
	// Profile is the name of the scheduling profile that picked.
	Profile string
	// Model is the request's model name.
	Model string
	// Operation is the request's API.
	Operation Operation
	// Stream says that the client asked for a streamed answer.
	Stream bool
	// TraceID is the request's; empty where no trace records it.
	TraceID string
	// Endpoint is the one that carries the charge: the first pick, or the one that the proxy reported as serving.
	Endpoint *Endpoint
	// Picks are the ordered picks; the proxy may fall back onto the later ones.
	Picks []*Endpoint
	// Predicted is the latency that was predicted for the first pick; the zero value where none was.
	Predicted LatencyPrediction
	// PickedAt is the time of the pick on the clock of Cycle.Now.
	PickedAt time.Duration
	// Outcome is filled in before Done.
	Outcome Outcome

	scheduler *Scheduler
	states    []storage
	phase     flightPhase
	committed bool // every follower knows of it
}

type flightPhase uint8

const (
	flightCommitted flightPhase = iota
	flightFirstToken
	flightDone
)

// FirstToken tells the followers that the first token was seen. Repeated calls, and calls after Done, change nothing.
func (f *Flight) FirstToken(now time.Duration) {
	if f.phase != flightCommitted {
		return
	}
	f.phase = flightFirstToken
	for _, follower := range f.scheduler.followers {
		follower.FirstToken(f, now)
	}
}

// WantsChunks reports whether anyone follows the pieces of the answer, so that nobody looks at the clock for nothing.
func (f *Flight) WantsChunks() bool { return len(f.scheduler.chunkers) > 0 }

// Chunk tells those who follow them that a piece of the answer came. Before the first token, and after Done, it does nothing.
func (f *Flight) Chunk(now time.Duration) {
	if f.phase != flightFirstToken {
		return
	}
	for _, c := range f.scheduler.chunkers {
		c.Chunk(f, now)
	}
}

// releaseUnless ends the flight where a plugin's fault keeps it from its caller, who then could not: what was charged by
// then would stay for ever.
func (f *Flight) releaseUnless(reached *bool) {
	if !*reached {
		f.Done(Outcome{Reason: EndError, Usage: UnknownUsage}, f.PickedAt)
	}
}

// Scheduler is the one that made the pick; a newer configuration may be in force by now.
func (f *Flight) Scheduler() *Scheduler { return f.scheduler }

// SeenFirstToken reports whether FirstToken was told.
func (f *Flight) SeenFirstToken() bool { return f.phase >= flightFirstToken }

// Served tells the followers which endpoint the proxy reported. It does nothing when that is the endpoint already
// charged, or after Done.
func (f *Flight) Served(e *Endpoint, now time.Duration) {
	if f.phase == flightDone || e == nil || (e.Ordinal == f.Endpoint.Ordinal && e.Generation == f.Endpoint.Generation) {
		return
	}
	from := f.Endpoint
	f.Endpoint = e
	for _, m := range f.scheduler.movers {
		m.Moved(f, from, now)
	}
}

// Done tells the followers how the flight ended, releasing everything that it holds, and gives its memory back: f must
// not be used afterwards, by nobody: it may be another request's by then.
func (f *Flight) Done(outcome Outcome, now time.Duration) {
	if f.phase == flightDone { // not yet another's: what a late caller finds is at least not released twice
		return
	}
	f.phase = flightDone
	f.Outcome = outcome
	for _, follower := range f.scheduler.followers {
		follower.Done(f, now)
	}
	f.scheduler.recycle(f)
}
