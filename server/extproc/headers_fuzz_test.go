package extproc

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-epp/sluice/scheduling"
)

// FuzzHeaders lets a proxy send any headers, in both of the fields that a value can be in.
func FuzzHeaders(f *testing.F) {
	for _, h := range []*corev3.HeaderValue{
		{Key: "Content-Type", RawValue: []byte("application/grpc+proto")}, {Key: ":status", Value: "200"},
		{Key: "content-length", RawValue: []byte("17")}, {Key: "CONTENT-LENGTH", Value: "-1"}, {Key: "content-length", Value: "99999999999999999999"},
		{Key: "x", Value: "value", RawValue: []byte("raw")}, {Key: "X", RawValue: []byte{0, 0xff}}, {Key: "content-encoding", Value: " Identity"}, {Key: "X-\u212A", Value: "no k"}, {},
	} {
		wire, err := proto.Marshal(&corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "x", Value: "first"}, h}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := &corev3.HeaderMap{}
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		read := readHeaders(m, nil)
		if len(read) != len(m.GetHeaders()) {
			t.Fatalf("%d headers of %d", len(read), len(m.GetHeaders()))
		}
		last := map[string][]byte{}
		for i, h := range m.GetHeaders() {
			name, value := inLowerCase(h.GetKey()), h.GetRawValue()
			if len(value) == 0 {
				value = []byte(h.GetValue())
			}
			if read[i].Name != name || !bytes.Equal(read[i].Value, value) {
				t.Fatalf("%q reads as %q: %q", h, read[i].Name, read[i].Value)
			}
			last[name] = value
		}
		for name, value := range last {
			if got := headerOf(m, name); !bytes.Equal(got, value) {
				t.Fatalf("%s is %q, want the last one, %q", name, got, value)
			}
		}
		if got := headerOf(m, "not there"); got != nil && last["not there"] == nil {
			t.Fatalf("found %q", got)
		}
		checkRequestHeaders(t, &scheduling.Request{Headers: read})
	})
}

// inLowerCase lowers what the names of headers consist of, and nothing else: a letter that only becomes an ASCII one that
// way makes another name.
func inLowerCase(name string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

func checkRequestHeaders(t *testing.T, r *scheduling.Request) {
	t.Helper()
	length := stringHeader(r, "content-length")
	want, err := strconv.ParseInt(length, 10, strconv.IntSize)
	if err != nil || want < 0 {
		want = 0
	}
	if n := contentLength(r); n != int(want) {
		t.Fatalf("a body of %q bytes is one of %d", length, n)
	}
	if got := isGRPC(r); got != bytes.HasPrefix([]byte(stringHeader(r, "content-type")), []byte("application/grpc")) {
		t.Fatalf("a client of gRPC: %t", got)
	}
	encoding := stringHeader(r, "content-encoding")
	if got, plain := isEncoded(encoding), encoding == "" || strings.ToLower(strings.TrimSpace(encoding)) == "identity"; got == plain {
		t.Fatalf("encoded by %q: %t", encoding, got)
	}
}
