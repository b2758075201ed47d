package server

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/server/config"
)

// The limits of the file are those that hold: the metrics name them, and a request over one of them is refused.
func TestLimitsAreConfigured(t *testing.T) {
	p := launch(t, `
server:
  maxOpenStreams: 7
  maxBufferedBytes: 1MiB
  maxRequestBodyBytes: 8MiB
  maxRequestHeaders: 16
  maxRequestHeaderBytes: 4KiB
  maxBodyNesting: 9
  maxEventBytes: 5KiB
telemetry: {maxModelLabels: 3}
`, nil)
	_, page := p.page(t, "/metrics")
	for key, want := range map[string]string{
		"server.maxOpenStreams": "7", "server.maxBufferedBytes": "1.048576e+06", "server.maxRequestBodyBytes": "524288", // half of it
		"server.maxRequestHeaders": "16", "server.maxRequestHeaderBytes": "4096", "server.maxBodyNesting": "9",
		"server.maxEventBytes": "5120", "telemetry.maxModelLabels": "3",
	} {
		name := "sluice_limit"
		if strings.HasSuffix(key, "Bytes") {
			name = "sluice_limit_bytes"
		}
		if line := fmt.Sprintf("%s{key=%q} %s\n", name, key, want); !strings.Contains(page, line) {
			t.Errorf("the metrics have no line %q", line)
		}
	}
	open := func(headers int, length string) extprocv3.ExternalProcessor_ProcessClient {
		s, err := extprocv3.NewExternalProcessorClient(p.conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "content-length", RawValue: []byte(length)}}}
		for len(m.Headers) < headers {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: fmt.Sprint("x-", len(m.Headers)), RawValue: []byte("v")})
		}
		if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: m}}}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, tt := range []struct {
		headers int
		length  string
		want    int32
		kind    string
		says    string // the key that holds, and its value
	}{
		{17, "10", 431, "headers_too_large", "maxRequestHeaders (16)"},
		{16, "524289", 413, "body_too_large", "(524288 bytes, half of its maxBufferedBytes)"},
	} {
		r, err := open(tt.headers, tt.length).Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.GetImmediateResponse().GetStatus().GetCode(); int32(got) != tt.want {
			t.Errorf("%d headers, a body of %s bytes: answered with %d, want %d", tt.headers, tt.length, got, tt.want)
		}
		if body := string(r.GetImmediateResponse().GetBody()); !strings.Contains(body, tt.says) {
			t.Errorf("%d headers, a body of %s bytes: the answer %q does not say %q", tt.headers, tt.length, body, tt.says)
		}
		if _, page := p.page(t, "/metrics"); !strings.Contains(page, fmt.Sprintf("sluice_notes_total{kind=%q} 1\n", tt.kind)) {
			t.Errorf("%s is not counted", tt.kind)
		}
	}
	open(16, "10")
	waitFor(t, func() bool { return p.app.extproc.BufferedBytes() > 20<<10 })
	if _, page := p.page(t, "/metrics"); strings.Contains(page, "sluice_buffered_bytes 0\n") {
		t.Error("the metrics say that nothing is held")
	}
}

// duplex is a chat request in full duplex whose headers are sent, with those given beside the usual ones.
func (p *process) duplex(t *testing.T, headers ...string) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	s, err := extprocv3.NewExternalProcessorClient(p.conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sendTo(t, s, &extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headersOf(
			append(headers, ":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json")...)}},
	})
	return s
}

func headersOf(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func sendTo(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient, m *extprocv3.ProcessingRequest) {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
}

func requestBody(body string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end}}}
}

// Whatever is over a bound is a number on the metrics page, by the name that the documentation gives it.
func TestLimitsAreCounted(t *testing.T) {
	p := launch(t, "server: {maxOpenStreams: 2, maxBufferedBytes: 1MiB, maxBodyNesting: 9, maxEventBytes: 4KiB}\n", nil)
	counted := func(kind string, n int) bool {
		_, page := p.page(t, "/metrics")
		return strings.Contains(page, fmt.Sprintf("sluice_notes_total{kind=%q} %d\n", kind, n))
	}

	first := p.duplex(t)
	for _, kind := range []string{"body_nesting_limit", "answer_event_limit", "shed", "shed_memory"} {
		if !counted(kind, 0) {
			t.Errorf("%s is not 0 at the start", kind)
		}
	}
	sendTo(t, first, requestBody(`{"model":"m","metadata":`+strings.Repeat("[", 10)+strings.Repeat("]", 10)+`,"messages":[]}`, true))
	waitFor(t, func() bool { return counted("body_nesting_limit", 1) })
	sendTo(t, first, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(":status", "200", "content-type", "text/event-stream")}}})
	sendTo(t, first, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte("data: {\"x\":\"" + strings.Repeat("y", 5<<10) + "\"}\n\n"), EndOfStream: true}}})
	waitFor(t, func() bool { return counted("answer_event_limit", 1) })

	// A body that may be, while as much is held already.
	big := strings.Repeat(" ", 512<<10)
	sendTo(t, p.duplex(t), requestBody(big, false))
	waitFor(t, func() bool { return p.app.extproc.BufferedBytes() > 512<<10 })
	// The streams are as many as may be now.
	refused(t, p.duplex(t), 429)
	if !counted("shed", 1) {
		t.Error("a refused stream is not counted")
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return p.app.extproc.OpenStreams() == 1 })
	third := p.duplex(t)
	sendTo(t, third, requestBody(big, false))
	refused(t, third, 429)
	if !counted("shed_memory", 1) || !counted("shed", 1) {
		t.Error("a request that does not fit in memory is not counted, or as another kind")
	}
}

// refused expects an immediate response and ends the stream.
func refused(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient, status int) {
	t.Helper()
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.GetImmediateResponse().GetStatus().GetCode(); int(got) != status {
		t.Errorf("answered with %v, want %d", r, status)
	}
	finish(t, s)
}

// A message of an engine that is larger than kvEvents.maxMessageBytes is not read, and counted.
func TestLargeMessagesOfAnEngineAreCounted(t *testing.T) {
	publisher := zmtp.NewPublisher(zmtp.PublisherOptions{})
	t.Cleanup(func() { _ = publisher.Close() })
	address, err := publisher.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	p := launch(t, fmt.Sprintf(`
endpoints: ["127.0.0.1:9,kvEvents.port=%s,kvEvents.replayPort=none,kvEvents.discover=false"]
plugins:
  - {type: token-producer, parameters: {vllm: {endpoints: true}}}
  - {type: precise-prefix-cache-producer, parameters: {kvEvents: {maxMessageBytes: 65536}}}
`, port), nil)
	counts := func(what string, n int) bool {
		_, page := p.page(t, "/metrics")
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "sluice_kv_event_messages_total{") && strings.Contains(line, fmt.Sprintf("what=%q", what)) {
				return strings.HasSuffix(line, fmt.Sprintf(" %d\n", n))
			}
		}
		return false
	}
	send := func(seq uint64, length int) {
		t.Helper()
		waitFor(t, func() bool { return publisher.Subscribers() == 1 })
		if err := publisher.Send(nil, binary.BigEndian.AppendUint64(nil, seq), make([]byte, length-8)); err != nil {
			t.Fatal(err)
		}
	}
	send(0, 65536)
	waitFor(t, func() bool { return counts("received", 1) })
	if !counts("too_large", 0) {
		t.Error("a message of the bound's size counts as too large")
	}
	send(1, 65537)
	waitFor(t, func() bool { return counts("too_large", 1) })
	if !counts("received", 1) {
		t.Error("it was read all the same")
	}
}

// Endpoints beyond the bound are left out, and counted.
func TestEndpointsBeyondTheBoundAreCounted(t *testing.T) {
	p := launch(t, fmt.Sprintf(profile, "random-picker"), func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) {
			for i := range 4096 + 3 {
				c.Endpoints = append(c.Endpoints, fmt.Sprintf("127.1.%d.%d:1", i/250, 1+i%250))
			}
			before(c)
		}
	})
	_, page := p.page(t, "/metrics")
	for _, line := range []string{"sluice_discovery_refused 3\n", "sluice_endpoints{state=\"ready\"} 4096\n"} {
		if !strings.Contains(page, line) {
			t.Errorf("the metrics have no line %q", line)
		}
	}
}
