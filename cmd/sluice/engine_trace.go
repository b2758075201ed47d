package main

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/server/telemetry/span"
	"github.com/sluice-epp/sluice/sim/engine"
)

// engineSpans makes a span of each request that an engine served, as vLLM does with --otlp-traces-endpoint: below whoever
// called, and once the request is over. nil where nothing traces.
func engineSpans(tracer trace.Tracer) func(engine.Served) {
	if tracer == nil {
		return nil
	}
	return func(s engine.Served) {
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(s.Header))
		_, made := tracer.Start(ctx, span.Engine, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(s.Begun))
		if made.IsRecording() {
			made.SetAttributes(engineAttributes(&s)...)
		}
		made.End(trace.WithTimestamp(s.Begun.Add(s.Total)))
	}
}

func engineAttributes(s *engine.Served) []attribute.KeyValue {
	all := []attribute.KeyValue{
		span.GenAIResponseModel.String(span.Text(s.Model)), span.VLLMChoices.Int(s.Samples),
		span.VLLMInputTokens.Int(s.PromptTokens), span.VLLMOutputTokens.Int(s.CompletionTokens), span.GenAICachedTokens.Int(s.CachedTokens),
		span.VLLMEndToEnd.Float64(s.Total.Seconds()),
	}
	if id := s.Header.Get("x-request-id"); id != "" {
		all = append(all, span.VLLMRequestID.String(span.Text(id)))
	}
	if s.MaxTokens > 0 {
		all = append(all, span.GenAIMaxTokens.Int(s.MaxTokens))
	}
	for _, took := range []struct {
		key attribute.Key
		d   time.Duration
	}{
		{span.VLLMTimeInQueue, s.Queue}, {span.VLLMTimeToFirst, s.FirstToken},
		{span.VLLMTimeInPrefill, s.FirstToken - max(0, s.Queue)}, {span.VLLMTimeInDecode, s.Decode},
	} {
		if took.d >= 0 {
			all = append(all, took.key.Float64(took.d.Seconds()))
		}
	}
	return all
}
