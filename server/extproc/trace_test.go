package extproc

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestSpansOfOneRequest(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	b := newBench(t, options{configure: func(c *Config) { c.Tracer = provider.Tracer("test") }})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "traceparent", "00-"+trace+"-"+parent+"-01")
	c.requestBody(chat(400), true)
	pick := c.pickOf(c.recv())
	c.echoed(false)
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.echo(tokenChunk, true)
	c.noAnswer()
	waitFor(t, func() bool { return len(recorder.Ended()) == 7 })

	var names []string
	var receive sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		names = append(names, s.Name())
		if s.SpanContext().TraceID().String() != trace {
			t.Errorf("%s is in another trace", s.Name())
		}
		if s.Name() == "receive" {
			receive = s
		}
	}
	slices.Sort(names)
	if want := []string{"fill", "filter", "pick", "produce", "receive", "score", "upstream"}; !slices.Equal(names, want) {
		t.Fatalf("spans %v, want %v", names, want)
	}
	if receive.Parent().SpanID().String() != parent {
		t.Errorf("receive hangs below %v, want the client's span", receive.Parent().SpanID())
	}
	if !slices.Contains(receive.Attributes(), attribute.String("server.address", pick)) {
		t.Errorf("attributes %v lack the pick %s", receive.Attributes(), pick)
	}
	for _, s := range recorder.Ended() {
		if s.Name() != "receive" && s.Parent().SpanID() != receive.SpanContext().SpanID() {
			t.Errorf("%s does not hang below receive", s.Name())
		}
		if s.Name() == "upstream" && (len(s.Events()) != 1 || s.Events()[0].Name != "first_token") {
			t.Errorf("upstream has the events %v", s.Events())
		}
	}
}

func TestSpansTakeAnyModelName(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	b := newBench(t, options{configure: func(c *Config) { c.Tracer = provider.Tracer("test") }})
	for name, want := range map[string]string{
		"a\xff":                   "a\uFFFD",
		strings.Repeat("m", 1000): strings.Repeat("m", maxAttributeText),
	} {
		recorder.Reset()
		c := b.call(t, modeFullDuplex, modeNone)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
		c.requestBody(`{"model":"`+name+`"}`, true)
		c.pickOf(c.recv())
		c.echoed(false)
		c.noAnswer()
		waitFor(t, func() bool { return len(recorder.Ended()) == 7 })
		receive := recorder.Ended()[slices.IndexFunc(recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "receive" })]
		if !slices.Contains(receive.Attributes(), attribute.String("gen_ai.request.model", want)) {
			t.Errorf("attributes %v lack the model %q", receive.Attributes(), want)
		}
	}
}

func TestUnsampledSpansAllocateNothing(t *testing.T) {
	var s spans
	r := &scheduling.Request{}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		s.start(ctx, nil, r)
		if s.observe() != nil {
			t.Error("observed")
		}
		s.picked(nil, nil)
		s.responseBegun(200)
		s.firstToken()
		s.end()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnsampledParentMakesNoSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	b := newBench(t, options{configure: func(c *Config) { c.Tracer = provider.Tracer("test") }})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(true, ":method", "GET", ":path", "/", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
	c.pickOf(c.recv())
	c.noAnswer()
	b.settles(t, 0, 0)
	if n := len(recorder.Started()); n != 0 {
		t.Errorf("%d spans", n)
	}
}
