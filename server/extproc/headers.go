package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sluice-epp/sluice/scheduling"
)

// valueOf returns a header's value. Envoy fills raw_value, some proxies fill value instead.
func valueOf(h *corev3.HeaderValue) []byte {
	if len(h.GetRawValue()) > 0 {
		return h.GetRawValue()
	}
	return []byte(h.GetValue())
}

// readHeaders appends the headers of a message, their names in lower case.
func readHeaders(m *corev3.HeaderMap, into []scheduling.Header) []scheduling.Header {
	for _, h := range m.GetHeaders() {
		into = append(into, scheduling.Header{Name: lower(h.GetKey()), Value: valueOf(h)})
	}
	return into
}

// lower is a header's name in lower case, which it nearly always is already. Letters beyond ASCII stay: some have an ASCII
// letter for their lower case, and would make one name of two.
func lower(s string) string {
	for i := range len(s) {
		if c := s[i]; 'A' <= c && c <= 'Z' {
			return lowered(s)
		}
	}
	return s
}

func lowered(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// headerOf finds one header of a message by its lower-case name; the last one wins.
func headerOf(m *corev3.HeaderMap, name string) []byte {
	hs := m.GetHeaders()
	for i := len(hs) - 1; i >= 0; i-- {
		if len(hs[i].GetKey()) == len(name) && lower(hs[i].GetKey()) == name {
			return valueOf(hs[i])
		}
	}
	return nil
}

func stringHeader(r *scheduling.Request, name string) string {
	v, _ := r.Header(name)
	return string(v)
}

// contentLength is the request's declared body size in bytes; 0 when it declared none.
func contentLength(r *scheduling.Request) int {
	v, ok := r.Header("content-length")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// isGRPC reports whether the client speaks gRPC, and so wants an error as a gRPC status.
func isGRPC(r *scheduling.Request) bool {
	v, _ := r.Header("content-type")
	return strings.HasPrefix(string(v), "application/grpc")
}

// isEncoded reports whether a content-encoding other than identity hides the body from us.
func isEncoded(encoding string) bool {
	return encoding != "" && !strings.EqualFold(strings.TrimSpace(encoding), "identity")
}
