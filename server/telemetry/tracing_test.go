package telemetry

import (
	"log/slog"
	"strings"
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
		"": true, "parentbased_always_on": true, "parentbased_traceidratio": true, "PARENTBASED_ALWAYS_OFF": true,
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

// A value that a variable cannot have is named with its variable, what it could be, and what is nearest to it.
func TestVariables(t *testing.T) {
	const wantExporter, wantSampler = "tracing: OTEL_TRACES_EXPORTER: must be one of otlp, console, none, got ",
		"tracing: OTEL_TRACES_SAMPLER: must be one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio, got "
	const wantArg = "tracing: OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1, the share of requests that OTEL_TRACES_SAMPLER="
	for _, tc := range []struct{ exporter, endpoint, protocol, sampler, arg, want, on string }{
		{want: "", on: ""},
		{exporter: "otlp", on: "otlp"},
		{endpoint: "http://127.0.0.1:1", protocol: "grpc", sampler: " Parentbased_TraceIDRatio ", arg: " 0.25", on: "otlp"},
		{exporter: "console", protocol: "nonsense", sampler: "always_on", arg: "nonsense", on: "console"},
		{exporter: "none", sampler: "nonsense"},
		{sampler: "nonsense"}, // nothing is traced
		{exporter: "otlp", sampler: "always_off"},
		{exporter: "otpl", want: wantExporter + `"otpl" (did you mean "otlp"?)`},
		{exporter: "otpl", sampler: "always_off", want: wantExporter + `"otpl" (did you mean "otlp"?)`},
		{exporter: "zipkin", want: wantExporter + `"zipkin"`},
		{exporter: "otlp", protocol: "http", want: `tracing: OTEL_EXPORTER_OTLP_PROTOCOL: must be one of grpc, http/protobuf, got "http"`},
		{exporter: "console", sampler: "parentbased_ratio", want: wantSampler + `"parentbased_ratio"`},
		{exporter: "console", sampler: "always-off", want: wantSampler + `"always-off" (did you mean "always_off"?)`},
		{exporter: "console", sampler: "traceidratio", arg: "1%", want: wantArg + `traceidratio records, got "1%"`},
		{exporter: "console", sampler: "parentbased_traceidratio", arg: "-1", want: wantArg + `parentbased_traceidratio records, got "-1"`},
		{exporter: "console", sampler: "traceidratio", arg: "NaN", want: wantArg + `traceidratio records, got "NaN"`},
	} {
		t.Run(tc.exporter+" "+tc.sampler+" "+tc.arg, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", tc.exporter)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", tc.endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", tc.protocol)
			t.Setenv("OTEL_TRACES_SAMPLER", tc.sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", tc.arg)
			tracing, err := NewTracing(t.Context(), "sluice", slog.New(slog.DiscardHandler))
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				defer func() {
					if err := tracing.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				if tracing.Exporter() != tc.on || (tracing.Tracer() != nil) != (tc.on != "") {
					t.Errorf("the exporter is %q, want %q", tracing.Exporter(), tc.on)
				}
			}
			if !strings.HasPrefix(got, tc.want) || (tc.want == "") != (got == "") {
				t.Errorf("%s\nwant %s", got, tc.want)
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
