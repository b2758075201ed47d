package server

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
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
		if line := fmt.Sprintf("sluice_limit{key=%q} %s\n", key, want); !strings.Contains(page, line) {
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
	}{{17, "10", 431, "headers_too_large"}, {16, "524289", 413, "body_too_large"}} {
		r, err := open(tt.headers, tt.length).Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.GetImmediateResponse().GetStatus().GetCode(); int32(got) != tt.want {
			t.Errorf("%d headers, a body of %s bytes: answered with %d, want %d", tt.headers, tt.length, got, tt.want)
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
