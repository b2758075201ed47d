package telemetry

import (
	"context"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// Tracing is a tracer provider set up by the standard OTEL_* variables.
type Tracing struct {
	provider *sdktrace.TracerProvider
	exporter string
}

// NewTracing reads OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and their
// relatives; service is the service's name where they give none. Tracing is off, at no cost, unless an exporter or an OTLP
// endpoint is set, and when OTEL_SDK_DISABLED is true or the sampler is always_off. The error names the variable that has a
// value that it cannot have.
//
// What goes wrong while exporting is logged.
func NewTracing(ctx context.Context, service string, logger *slog.Logger) (*Tracing, error) {
	named := exporterOf()
	if named == "" {
		return &Tracing{}, nil
	}
	if err := checkVariables(named); err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	if sampler() == alwaysOff {
		return &Tracing{}, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("tracing", "error", err) }))
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	res, err := resourceOf(ctx, service)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return &Tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), named}, nil
}

// resourceOf describes the process. What the environment says of it goes before service.
func resourceOf(ctx context.Context, service string) (*resource.Resource, error) {
	return resource.New(ctx, resource.WithAttributes(span.ServiceName.String(service)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
}

// Tracer is nil when tracing is off.
func (t *Tracing) Tracer() trace.Tracer {
	if t.provider == nil {
		return nil
	}
	return t.provider.Tracer("github.com/sluice-epp/sluice")
}

// Exporter is the exporter's name, as OTEL_TRACES_EXPORTER has it; empty when tracing is off.
func (t *Tracing) Exporter() string { return t.exporter }

// FollowsCallers reports whether a request whose caller has a trace that is not recorded is never recorded either.
func (t *Tracing) FollowsCallers() bool {
	switch sampler() {
	case alwaysOn, ofRatio:
		return false
	}
	return true
}

// Close sends what is left.
func (t *Tracing) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}
