package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sluice-epp/sluice/server/telemetry/span"
	"github.com/sluice-epp/sluice/sim/engine"
)

// A simulated engine makes vLLM's span of each request, below whoever called, and of nothing else.
func TestEngineSpan(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	s, err := engine.New(engine.Config{Speed: 1000, Served: engineSpans(provider.Tracer("test"))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	send := func(path, body, flags string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"+flags)
		r.Header.Set("x-request-id", "mine")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	const body = `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"Where does the river go?"}]}`
	send("/v1/chat/completions", body, "01")
	send("/v1/chat/completions", body, "00")        // not recorded
	send("/v1/chat/completions", `{"n":0}`, "01")   // refused
	send("/tokenize", `{"prompt":"a river"}`, "01") // nothing for the model
	if err := s.Close(); err != nil {               // after every handler
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	made := recorder.Ended()
	if len(made) != 1 {
		t.Fatalf("%d spans, want 1", len(made))
	}
	if made[0].Name() != span.Engine || made[0].Parent().SpanID().String() != "00f067aa0ba902b7" {
		t.Errorf("%s hangs below %v", made[0].Name(), made[0].Parent())
	}
	got := map[string]any{}
	for _, kv := range made[0].Attributes() {
		got[string(kv.Key)] = kv.Value.AsInterface()
	}
	if got[string(span.VLLMOutputTokens)] != int64(4) || got[string(span.VLLMRequestID)] != "mine" || got[string(span.GenAIResponseModel)] != "sim" || got[string(span.GenAIMaxTokens)] != int64(4) {
		t.Errorf("attributes %v", got)
	}
	whole, _ := got[string(span.VLLMEndToEnd)].(float64)
	queue, _ := got[string(span.VLLMTimeInQueue)].(float64)
	prefill, _ := got[string(span.VLLMTimeInPrefill)].(float64)
	decode, _ := got[string(span.VLLMTimeInDecode)].(float64)
	if parts := queue + prefill + decode; prefill <= 0 || decode <= 0 || parts > whole+0.001 {
		t.Errorf("queue %v, prefill %v and decode %v are of %v", queue, prefill, decode, whole)
	}
	if took := made[0].EndTime().Sub(made[0].StartTime()).Seconds(); took < whole-1e-6 || took > whole+1e-6 || took > time.Minute.Seconds() {
		t.Errorf("the span took %v, its attribute says %v", took, whole)
	}
	if engineSpans(nil) != nil {
		t.Error("without a tracer the engine tells of every request")
	}
}
