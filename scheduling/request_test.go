package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestRequestHeader(t *testing.T) {
	r := scheduling.Request{Headers: []scheduling.Header{
		{Name: "x-session", Value: []byte("first")}, {Name: "other", Value: nil}, {Name: "x-session", Value: []byte("last")},
	}}
	if v, ok := r.Header("x-session"); !ok || string(v) != "last" {
		t.Errorf("x-session: %q, %t", v, ok)
	}
	if v, ok := r.Header("other"); !ok || len(v) != 0 {
		t.Errorf("other: %q, %t", v, ok)
	}
	if _, ok := r.Header("X-Session"); ok {
		t.Error("names are lower case")
	}
}

func TestRequestReset(t *testing.T) {
	r := scheduling.Request{
		ID: 1, Operation: scheduling.OperationChat, Model: "m", CacheSalt: "s", Body: []byte("{}"),
		Prompt: make([]scheduling.Span, 3, 8), PromptBytes: 4, Tokens: make([]uint32, 5, 9), TokenCount: 5,
		MaxOutputTokens: 7, Choices: 3, Stream: true, Headers: make([]scheduling.Header, 2, 4),
	}
	r.Reset()
	want := scheduling.Request{
		Choices: 1, Prompt: []scheduling.Span{}, Tokens: []uint32{}, Headers: []scheduling.Header{},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("reset (-want +got):\n%s", diff)
	}
	if cap(r.Prompt) != 8 || cap(r.Tokens) != 9 || cap(r.Headers) != 4 {
		t.Errorf("memory was given up: %d, %d, %d", cap(r.Prompt), cap(r.Tokens), cap(r.Headers))
	}
}

func TestNamesOfEnums(t *testing.T) {
	for got, want := range map[string]string{
		scheduling.OperationMessages.String():     "messages",
		scheduling.Operation(99).String():         "other",
		scheduling.EndpointDraining.String():      "draining",
		scheduling.EndpointState(99).String():     "unknown",
		scheduling.GateReleasedBreakEven.String(): "released_break_even",
		scheduling.GateVerdict(99).String():       "unknown",
		scheduling.PhaseCommitted.String():        "committed",
		scheduling.Phase(99).String():             "unknown",
		scheduling.EndUnseen.String():             "estimated",
		scheduling.EndReason(99).String():         "unknown",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
