// Package jaeger configures a Jaeger that keeps traces in memory, on loopback, and reads them back from its query API.
package jaeger

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Params are where a Jaeger listens, each an ip:port.
type Params struct {
	// Query is the address of the API and of the UI, over HTTP.
	Query string
	// QueryGRPC is that of the same API over gRPC.
	QueryGRPC string
	// OTLP is where spans are received, OTLP over gRPC.
	OTLP string
}

// maxTraces bounds what is kept in memory.
const maxTraces = 10_000

// Jaeger does not trace its own API: it would send these spans to a port that is not its own.
const config = `service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}
  telemetry:
    resource: {service.name: jaeger}
    metrics: {level: none}
    logs: {level: warn}
extensions:
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: %q}
    grpc: {endpoint: %q}
    enable_tracing: false
  jaeger_storage:
    backends: {memory: {memory: {max_traces: %d}}}
receivers:
  otlp: {protocols: {grpc: {endpoint: %q}}}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
`

// Render writes the configuration that a Jaeger is given as --config.
func Render(p Params) ([]byte, error) {
	for name, address := range map[string]string{"query": p.Query, "queryGRPC": p.QueryGRPC, "otlp": p.OTLP} {
		if _, err := netip.ParseAddrPort(address); err != nil {
			return nil, fmt.Errorf("jaeger: %s: must be ip:port, got %q", name, address)
		}
	}
	return fmt.Appendf(nil, config, p.Query, p.QueryGRPC, maxTraces, p.OTLP), nil
}

// API is the query API of a Jaeger.
type API struct {
	// URL is where it is, without a slash at the end.
	URL string
	// Client sends the requests.
	Client *http.Client
}

// Ready reports whether the API answers.
func (a *API) Ready(ctx context.Context) bool {
	_, status, err := a.get(ctx, "/api/services")
	return err == nil && status == http.StatusOK
}

// HasUI reports whether the binary has the pages of the UI: one that is built from its Go module alone has none.
func (a *API) HasUI(ctx context.Context) bool {
	page, status, err := a.get(ctx, "/")
	return err == nil && status == http.StatusOK && strings.Contains(string(page), "jaeger-ui-root")
}

// Page is the page of a trace in the UI, Source the same trace in the API.
func (a *API) Page(traceID string) string { return a.URL + "/trace/" + traceID }

// Source is the trace in the API, as JSON.
func (a *API) Source(traceID string) string { return a.URL + "/api/traces/" + traceID }
