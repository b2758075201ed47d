package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/deploy/jaeger"
	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// tracePorts are those of Jaeger.
type tracePorts struct{ query, queryGRPC, otlp int }

// newTrace makes up a trace and its client's span, as the header traceparent has it, to be recorded.
func newTrace() (traceID, traceparent string) {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	traceID = hex.EncodeToString(b[:16])
	return traceID, "00-" + traceID + "-" + hex.EncodeToString(b[16:]) + "-01"
}

func (d *demo) startJaeger(ctx context.Context) error {
	if d.o.Jaeger == "" {
		return nil
	}
	p := d.tracePorts
	config, err := jaeger.Render(jaeger.Params{Query: local(p.query), QueryGRPC: local(p.queryGRPC), OTLP: local(p.otlp)})
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir, "jaeger.yaml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	if d.jaeger, err = start("jaeger", nil, d.o.Jaeger, "--config", path); err != nil {
		return err
	}
	return d.jaeger.await(ctx, d.api().Ready)
}

func (d *demo) api() *jaeger.API {
	return &jaeger.API{URL: "http://" + local(d.tracePorts.query), Client: d.client}
}

// tracing are the variables that make a process of ours trace. Spans are sent twice a second, so that nobody waits for them.
func (d *demo) tracing(service string) []string {
	if d.jaeger == nil {
		return nil
	}
	return []string{
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + local(d.tracePorts.otlp),
		"OTEL_SERVICE_NAME=" + service, "OTEL_BSP_SCHEDULE_DELAY=500",
	}
}

// mostCached is the request of which most was cached.
func mostCached(results []result) (most result) {
	for _, r := range results {
		if most.traceID == "" || r.cached > most.cached {
			most = r
		}
	}
	return most
}

// showTrace prints the trace of a request as Jaeger has it.
func (d *demo) showTrace(ctx context.Context, r result) error {
	if d.jaeger == nil {
		return nil
	}
	spans, err := d.awaitTrace(ctx, r.traceID)
	if err != nil {
		return err
	}
	d.say("\n── the trace of conversation %d, turn %d (%d of %d tokens cached), below the client's traceparent\n%s\n",
		r.conversation+1, r.turn+1, r.cached, r.prompt, strings.Join(jaeger.Tree(spans), "\n"))
	switch {
	case !d.o.Keep: // it would end with the demo
		d.say("KEEP=1 leaves Jaeger running, and prints where this is in it")
	case d.api().HasUI(ctx):
		d.say("in Jaeger: %s", d.api().Page(r.traceID))
	default:
		d.say("in Jaeger's API (this build has no pages): %s", d.api().Source(r.traceID))
	}
	d.say("")
	return nil
}

// traceWait is how long spans may take to arrive: Envoy sends its own every 5 s.
const traceWait = 20 * time.Second

// awaitTrace waits until a trace has the spans that end last: Sluice's, the engine's, and Envoy's, which comes by itself.
func (d *demo) awaitTrace(ctx context.Context, traceID string) ([]jaeger.Span, error) {
	ctx, cancel := context.WithTimeout(ctx, traceWait)
	defer cancel()
	var spans []jaeger.Span
	for {
		var err error
		if spans, err = d.api().Trace(ctx, traceID); err == nil && complete(spans) {
			return spans, nil
		}
		if waited := wait(ctx, 200*time.Millisecond); waited != nil {
			if errors.Is(waited, context.DeadlineExceeded) {
				return nil, errors.Join(err, fmt.Errorf("trace %s is not complete in Jaeger after %v: %d spans\n%s", traceID, traceWait, len(spans), d.jaeger.log))
			}
			return nil, waited
		}
	}
}

func complete(spans []jaeger.Span) bool {
	var request, engine, envoy bool
	for _, s := range spans {
		request = request || s.Name == span.Request
		engine = engine || s.Name == span.Engine
		envoy = envoy || s.Service == "envoy" && strings.HasPrefix(s.Name, "ingress")
	}
	return request && engine && envoy
}
