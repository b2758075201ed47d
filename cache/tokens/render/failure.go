package render

import (
	"errors"
	"fmt"
	"net/http"
)

// Reason says why there are no tokens.
type Reason uint8

// The reasons.
const (
	ReasonNone       Reason = iota
	ReasonTimeout           // no answer in time
	ReasonConnect           // no connection, or one that broke
	ReasonStatus            // an answer with another status than 200
	ReasonBadAnswer         // an answer that is none
	ReasonTooLarge          // a request or an answer past its bound
	ReasonBusy              // as many calls under way as a server gets
	ReasonBreaker           // the server's breaker is open
	ReasonNoRoute           // the server has neither a render route nor a tokenize route
	ReasonUnfaithful        // no render route, and the tokenize route would not give the engine's tokens
	ReasonNoServer          // there is no server to ask
	ReasonCanceled          // called off
)

var reasonNames = [...]string{
	"none", "timeout", "connect", "http_status", "bad_answer", "too_large", "busy", "breaker_open", "no_route",
	"tokenize_unfaithful", "no_server", "canceled",
}

// String is the reason's name as metrics show it.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Failure is the error of a call.
type Failure struct {
	// Reason says why there are no tokens.
	Reason Reason
	// Status is the HTTP status of the answer, where it is the reason.
	Status int
	// Err says more; it may be nil.
	Err error
}

// Error implements error.
func (f *Failure) Error() string {
	switch {
	case f.Err != nil:
		return fmt.Sprintf("render: %v: %v", f.Reason, f.Err)
	case f.Status != 0:
		return fmt.Sprintf("render: %v %d", f.Reason, f.Status)
	}
	return "render: " + f.Reason.String()
}

// OfRequest reports whether it is for the request itself that there are no tokens: servers and the way to them are well.
func (f *Failure) OfRequest() bool {
	switch f.Reason {
	case ReasonTooLarge, ReasonUnfaithful:
		return true
	}
	return f.Reason == ReasonStatus && f.Status != http.StatusNotFound && f.verdict() == succeeded
}

// Unwrap returns Err.
func (f *Failure) Unwrap() error { return f.Err }

// ReasonOf is the reason of an error; ReasonNone for nil, ReasonConnect for an error of unknown kind.
func ReasonOf(err error) Reason {
	var f *Failure
	switch {
	case err == nil:
		return ReasonNone
	case errors.As(err, &f):
		return f.Reason
	}
	return ReasonConnect
}

// verdict is what a failure says of the server. Those that are the request's own fault, or nobody's, say nothing, or that
// it works.
func (f *Failure) verdict() verdict {
	switch f.Reason {
	case ReasonTimeout, ReasonConnect, ReasonBadAnswer:
		return failed
	case ReasonStatus:
		switch {
		case f.Status == 401, f.Status == 403, f.Status == 429, f.Status < 400, f.Status >= 500:
			return failed
		}
		return succeeded
	case ReasonNoRoute, ReasonUnfaithful, ReasonTooLarge:
		return succeeded
	}
	return noVerdict
}
