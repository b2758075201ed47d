package extproc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestHeadersOnlyPicksAtHeaders(t *testing.T) {
	for _, mode := range []bodyMode{modeNone, modeStreamed, modeBuffered, modeBufferedPartial, modeFullDuplex} {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, options{})
			c := b.call(t, mode, modeNone)
			c.requestHeaders(true, ":method", "GET", ":path", "/v1/models")
			if pick := c.pickOf(c.recv()); pick == "" {
				t.Error("no pick")
			}
		})
	}
}

func TestModeNoneIsNotAbsent(t *testing.T) {
	b := newBench(t, options{})
	c := b.rawCall(t)
	c.pc = &extprocv3.ProtocolConfiguration{} // present, all zero: NONE
	c.requestHeaders(false)
	c.pickOf(c.recv()) // with the body never coming, anything else would hang

	c = b.rawCall(t) // absent: the endpoint picker protocol's full duplex
	c.requestHeaders(false)
	c.requestBody(chat(100), true)
	c.pickOf(c.recv())
	if got := c.echoed(false); got != chat(100) {
		t.Errorf("echoed %q", got)
	}
}

func TestStreamedPicksAtHeadersAndAnswersEachChunk(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeStreamed, modeNone)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "content-length", "4000")
	c.pickOf(c.recv())
	if requests, tokens := b.load(); requests != 1 || tokens != 1000 {
		t.Errorf("charged %d requests, %d tokens; want 1 and the declared length's 1000", requests, tokens)
	}
	for i := range 3 {
		c.requestBody("part", i == 2)
		if m := c.recv(); m.GetRequestBody() == nil || m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
			t.Errorf("chunk %d: got %v, want an empty body answer", i, m)
		}
	}
}

func TestBufferedAnswersHeadersAtOnceAndPicksInTheBody(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeBuffered, modeNone)
	c.requestHeaders(false)
	if m := c.recv(); m.GetRequestHeaders() == nil || m.GetDynamicMetadata() != nil {
		t.Fatalf("header answer: %v", m)
	}
	c.requestBody(chat(1000), true)
	m := c.recv()
	c.pickOf(m)
	if m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
		t.Error("an unchanged body was replaced")
	}
}

func TestBufferedPartialDecidesOnACutBody(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeBufferedPartial, modeNone)
	c.requestHeaders(false)
	c.recv()
	c.requestBody(chat(1000)[:500], false) // cut; nothing follows
	c.pickOf(c.recv())
	if b.notes.count(NotePartialBody) != 1 {
		t.Error("not counted")
	}
}

func TestBufferedWithTrailersOnly(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeBuffered, modeNone)
	c.requestHeaders(false)
	c.recv()
	c.requestTrailers()
	m := c.recv()
	if m.GetRequestTrailers() == nil || m.GetDynamicMetadata() == nil {
		t.Errorf("got %v, want a trailers answer with the pick in its metadata", m)
	}
}

func TestC19_FullDuplexEnds(t *testing.T) {
	body := chat(300_000) // several chunks on the way back
	for _, test := range []struct {
		name     string
		send     func(c *call)
		want     string
		trailers bool
	}{
		{"end on the last data", func(c *call) { c.requestBody(body, true) }, body, false},
		{"end on an empty chunk", func(c *call) {
			c.requestBody(body[:1000], false)
			c.requestBody(body[1000:], false)
			c.requestBody("", true)
		}, body, false},
		{"empty body", func(c *call) { c.requestBody("", true) }, "", false},
		{"trailers end the body", func(c *call) { c.requestBody(body, false); c.requestTrailers() }, body, true},
		{"trailers without a body", func(c *call) { c.requestTrailers() }, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, options{})
			c := b.call(t, modeFullDuplex, modeNone)
			c.requestHeaders(false)
			test.send(c)
			c.pickOf(c.recv())
			if got := c.echoed(test.trailers); got != test.want {
				t.Errorf("%d bytes came back, want %d, the same", len(got), len(test.want))
			}
			c.noAnswer()
		})
	}
}

func TestObservabilityModeNeverAnswers(t *testing.T) {
	b := newBench(t, options{})
	c := b.rawCall(t)
	c.send(&extprocv3.ProcessingRequest{ObservabilityMode: true, Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":method", "GET", ":path", "/")}}})
	c.requestBody("{}", true)
	c.responseHeaders(true, ":status", "200")
	c.noAnswer()
	b.settles(t, 0, 0)
	if b.notes.picks() != 0 || b.notes.count(NoteObserved) != 1 {
		t.Error("an observed request was picked for, or not counted")
	}
}

func TestRefusals(t *testing.T) {
	big := chat(3000)
	none := func(c *Config) {}
	for _, test := range []struct {
		name      string
		addresses []string
		configure func(*Config)
		profile   []string
		specs     []scheduling.Spec
		headers   []string
		body      string
		status    int
		reason    string
	}{
		{name: "not JSON", configure: none, body: `hello`, status: 400, reason: ReasonNotJSON},
		{name: "cut JSON", configure: none, body: `{"model":"m"`, status: 400, reason: ReasonNotJSON},
		{name: "over the limit", configure: func(c *Config) { c.MaxRequestBodyBytes = 2000 }, body: big, status: 413, reason: ReasonTooLarge},
		{name: "declared over the limit", configure: func(c *Config) { c.MaxRequestBodyBytes = 2000 },
			headers: []string{":method", "POST", ":path", "/x", "content-length", "2001"}, status: 413, reason: ReasonTooLarge},
		{name: "no endpoint", addresses: []string{}, configure: none, body: big, status: 503, reason: ReasonNoEndpoint},
		{name: "filters leave none", configure: none, profile: []string{"label-selector-filter", "active-request-scorer", "max-score-picker"},
			specs: []scheduling.Spec{{Name: "label-selector-filter", Type: "label-selector-filter", Decode: selectNothing}},
			body:  big, status: 503, reason: ReasonFilteredOut},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, options{addresses: test.addresses, configure: test.configure, profile: test.profile, specs: test.specs})
			c := b.call(t, modeFullDuplex, modeFullDuplex)
			c.requestHeaders(false, test.headers...)
			if test.headers == nil {
				c.requestBody(test.body, true)
			}
			m := c.recv()
			status, reason, message := c.refused(m)
			if status != test.status || reason != test.reason || message == "" {
				t.Errorf("got %d %s %q, want %d %s", status, reason, message, test.status, test.reason)
			}
			if m.GetImmediateResponse().GetDetails() != "sluice_"+test.reason {
				t.Errorf("details %q", m.GetImmediateResponse().GetDetails())
			}
			if retry := strings.Contains(fmt.Sprint(m), "retry-after"); retry != (test.status == 503) {
				t.Errorf("retry-after present: %v", retry)
			}
			b.settles(t, 0, 0)
			if b.notes.count(test.reason) != 1 {
				t.Error("not counted")
			}
		})
	}
}

// selectNothing selects endpoints by a label that none has.
func selectNothing(into any) error { return yamlInto("matchLabels: {zone: nowhere}", into) }

func TestRefusalToGRPCClient(t *testing.T) {
	b := newBench(t, options{addresses: []string{}})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(true, ":method", "POST", ":path", "/inference.Grpc/Generate", "content-type", "application/grpc")
	im := c.recv().GetImmediateResponse()
	if im.GetGrpcStatus().GetStatus() != 14 || string(im.GetBody()) != "no endpoint is ready" {
		t.Errorf("got %v, want grpc status UNAVAILABLE with a plain message", im)
	}
}

func TestModelRewrite(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"hi"}],"model":"old", "n":1}`
	const want = `{"messages":[{"role":"user","content":"hi"}],"model":"the \"new\" one", "n":1}`
	headers := []string{":method", "POST", ":path", "/v1/chat/completions", "x-gateway-model-name-rewrite", `the "new" one`}
	t.Run("full duplex", func(t *testing.T) {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeNone)
		c.requestHeaders(false, headers...)
		c.requestBody(body[:10], false)
		c.requestBody(body[10:], true)
		c.pickOf(c.recv())
		if got := c.echoed(false); got != want {
			t.Errorf("upstream gets %s", got)
		}
	})
	t.Run("buffered", func(t *testing.T) {
		b := newBench(t, options{})
		c := b.call(t, modeBuffered, modeNone)
		c.requestHeaders(false, headers...)
		c.recv()
		c.requestBody(body, true)
		m := c.recv()
		c.pickOf(m)
		if got := string(m.GetRequestBody().GetResponse().GetBodyMutation().GetBody()); got != want {
			t.Errorf("upstream gets %s", got)
		}
		if !strings.Contains(fmt.Sprint(m), fmt.Sprint(len(want))) {
			t.Error("content-length was not set to the new length")
		}
	})
}

func TestNotForUsToJudge(t *testing.T) {
	for name, test := range map[string]struct {
		headers []string
		body    string
	}{
		"other path":      {[]string{":method", "POST", ":path", "/v1/audio/transcriptions"}, "RIFF binary"},
		"compressed":      {[]string{":method", "POST", ":path", "/v1/chat/completions", "content-encoding", "gzip"}, "\x1f\x8b\x00"},
		"empty":           {[]string{":method", "POST", ":path", "/v1/chat/completions"}, ""},
		"no model":        {[]string{":method", "POST", ":path", "/v1/chat/completions"}, `{"messages":[]}`},
		"unusual content": {[]string{":method", "POST", ":path", "/v1/chat/completions?x=1"}, `{"messages":[{"content":null}],"max_tokens":"10"}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, options{})
			c := b.call(t, modeFullDuplex, modeNone)
			c.requestHeaders(false, test.headers...)
			c.requestBody(test.body, true)
			c.pickOf(c.recv())
			if got := c.echoed(false); got != test.body {
				t.Errorf("upstream gets %q", got)
			}
		})
	}
}

func TestPickTimeout(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.PickTimeout = 50 * time.Millisecond }})
	c := b.call(t, modeFullDuplex, modeNone)
	c.requestHeaders(false)
	c.requestBody(`{"model":`, false) // and nothing more
	if status, reason, _ := c.refused(c.recv()); status != 408 || reason != ReasonPickTimeout {
		t.Errorf("got %d %s", status, reason)
	}
	c.requestBody(`"m"}`, true) // too late: ignored
	c.noAnswer()
}

func TestPanicIsRecoveredOnce(t *testing.T) {
	b := newBench(t, options{produce: func(context.Context) { panic("producer") }})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false)
	c.requestBody(chat(100), true)
	if status, reason, _ := c.refused(c.recv()); status != 500 || reason != ReasonInternal {
		t.Errorf("got %d %s", status, reason)
	}
	c.noAnswer()
	b.settles(t, 0, 0)
	if b.notes.count(NotePanic) != 1 {
		t.Error("not counted")
	}
}

func TestDeclaredLengthCountsAsAtMostTheLargestBody(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxRequestBodyBytes = 4000 }})
	c := b.call(t, modeNone, modeStreamed)
	c.requestHeaders(false, "content-length", "9223372036854775807")
	c.pickOf(c.recv())
	if requests, tokens := b.load(); requests != 1 || tokens != 1000 {
		t.Errorf("ledger holds %d requests and %d tokens, want 1 and 1000", requests, tokens)
	}
}

// failingObserver panics when it is told of a pick.
type failingObserver struct{ *notes }

func (failingObserver) Picked(*scheduling.Cycle, *scheduling.Flight, time.Duration) {
	panic("observer")
}

func TestPanicAfterTheChargeReleasesIt(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.Observer = failingObserver{&notes{kinds: map[string]int{}}} }})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false)
	c.requestBody(chat(100), true)
	if status, reason, _ := c.refused(c.recv()); status != 500 || reason != ReasonInternal {
		t.Errorf("got %d %s", status, reason)
	}
	c.noAnswer()
	b.settles(t, 0, 0)
}

func TestC07_SlowProducerCostsItsKnowledgeNotTheRequest(t *testing.T) {
	b := newBench(t, options{
		produce:   func(ctx context.Context) { <-ctx.Done() }, // a tokenizer that accepts and never answers
		configure: func(c *Config) { c.ProduceTimeout = 30 * time.Millisecond },
	})
	begun := time.Now()
	c := b.call(t, modeBuffered, modeNone)
	c.requestHeaders(false)
	c.recv()
	c.requestBody(chat(4000), true)
	c.pickOf(c.recv())
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	requests, tokens := b.load()
	if requests != 1 || tokens < 500 {
		t.Errorf("charged %d requests and %d tokens: without a tokenizer the body's bytes count", requests, tokens)
	}
}
