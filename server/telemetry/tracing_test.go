package telemetry

import (
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// What FollowsCallers says of a sampler is what the SDK's sampler of that name does.
func TestFollowsCallers(t *testing.T) {
	unrecorded := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true,
	}))
	for sampler, want := range map[string]bool{
		"": true, "parentbased_always_on": true, "parentbased_traceidratio": true, "PARENTBASED_ALWAYS_OFF": true, "nonsense": true,
		"always_on": false, " Always_On ": false, "traceidratio": false,
	} {
		t.Run(sampler, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", "console")
			t.Setenv("OTEL_TRACES_SAMPLER", sampler)
			tracing, err := NewTracing(t.Context(), "sluice", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := tracing.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			if got := tracing.FollowsCallers(); got != want {
				t.Errorf("follows callers: %v, want %v", got, want)
			}
			// A provider of its own: nothing is to be exported.
			_, s := sdktrace.NewTracerProvider().Tracer("test").Start(unrecorded, "x")
			if s.IsRecording() == want {
				t.Errorf("the SDK records below a caller that is not recorded: %v", s.IsRecording())
			}
		})
	}
}

func TestServiceName(t *testing.T) {
	for name, want := range map[string]string{"": "sluice", "mine": "mine"} {
		t.Setenv("OTEL_TRACES_EXPORTER", "none")
		t.Setenv("OTEL_SERVICE_NAME", name)
		res, err := resourceOf(t.Context(), "sluice")
		if err != nil {
			t.Fatal(err)
		}
		recorder := tracetest.NewSpanRecorder()
		_, s := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithResource(res)).Tracer("test").Start(t.Context(), "x")
		s.End()
		got, _ := recorder.Ended()[0].Resource().Set().Value(span.ServiceName)
		if got != attribute.StringValue(want) {
			t.Errorf("OTEL_SERVICE_NAME=%q: the service is %q, want %q", name, got.AsString(), want)
		}
	}
}
