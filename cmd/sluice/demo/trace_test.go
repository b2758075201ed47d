package demo

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/jaeger"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// ownJaeger is a copy of the Jaeger to test with, which no other process runs.
func ownJaeger(t *testing.T) string {
	t.Helper()
	named := os.Getenv("SLUICE_JAEGER")
	if named == "" {
		t.Skip("SLUICE_JAEGER names no Jaeger: run `make test-trace`")
	}
	from, err := os.Open(named)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	path := filepath.Join(t.TempDir(), "jaeger")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if closed := to.Close(); err != nil || closed != nil {
		t.Fatal(err, closed)
	}
	return path
}

var traceLine = regexp.MustCompile(`(?m)^in Jaeger(?:'s API \(this build has no pages\))?: (http://\S+)$`)

// TestDemoTrace plays the demo as `make demo TRACE=1 KEEP=1` does: the tree of one request is printed, and Jaeger has it
// under the printed address.
func TestDemoTrace(t *testing.T) {
	own, sluice, envoy := ownJaeger(t), binary(t), envoytest.Binary(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out output
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Sluice: sluice, Envoy: envoy, Jaeger: own, Engines: 2, Speed: 4, Keep: true, Out: &out})
	}()
	for !strings.Contains(out.String(), "demo: requests=") {
		select {
		case err := <-done:
			t.Fatalf("ended early: %v\n%s", err, &out)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, line := range []string{"envoy: ingress", "│  └─ sluice: request", "│     ├─ sluice: first token", "llm_request"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("nothing like %q is printed", line)
		}
	}
	address := traceLine.FindStringSubmatch(out.String())
	if address == nil {
		t.Fatalf("no address is printed:\n%s", &out)
	}
	res, err := http.Get(address[1])
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d", address[1], res.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	noChildren(t, sluice)
	noChildren(t, own)
}

func TestInterruptedTrace(t *testing.T) {
	own, sluice, envoy := ownJaeger(t), binary(t), envoytest.Binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := Run(ctx, Options{Sluice: sluice, Envoy: envoy, Jaeger: own, Engines: 2, Speed: 1, Out: &output{}}); err == nil {
		t.Error("it ended before it was interrupted")
	}
	noChildren(t, sluice)
	noChildren(t, own)
}

func TestTraceOfMostCached(t *testing.T) {
	got := mostCached([]result{{traceID: "a", cached: 0}, {traceID: "b", cached: 90}, {traceID: "c", cached: 20}})
	if got.traceID != "b" {
		t.Errorf("got %+v", got)
	}
	if got = mostCached([]result{{traceID: "a"}}); got.traceID != "a" {
		t.Errorf("got %+v", got)
	}
}

func TestNewTrace(t *testing.T) {
	id, parent := newTrace()
	if again, _ := newTrace(); again == id {
		t.Error("two traces have the same id")
	}
	if !regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-01$`).MatchString(parent) || parent[3:35] != id {
		t.Errorf("%s, %s", id, parent)
	}
}

func TestTraceIsComplete(t *testing.T) {
	all := []jaeger.Span{{Service: "envoy", Name: "ingress"}, {Service: "sluice", Name: "request"}, {Service: "engine-0", Name: "llm_request"}}
	if !complete(all) {
		t.Error("a whole trace is not complete")
	}
	for i := range all {
		part := append(append([]jaeger.Span(nil), all[:i]...), all[i+1:]...)
		if complete(part) {
			t.Errorf("complete without %s", all[i].Name)
		}
	}
}
