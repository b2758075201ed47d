package extproc

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// spans are the trace of one stream: a span of the whole, and below it one for each thing that the request waits for. The
// zero value, which is what a request has that no trace records, does nothing and allocates nothing.
//
// Phases only note the time; they become spans once the pick is made, so that no other pick waits for the tracer.
type spans struct {
	tracer  trace.Tracer
	ctx     context.Context // holds request
	request trace.Span
	marks   []mark
	since   time.Time // the pick, or the first token: the next span's beginning
}

// mark is where a phase begins and the one before ends. Without a name it only ends that.
type mark struct {
	name     string
	producer string
	at       time.Time
}

// start begins the trace of a request, below the span of whoever called, where that is recorded.
func (s *spans) start(ctx context.Context, cfg *Config, r *scheduling.Request) {
	if cfg.Tracer == nil {
		return
	}
	parent, recorded := callerOf(ctx, r)
	if !recorded && cfg.FollowTraces {
		return
	}
	now := time.Now()
	ctx, request := cfg.Tracer.Start(parent.join(ctx), span.Request, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(now))
	if !request.IsRecording() {
		return
	}
	s.tracer, s.ctx, s.request = cfg.Tracer, ctx, request
	r.TraceID = request.SpanContext().TraceID().String()
	s.marks = append(s.marks, mark{name: span.Receive, at: now})
	if id, ok := r.Header("x-request-id"); ok {
		request.SetAttributes(span.ClientRequestID.String(span.Text(string(id))))
	}
	request.SetAttributes(span.RequestID.Int64(int64(r.ID))) //nolint:gosec // ids count from 1
}

// observe returns the observer of the scheduling phases; nil when no trace records the request.
func (s *spans) observe() scheduling.PhaseObserver {
	if s.request == nil {
		return nil
	}
	return s
}

// phases are the spans of the scheduling phases. PhaseProduce has one a producer instead, and PhaseCommitted none.
var phases = map[scheduling.Phase]string{
	scheduling.PhaseWait: span.Wait, scheduling.PhaseFill: span.Fill, scheduling.PhaseFilter: span.Filter,
	scheduling.PhaseScore: span.Score, scheduling.PhasePick: span.Pick,
}

// EnterPhase notes when a phase begins.
func (s *spans) EnterPhase(p scheduling.Phase) {
	s.marks = append(s.marks, mark{name: phases[p], at: time.Now()})
}

// EnterProducer notes when a producer's turn comes.
func (s *spans) EnterProducer(name string) {
	s.marks = append(s.marks, mark{name: span.Produce, producer: name, at: time.Now()})
}

// decided tells of a decision; f is nil where nothing could be picked.
func (s *spans) decided(c *scheduling.Cycle, f *scheduling.Flight) {
	if s.request == nil {
		return
	}
	s.flush(c)
	s.request.SetAttributes(decisionAttributes(c)...)
	if f != nil {
		s.since = time.Now()
		s.request.SetAttributes(pickAttributes(c, f)...)
	}
}

// flush makes spans of the phases. c names the producers and their faults; nil where there is none.
func (s *spans) flush(c *scheduling.Cycle) {
	now := time.Now()
	for i, m := range s.marks {
		end := now
		if i+1 < len(s.marks) {
			end = s.marks[i+1].at
		}
		if m.name == "" {
			continue
		}
		if m.producer == "" {
			s.child(m.name, trace.SpanKindInternal, m.at, end)
			continue
		}
		s.produced(c, m, end)
	}
	s.marks = nil
}

func (s *spans) child(name string, kind trace.SpanKind, from, to time.Time) {
	_, child := s.tracer.Start(s.ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(from))
	child.End(trace.WithTimestamp(to))
}

// produced makes the span of a producer, named for what it finds out.
func (s *spans) produced(c *scheduling.Cycle, m mark, end time.Time) {
	name := m.name
	if c != nil {
		name = producerSpan(c.Scheduler(), m.producer)
	}
	_, child := s.tracer.Start(s.ctx, name, trace.WithTimestamp(m.at), trace.WithAttributes(span.Plugin.String(m.producer)))
	if c != nil {
		for _, fault := range c.Faults {
			if fault.Producer == m.producer {
				child.SetStatus(codes.Error, span.Text(fault.Err.Error()))
			}
		}
	}
	child.End(trace.WithTimestamp(end))
}

// producerSpan tells tokenizers and indices from other producers by what they fill.
func producerSpan(s *scheduling.Scheduler, producer string) string {
	for _, column := range s.Columns() {
		if column.Producer != producer {
			continue
		}
		switch column.DataType {
		case scheduling.DataTypeOf[scheduling.TokenizedPrompt]():
			return span.Tokenize
		case scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]():
			return span.Lookup
		}
	}
	return span.Produce
}

func (s *spans) responseBegun(status int) {
	if s.request != nil {
		s.request.SetAttributes(span.ResponseStatus.Int(status))
	}
}

func (s *spans) firstToken() {
	if s.request == nil || s.since.IsZero() {
		return
	}
	now := time.Now()
	s.child(span.FirstToken, trace.SpanKindClient, s.since, now)
	s.request.SetAttributes(span.GenAIFirstChunk.Float64(now.Sub(s.since).Seconds()))
	s.since = now
}

// ended tells how a picked request ended. The times are since the pick, first negative where no first token was seen; choices are
// the answers that were asked for.
func (s *spans) ended(f *scheduling.Flight, o scheduling.Outcome, first, total time.Duration, choices int) {
	if s.request == nil || s.since.IsZero() {
		return
	}
	s.child(span.End, trace.SpanKindClient, s.since, time.Now())
	s.since = time.Time{}
	attributes := []attribute.KeyValue{span.EndReason.String(o.Reason.String())}
	for _, count := range []struct {
		key attribute.Key
		n   int
	}{
		{span.GenAIInputTokens, o.Usage.PromptTokens},
		{span.GenAICachedTokens, o.Usage.CachedTokens},
		{span.GenAIOutputTokens, o.Usage.CompletionTokens},
	} {
		if count.n >= 0 {
			attributes = append(attributes, count.key.Int(count.n))
		}
	}
	end := record.EndingOf(f, o, first, total)
	if end.ServedBy != "" {
		attributes = append(attributes, span.ServedBy.String(end.ServedBy))
	}
	attributes = append(attributes, seenAttributes(&f.Predicted, &end, choices)...)
	s.request.SetAttributes(attributes...)
	if o.Status >= 400 {
		s.failed(o.Status, strconv.Itoa(o.Status))
	}
}

// refused tells of an answer to the client instead of a pick.
func (s *spans) refused(i *immediate) {
	if s.request == nil {
		return
	}
	s.responseBegun(i.status)
	s.failed(i.status, i.reason)
}

// failed notes a status that is an error. A client's own is no fault of the server's.
func (s *spans) failed(status int, why string) {
	s.request.SetAttributes(span.ErrorType.String(why))
	if status >= 500 {
		s.request.SetStatus(codes.Error, why)
	}
}

// end ends the trace with the stream.
func (s *spans) end() {
	if s.request == nil {
		return
	}
	s.flush(nil)
	s.request.End()
	*s = spans{}
}
