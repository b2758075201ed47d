package extproc

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// FuzzTraceparent: whatever is taken for a traceparent, OpenTelemetry takes for the same span.
func FuzzTraceparent(f *testing.F) {
	for _, seed := range []string{
		ofClient, unsaved, "", "00-" + clientTrace + "-" + clientSpan + "-ff", "00-" + clientTrace + "-" + clientSpan + "-0a",
		"ff-" + clientTrace + "-" + clientSpan + "-01", "01-" + clientTrace + "-" + clientSpan + "-01", ofClient + "-what-is-new",
		"00-00000000000000000000000000000000-" + clientSpan + "-01", "00-" + clientTrace + "-0000000000000000-01",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-" + clientSpan + "-01", "00_" + clientTrace + "_" + clientSpan + "_01", "0-" + clientTrace + "-" + clientSpan + "-001",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if validParent(value) != validParent([]byte(value)) {
			t.Fatalf("%q is read in two ways", value)
		}
		if !validParent(value) {
			return // a span of an unknown form is no parent
		}
		ctx := caller{parent: value}.join(context.Background())
		sc := trace.SpanContextFromContext(ctx)
		if sc.TraceID().String() != value[3:35] || sc.SpanID().String() != value[36:52] || !sc.IsRemote() {
			t.Fatalf("%q is read as %v", value, sc)
		}
		if sc.IsSampled() != sampled(value) {
			t.Fatalf("%q: sampled is %v", value, sampled(value))
		}
	})
}

func TestTraceparents(t *testing.T) {
	for value, want := range map[string]bool{
		ofClient: true, unsaved: true, "": false, ofClient + "0": false, "ff" + ofClient[2:]: false,
		"00-00000000000000000000000000000000-" + clientSpan + "-01": false,
		"00-" + clientTrace + "-0000000000000000-01":                false,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-" + clientSpan + "-01": false,
		"00-" + clientTrace + "0" + clientSpan + "-01":              false,
	} {
		if got := validParent(value); got != want {
			t.Errorf("%q is valid: %v", value, got)
		}
	}
	for flags, want := range map[string]bool{"00": false, "01": true, "02": false, "0a": false, "0f": true, "f9": true, "fe": false} {
		if got := sampled(ofClient[:53] + flags); got != want {
			t.Errorf("flags %s are sampled: %v", flags, got)
		}
	}
}
