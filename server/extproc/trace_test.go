package extproc

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// A client's span, and below it the proxy's span of its call.
const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	proxySpan   = "b7ad6b7169203331"

	ofClient = "00-" + clientTrace + "-" + clientSpan + "-01"
	ofProxy  = "00-" + clientTrace + "-" + proxySpan + "-01"
	unsaved  = "00-" + clientTrace + "-" + clientSpan + "-00"
)

// traced is a bench whose spans are kept.
type traced struct {
	*bench
	recorder *tracetest.SpanRecorder
}

func newTraced(t *testing.T, o options) *traced {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	further := o.configure
	o.configure = func(c *Config) {
		c.Tracer, c.FollowTraces = provider.Tracer("test"), true
		if further != nil {
			further(c)
		}
	}
	return &traced{bench: newBench(t, o), recorder: recorder}
}

// callFrom is a stream of a proxy that says its own span, where it is not empty.
func (b *traced) callFrom(t *testing.T, proxy string) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	if proxy != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, traceparent, proxy, tracestate, "vendor=1")
	}
	s, err := b.client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &call{t: t, stream: s, cancel: cancel, first: true}
	c.pc = protocolOf(modeFullDuplex, modeFullDuplex)
	return c
}

// spans waits for the server span, which ends last, and returns it and the others in the order of their beginnings.
func (b *traced) spans(t *testing.T) (request sdktrace.ReadOnlySpan, children []sdktrace.ReadOnlySpan) {
	t.Helper()
	waitFor(t, func() bool {
		return slices.ContainsFunc(b.recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == span.Request })
	})
	for _, s := range b.recorder.Ended() {
		if s.Name() == span.Request {
			request = s
		} else {
			children = append(children, s)
		}
	}
	slices.SortStableFunc(children, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return request, children
}

func namesOf(spans []sdktrace.ReadOnlySpan) []string {
	names := make([]string, len(spans))
	for i, s := range spans {
		names[i] = s.Name()
	}
	return names
}

// valuesOf are a span's attributes by name.
func valuesOf(s sdktrace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, kv := range s.Attributes() {
		all[string(kv.Key)] = kv.Value.AsInterface()
	}
	return all
}

// streamed plays a whole request with a streamed answer.
func streamed(c *call, body string, headers ...string) (pick string) {
	c.t.Helper()
	c.requestHeaders(false, append([]string{":method", "POST", ":path", "/v1/chat/completions"}, headers...)...)
	c.requestBody(body, true)
	pick = c.pickOf(c.recv())
	c.echoed(false)
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.echo(tokenChunk, false)
	c.echo(usageChunk, true)
	c.noAnswer()
	return pick
}

// whole are the spans of a request with a streamed answer.
var whole = []string{
	span.Receive, span.Lookup, span.Tokenize, span.Wait, span.Fill, span.Filter, span.Score, span.Pick, span.FirstToken, span.End,
}

func TestSpansOfOneRequest(t *testing.T) {
	b := newTraced(t, options{})
	pick := streamed(b.callFrom(t, ofProxy), chat(400), traceparent, ofClient, "x-request-id", "mine")
	request, children := b.spans(t)
	if diff := cmp.Diff(whole, namesOf(children)); diff != "" {
		t.Fatalf("spans in order (-want +got):\n%s", diff)
	}
	parent := request.Parent()
	if parent.TraceID().String() != clientTrace || parent.SpanID().String() != proxySpan || parent.TraceState().Get("vendor") != "1" {
		t.Errorf("the request hangs below %v, want the proxy's span", parent)
	}
	if request.SpanKind() != trace.SpanKindServer {
		t.Errorf("the request is of the kind %v", request.SpanKind())
	}
	for i, s := range children {
		if s.Parent().SpanID() != request.SpanContext().SpanID() {
			t.Errorf("%s does not hang below the request", s.Name())
		}
		if s.StartTime().Before(request.StartTime()) || s.EndTime().After(request.EndTime()) || s.EndTime().Before(s.StartTime()) {
			t.Errorf("%s is not within the request", s.Name())
		}
		if i > 0 && s.StartTime().Before(children[i-1].EndTime()) {
			t.Errorf("%s begins before %s has ended", s.Name(), children[i-1].Name())
		}
	}
	got := valuesOf(request)
	first, ok := got[string(span.GenAIFirstChunk)].(float64)
	if !ok || first <= 0 {
		t.Errorf("first token after %v s", first)
	}
	delete(got, string(span.GenAIFirstChunk))
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.ReplaceAll(pick, "]", ""), "["), ":8000")
	want := map[string]any{
		string(span.GenAIOperation): "chat", string(span.GenAIRequestModel): "m", string(span.GenAIStream): true, string(span.GenAIProvider): "vllm",
		string(span.GenAIInputTokens): int64(1000), string(span.GenAIOutputTokens): int64(7), string(span.GenAICachedTokens): int64(960),
		"http.response.status_code": int64(200), "server.address": host, "server.port": int64(8000),
		"sluice.request.id": int64(1), "sluice.request.client_id": "mine", "sluice.config.hash": "", "sluice.profile": "test",
		"sluice.candidates": int64(3), "sluice.candidates.left": int64(3), "sluice.prompt.tokens": int64(101), "sluice.prompt.exact": false,
		"sluice.match.blocks": int64(0), "sluice.match.cached_blocks": int64(0), "sluice.match.total_blocks": int64(0), "sluice.match.block_tokens": int64(16),
		"sluice.load.requests": int64(0), "sluice.load.tokens": int64(0), "sluice.uncached_tokens": int64(101),
		"sluice.total": got["sluice.total"], "sluice.margin": 0.0, "sluice.score.active-request-scorer": got["sluice.total"], "sluice.end.reason": "complete",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

// Without a tracing proxy the client's own span is the parent; without one at all the request begins a trace.
func TestParents(t *testing.T) {
	for name, tc := range map[string]struct {
		proxy, client string
		want          string
	}{
		"the proxy's":                 {ofProxy, ofClient, proxySpan},
		"the client's":                {"", ofClient, clientSpan},
		"the proxy's is no span":      {"nonsense", ofClient, clientSpan},
		"neither":                     {"", "", ""},
		"the client's is no span":     {"", "00-" + clientTrace + "-0000000000000000-01", ""},
		"only the proxy records":      {ofProxy, unsaved, proxySpan},
		"a version that is not known": {"", "01" + strings.TrimPrefix(ofClient, "00"), clientSpan},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTraced(t, options{})
			c := b.callFrom(t, tc.proxy)
			c.requestHeaders(true, ":method", "GET", ":path", "/", traceparent, tc.client)
			c.pickOf(c.recv())
			c.noAnswer()
			request, _ := b.spans(t)
			got := ""
			if request.Parent().IsValid() {
				got = request.Parent().SpanID().String()
			}
			if got != tc.want {
				t.Errorf("the parent is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnrecordedCallerMakesNoSpans(t *testing.T) {
	for name, parents := range map[string][2]string{"proxy": {unsaved, ofClient}, "client": {"", unsaved}} {
		t.Run(name, func(t *testing.T) {
			b := newTraced(t, options{})
			c := b.callFrom(t, parents[0])
			c.requestHeaders(true, ":method", "GET", ":path", "/", traceparent, parents[1])
			c.pickOf(c.recv())
			c.noAnswer()
			b.settles(t, 0, 0)
			if n := len(b.recorder.Started()); n != 0 {
				t.Errorf("%d spans", n)
			}
		})
	}
}

// A producer that fails says so on its span, and the span of what came before the pick is there when none is made.
func TestSpansOfFailures(t *testing.T) {
	t.Run("producer", func(t *testing.T) {
		failing := scheduling.PluginType{Type: "failing", New: func(b *scheduling.Builder) (any, error) {
			scheduling.ProduceValue[scheduling.TokenizedPrompt](b)
			return broken{}, nil
		}}
		b := newTraced(t, options{types: []scheduling.PluginType{failing}, specs: []scheduling.Spec{{Name: "breaks", Type: "failing"}}})
		streamed(b.callFrom(t, ""), chat(400))
		_, children := b.spans(t)
		tokenize := children[slices.Index(namesOf(children), span.Tokenize)]
		if s := tokenize.Status(); s.Code != codes.Error || s.Description != strings.Repeat("x", span.MaxText-1)+"\uFFFD" {
			t.Errorf("status %+v", s)
		}
		if diff := cmp.Diff(map[string]any{"sluice.plugin": "breaks"}, valuesOf(tokenize)); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
	})
	t.Run("not JSON", func(t *testing.T) {
		b := newTraced(t, options{})
		c := b.callFrom(t, "")
		c.requestHeaders(false)
		c.requestBody("nonsense", true)
		c.refused(c.recv())
		c.noAnswer()
		request, children := b.spans(t)
		if got := valuesOf(request); got["http.response.status_code"] != int64(400) || got["error.type"] != ReasonNotJSON || request.Status().Code != codes.Unset {
			t.Errorf("attributes %v, status %v", got, request.Status())
		}
		if diff := cmp.Diff([]string{span.Receive}, namesOf(children)); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	})
	t.Run("no endpoint", func(t *testing.T) {
		b := newTraced(t, options{addresses: []string{}})
		c := b.callFrom(t, "")
		c.requestHeaders(true)
		c.refused(c.recv())
		c.noAnswer()
		request, _ := b.spans(t)
		if got := valuesOf(request); got["http.response.status_code"] != int64(503) || got["error.type"] != ReasonNoEndpoint || request.Status().Code != codes.Error || got["sluice.candidates"] != int64(0) {
			t.Errorf("attributes %v, status %v", got, request.Status())
		}
	})
	t.Run("engine", func(t *testing.T) {
		b := newTraced(t, options{})
		c := b.callFrom(t, "")
		c.requestHeaders(true)
		c.pickOf(c.recv())
		c.responseHeaders(true, ":status", "502")
		c.recv()
		c.noAnswer()
		request, children := b.spans(t)
		if got := valuesOf(request); got["error.type"] != "502" || got["sluice.end.reason"] != "error" || request.Status().Code != codes.Error {
			t.Errorf("attributes %v, status %v", got, request.Status())
		}
		if last := children[len(children)-1]; last.Name() != span.End || slices.Contains(namesOf(children), span.FirstToken) {
			t.Errorf("spans %v, want the end and no first token", namesOf(children))
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		b := newTraced(t, options{})
		c := b.callFrom(t, "")
		c.requestHeaders(true)
		c.pickOf(c.recv())
		c.cancel()
		request, children := b.spans(t)
		if got := valuesOf(request); got["sluice.end.reason"] != "disconnect" || children[len(children)-1].Name() != span.End {
			t.Errorf("attributes %v, spans %v", got, namesOf(children))
		}
	})
	t.Run("end unseen", func(t *testing.T) {
		b := newTraced(t, options{})
		c := b.callFrom(t, "")
		c.pc = protocolOf(modeFullDuplex, modeNone)
		c.requestHeaders(true)
		c.pickOf(c.recv())
		c.cancel()
		request, _ := b.spans(t)
		if got := valuesOf(request); got["sluice.end.reason"] != "estimated" {
			t.Errorf("attributes %v", got)
		}
	})
}

// broken is a producer that fails with an error that is long and no UTF-8.
type broken struct{}

func (broken) Produce(context.Context, *scheduling.Cycle) error {
	return errors.New(strings.Repeat("x", span.MaxText-1) + "é and more")
}

func TestSpansTakeAnyText(t *testing.T) {
	for text, want := range map[string]string{
		"a\xff":                   "a\uFFFD",
		strings.Repeat("m", 1000): strings.Repeat("m", span.MaxText),
	} {
		b := newTraced(t, options{})
		streamed(b.callFrom(t, ""), `{"model":"`+text+`"}`, "x-request-id", text)
		request, _ := b.spans(t)
		for _, name := range []attribute.Key{span.GenAIRequestModel, span.ClientRequestID} {
			if got := valuesOf(request)[string(name)]; got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

// stickyTo is an index that finds the whole prompt at the first two of three endpoints.
func stickyTo() scheduling.PluginType {
	return scheduling.PluginType{Type: "index", New: func(b *scheduling.Builder) (any, error) {
		return found{scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)}, nil
	}}
}

type found struct {
	key scheduling.Key[scheduling.PrefixCacheMatchInfo]
}

func (f found) Produce(_ context.Context, c *scheduling.Cycle) error {
	for e := range c.Candidates.All() {
		f.key.In(c).Set(e, scheduling.NewPrefixCacheMatchInfo(6*(1-e/2), 6, 16))
	}
	return nil
}

// Every span and attribute that is made has its meaning written down, and whatever is written down is made.
func TestMeaningsAreComplete(t *testing.T) {
	b := newTraced(t, options{
		types: []scheduling.PluginType{gate.Type(), stickyTo(), foreseeing(), {Type: "plain", New: func(*scheduling.Builder) (any, error) { return plain{}, nil }}},
		specs: []scheduling.Spec{
			{Name: "index", Type: "index"}, {Name: "plain", Type: "plain"}, {Name: "seer", Type: "seer"},
			{Name: gate.TypeName, Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0, penaltyMode: matchedTokens}")},
		},
		profile: []string{gate.TypeName, "active-request-scorer", "max-score-picker"}, maxPicks: 2,
	})
	c := b.callFrom(t, ofProxy)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "x-request-id", "mine")
	c.requestBody(`{"model":"m","n":2,"max_tokens":5,"messages":[{"role":"user","content":"`+strings.Repeat("word ", 80)+`"}]}`, true)
	c.pickOf(c.recv())
	c.echoed(false)
	c.metadata(MetadataNamespace, ServedKey, "10.0.0.2:8000")
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.echo(tokenChunk, false)
	c.echo(usageChunk, true)
	c.noAnswer()
	request, children := b.spans(t)
	spans, attributes := map[string]bool{}, map[string]bool{}
	for _, key := range []attribute.Key{span.ErrorType, span.ResponseMs, span.SeenFirst, span.SeenPerToken, span.SeenResponse} {
		attributes[string(key)] = true // they have tests of their own
	}
	for _, s := range append(children, request) {
		spans[s.Name()] = true
		for key := range valuesOf(s) {
			if strings.HasPrefix(key, string(span.ScorePrefix)) {
				key = string(span.ScorePrefix) + "PLUGIN"
			}
			attributes[key] = true
		}
	}
	check := func(kind string, made map[string]bool, known []span.Meaning) {
		for _, m := range known {
			if !made[m.Name] {
				t.Errorf("no %s %q was made", kind, m.Name)
			}
			delete(made, m.Name)
		}
		for name := range made {
			t.Errorf("the %s %q has no meaning", kind, name)
		}
	}
	check("span", spans, span.Spans())
	check("attribute", attributes, span.Attributes())
}

// plain is a producer of nothing that anybody knows.
type plain struct{}

func (plain) Produce(context.Context, *scheduling.Cycle) error { return nil }

// Where no trace records a request, following it allocates nothing: with tracing off, and below a caller whose trace is not
// recorded. What a proxy says of its trace is copied by the gRPC library, once.
func TestUnrecordedSpansAllocateNothing(t *testing.T) {
	provider := sdktrace.NewTracerProvider()
	on := &Config{Tracer: provider.Tracer("test"), FollowTraces: true}
	plainRequest := &scheduling.Request{}
	ofClient := &scheduling.Request{Headers: []scheduling.Header{{Name: traceparent, Value: []byte(unsaved)}}}
	proxied := metadata.NewIncomingContext(t.Context(), metadata.Pairs(traceparent, unsaved))
	for name, tc := range map[string]struct {
		cfg     *Config
		ctx     context.Context
		request *scheduling.Request
		most    float64
	}{
		"off":                    {&Config{}, proxied, ofClient, 0},
		"off, no caller":         {&Config{}, t.Context(), plainRequest, 0},
		"the client's unsaved":   {on, t.Context(), ofClient, 0},
		"the proxy's unrecorded": {on, proxied, plainRequest, 1},
	} {
		var s spans
		if n := testing.AllocsPerRun(100, func() {
			s.start(tc.ctx, tc.cfg, tc.request)
			if s.observe() != nil {
				t.Error("observed")
			}
			s.decided(nil, nil)
			s.responseBegun(200)
			s.firstToken()
			s.ended(nil, scheduling.Outcome{}, -1, 0, 1)
			s.refused(nil)
			s.end()
		}); n > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, tc.most)
		}
	}
}

// What the engine did not say is no attribute, rather than a number that nobody counted.
func TestC31_UnknownUsageIsNoAttribute(t *testing.T) {
	for name, tc := range map[string]struct {
		last string
		want map[string]any
	}{
		"no usage":           {"data: [DONE]\n\n", map[string]any{}},
		"no detail of cache": {"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2}}\n\n", map[string]any{string(span.GenAIInputTokens): int64(10), string(span.GenAIOutputTokens): int64(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTraced(t, options{})
			c := b.callFrom(t, ofProxy)
			c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
			c.requestBody(chat(400), true)
			c.pickOf(c.recv())
			c.echoed(false)
			c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
			c.recv()
			c.echo(tokenChunk, false)
			c.echo(tc.last, true)
			c.noAnswer()
			request, _ := b.spans(t)
			got := valuesOf(request)
			for _, key := range []string{string(span.GenAIInputTokens), string(span.GenAIOutputTokens), string(span.GenAICachedTokens)} {
				if got[key] != tc.want[key] {
					t.Errorf("%s is %v, want %v", key, got[key], tc.want[key])
				}
			}
		})
	}
}

// What a gate did not compare is no attribute: no collector takes what is no number.
func TestGateAttributes(t *testing.T) {
	nan := math.NaN()
	g := scheduling.GateReport{Filter: "gate", Verdict: scheduling.GateHeld, GapMs: 0, BarMs: nan, GapTokens: -7, BarTokens: nan}
	got := map[string]any{}
	for _, a := range gateAttributes(&g) {
		got[string(a.Key)] = a.Value.AsInterface()
	}
	want := map[string]any{
		string(span.Gate): "held", string(span.GateFilter): "gate", string(span.GateGapMs): 0.0, string(span.GateGapTokens): -7.0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
