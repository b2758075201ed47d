package extproc

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-epp/sluice/scheduling"
)

// The headers of W3C Trace Context.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// caller is the span of whoever called, as Trace Context has it; empty where there is none.
type caller struct{ parent, state string }

// callerOf finds the span that a request's own is a child of. A proxy that traces says so in its call to Sluice: its span of
// that call. The request's headers, as a proxy hands them on, still hold the client's span: they count where the proxy does
// not trace. recorded is false where there is a span and it is not recorded; caller is then empty.
func callerOf(ctx context.Context, r *scheduling.Request) (c caller, recorded bool) {
	if values := metadata.ValueFromIncomingContext(ctx, traceparent); len(values) == 1 && validParent(values[0]) {
		if !sampled(values[0]) {
			return caller{}, false
		}
		c.parent = values[0]
		if states := metadata.ValueFromIncomingContext(ctx, tracestate); len(states) == 1 {
			c.state = states[0]
		}
		return c, true
	}
	value, ok := r.Header(traceparent)
	switch {
	case !ok || !validParent(value):
		return caller{}, true
	case !sampled(value):
		return caller{}, false
	}
	return caller{parent: string(value), state: stringHeader(r, tracestate)}, true
}

// join puts the caller's span into a context.
func (c caller) join(ctx context.Context) context.Context {
	if c.parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: withoutReserved(c.parent), tracestate: c.state})
}

// withoutReserved clears the flags of a valid traceparent that have no meaning yet. OpenTelemetry takes no parent that has one,
// and the trace would begin anew here (https://www.w3.org/TR/trace-context-2/#other-flags).
func withoutReserved(parent string) string {
	return parent[:parentBytes-2] + "0" + string('0'+digit(parent[parentBytes-1])&3)
}

// parentBytes is the length of a traceparent: version, trace, span and flags with dashes between them.
const parentBytes = 2 + 1 + 32 + 1 + 16 + 1 + 2

// validParent reports whether a value is a traceparent: lower-case hexadecimal, neither id zero. What a later version adds
// at its end counts as none.
func validParent[T string | []byte](v T) bool {
	if len(v) != parentBytes || v[0] == 'f' && v[1] == 'f' {
		return false
	}
	zero := true
	for i := range len(v) {
		switch c := v[i]; {
		case i == 2 || i == 35 || i == 52:
			if c != '-' || i > 2 && zero {
				return false
			}
			zero = true
		case c == '0':
		case '1' <= c && c <= '9' || 'a' <= c && c <= 'f':
			zero = false
		default:
			return false
		}
	}
	return true
}

// sampled is the flag of a valid traceparent that says that its span is recorded.
func sampled[T string | []byte](v T) bool {
	return digit(v[parentBytes-1])&1 == 1
}

// digit is the value of a lower-case hexadecimal digit.
func digit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}
