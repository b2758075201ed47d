package extproc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/scheduling"
)

// spans are the trace of one stream: receive (the whole stream), one span per scheduling phase below it, and upstream
// from the pick to the end. The zero value, which is what an unsampled request has, does nothing and allocates nothing.
type spans struct {
	tracer   trace.Tracer
	ctx      context.Context
	receive  trace.Span
	phase    trace.Span
	upstream trace.Span
}

var propagator = propagation.TraceContext{}

// start joins the client's trace, where there is one and it is sampled.
func (s *spans) start(ctx context.Context, tracer trace.Tracer, r *scheduling.Request) {
	if tracer == nil {
		return
	}
	parent := propagator.Extract(ctx, headerCarrier{r})
	ctx, span := tracer.Start(parent, "receive", trace.WithSpanKind(trace.SpanKindServer))
	if !span.IsRecording() {
		return
	}
	s.tracer, s.ctx, s.receive = tracer, ctx, span
	r.TraceID = span.SpanContext().TraceID().String()
	span.SetAttributes(attribute.String("gen_ai.operation.name", r.Operation.String()))
}

// observe returns the observer that turns scheduling phases into spans; nil when the request is not sampled.
func (s *spans) observe() scheduling.PhaseObserver {
	if s.receive == nil {
		return nil
	}
	return s
}

// EnterPhase ends the span of the phase before and starts the next one's.
func (s *spans) EnterPhase(p scheduling.Phase) {
	if s.phase != nil {
		s.phase.End()
		s.phase = nil
	}
	if p != scheduling.PhaseCommitted {
		_, s.phase = s.tracer.Start(s.ctx, p.String())
	}
}

// picked notes the decision and starts the upstream span.
func (s *spans) picked(c *scheduling.Cycle, f *scheduling.Flight) {
	if s.receive == nil {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.request.model", attributeText(f.Model)),
		attribute.String("server.address", f.Endpoint.Address),
		attribute.Int64("sluice.request.id", int64(f.ID)),
		attribute.Int("sluice.candidates", c.Considered.Len()),
	}
	if n := len(c.Gates); n > 0 {
		attributes = append(attributes, attribute.String("sluice.gate", c.Gates[n-1].Verdict.String()))
	}
	s.receive.SetAttributes(attributes...)
	_, s.upstream = s.tracer.Start(s.ctx, "upstream", trace.WithSpanKind(trace.SpanKindClient))
}

// maxAttributeText bounds a text in a span that a client can make up.
const maxAttributeText = 256

// attributeText is a client's text as spans take it: one that is not UTF-8 costs the whole batch that it is exported in.
func attributeText(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxAttributeText)], "\uFFFD")
}

func (s *spans) responseBegun(status int) {
	if s.upstream != nil {
		s.upstream.SetAttributes(attribute.Int("http.response.status_code", status))
	}
}

func (s *spans) firstToken() {
	if s.upstream != nil {
		s.upstream.AddEvent("first_token")
	}
}

func (s *spans) end() {
	for _, span := range []trace.Span{s.phase, s.upstream, s.receive} {
		if span != nil {
			span.End()
		}
	}
	*s = spans{}
}

// headerCarrier lets a propagator read a request's headers.
type headerCarrier struct{ request *scheduling.Request }

// Get returns a header.
func (h headerCarrier) Get(key string) string { return stringHeader(h.request, lower(key)) }

// Set does nothing: the trace goes on upstream in the proxy's own headers.
func (headerCarrier) Set(string, string) {}

// Keys lists the header names.
func (h headerCarrier) Keys() []string {
	keys := make([]string, len(h.request.Headers))
	for i := range h.request.Headers {
		keys[i] = h.request.Headers[i].Name
	}
	return keys
}
