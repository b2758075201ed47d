package jaeger

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

func TestRender(t *testing.T) {
	out, err := Render(Params{Query: "127.0.0.1:1", QueryGRPC: "127.0.0.1:2", OTLP: "[::1]:3"})
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Extensions struct {
			Query struct {
				HTTP, GRPC struct{ Endpoint string }
			} `yaml:"jaeger_query"`
		}
		Receivers struct {
			OTLP struct {
				Protocols struct {
					GRPC struct{ Endpoint string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(out, &parsed); err != nil {
		t.Fatal(err)
	}
	q := parsed.Extensions.Query
	if q.HTTP.Endpoint != "127.0.0.1:1" || q.GRPC.Endpoint != "127.0.0.1:2" || parsed.Receivers.OTLP.Protocols.GRPC.Endpoint != "[::1]:3" {
		t.Errorf("got %+v", parsed)
	}
	if _, err := Render(Params{Query: "localhost:1", QueryGRPC: "127.0.0.1:2", OTLP: "127.0.0.1:3"}); err == nil || !strings.Contains(err.Error(), `query: must be ip:port, got "localhost:1"`) {
		t.Errorf("got %v", err)
	}
}

const answer = `{"data":[{"traceID":"t","spans":[
 {"spanID":"c","operationName":"request","references":[{"refType":"FOLLOWS_FROM","spanID":"x"},{"refType":"CHILD_OF","spanID":"b"}],"startTime":2000,"duration":3000,"processID":"p2","tags":[{"key":"n","type":"int64","value":7},{"key":"s","value":"v"}]},
 {"spanID":"b","operationName":"ingress","references":[{"refType":"CHILD_OF","spanID":"gone"}],"startTime":1000,"duration":9000,"processID":"p1"},
 {"spanID":"e","operationName":"pick","references":[{"refType":"CHILD_OF","spanID":"c"}],"startTime":3000,"duration":5,"processID":"p2"},
 {"spanID":"d","operationName":"egress","references":[{"refType":"CHILD_OF","spanID":"b"}],"startTime":6000,"duration":1500,"processID":"p1"}
],"processes":{"p1":{"serviceName":"envoy"},"p2":{"serviceName":"sluice"}}}]}`

func TestTree(t *testing.T) {
	spans, err := Parse([]byte(answer))
	if err != nil {
		t.Fatal(err)
	}
	want := Span{ID: "c", Parent: "b", Service: "sluice", Name: "request", Start: time.UnixMicro(2000), Duration: 3 * time.Millisecond,
		Tags: map[string]any{"n": 7.0, "s": "v"}}
	if diff := cmp.Diff(want, spans[0]); diff != "" {
		t.Errorf("a span (-want +got):\n%s", diff)
	}
	lines := []string{
		"envoy: ingress      at     0.00 ms      9.00 ms",
		"├─ sluice: request  at     1.00 ms      3.00 ms",
		"│  └─ sluice: pick  at     2.00 ms      0.01 ms",
		"└─ envoy: egress    at     5.00 ms      1.50 ms",
	}
	if diff := cmp.Diff(lines, Tree(spans)); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
	if got := Tree(nil); len(got) != 0 {
		t.Errorf("no spans are %q", got)
	}
}

func TestTrace(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			_, _ = w.Write([]byte(`<div id="jaeger-ui-root"></div>`))
		case "/api/services":
		case "/api/traces/there":
			_, _ = w.Write([]byte(answer))
		case "/api/traces/broken":
			_, _ = w.Write([]byte(`{"data":`))
		case "/api/traces/fails":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer s.Close()
	a := &API{URL: s.URL, Client: s.Client()}
	if !a.Ready(t.Context()) || !a.HasUI(t.Context()) {
		t.Error("it is not ready or has no UI")
	}
	if spans, err := a.Trace(t.Context(), "there"); err != nil || len(spans) != 4 {
		t.Errorf("%d spans, %v", len(spans), err)
	}
	if spans, err := a.Trace(t.Context(), "gone"); err != nil || spans != nil {
		t.Errorf("%v, %v for a trace that is not there", spans, err)
	}
	for id, want := range map[string]string{"broken": "reading a trace", "fails": "status 500"} {
		if _, err := a.Trace(t.Context(), id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
	}
}

// FuzzParse: whatever a Jaeger answers becomes an error or a tree of as many lines as there are spans, or fewer where spans
// are each other's parents.
func FuzzParse(f *testing.F) {
	f.Add([]byte(answer))
	f.Add([]byte(`{"data":[{"spans":[{"spanID":"a","references":[{"refType":"CHILD_OF","spanID":"b"}]},{"spanID":"b","references":[{"refType":"CHILD_OF","spanID":"a"}]}]}]}`))
	f.Add([]byte(`{"data":[{"spans":[{},{},{"spanID":"a","references":[{"refType":"CHILD_OF","spanID":"a"}]}]}]}`))
	f.Add([]byte(`{"data":null}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		spans, err := Parse(answer)
		if err != nil {
			return
		}
		if lines := Tree(spans); len(lines) > len(spans) {
			t.Fatalf("%d lines of %d spans", len(lines), len(spans))
		}
	})
}
