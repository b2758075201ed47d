package extproc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestDryRun: what is tried is decided about as a request is, and leaves nothing behind.
func TestDryRun(t *testing.T) {
	b := newBench(t, options{})
	b.picked(t, modeFullDuplex, 400) // one endpoint is busier than the others
	requests, tokens := b.load()
	body := chat(4000)
	for name, tc := range map[string]struct {
		draft Draft
		want  scheduling.Request
		picks int
	}{
		"chat": {Draft{Path: "/v1/chat/completions", Body: []byte(body)},
			scheduling.Request{Operation: scheduling.OperationChat, Model: "m", PromptBytes: 4006, Choices: 1, Stream: true}, 1},
		"rewritten": {Draft{Path: "/v1/chat/completions", Body: []byte(body),
			Headers: []scheduling.Header{{Name: "x-gateway-model-name-rewrite", Value: []byte("n")}}},
			scheduling.Request{Operation: scheduling.OperationChat, Model: "n", PromptBytes: 4006, Choices: 1, Stream: true}, 1},
		"a batch": {Draft{Path: "/v1/completions", Body: []byte(`{"model":"m","prompt":["ab","cd"],"n":2}`)},
			scheduling.Request{Operation: scheduling.OperationCompletions, Model: "m", PromptBytes: 4, Choices: 4}, 1},
		"another path": {Draft{Path: "/v1/files", Body: []byte("anything")}, scheduling.Request{PromptBytes: 8, Choices: 1}, 1},
		"a subset":     {Draft{Subset: []string{"10.0.0.2"}}, scheduling.Request{Choices: 1}, 1},
		"nobody":       {Draft{Subset: []string{"10.9.9.9"}}, scheduling.Request{Choices: 1}, 0},
	} {
		var got scheduling.Request
		var picks []int
		if err := b.server.DryRun(t.Context(), tc.draft, func(c *scheduling.Cycle) {
			r := c.Request
			if !r.Trial {
				t.Errorf("%s: producers take it for a request that somebody sent", name)
			}
			got = scheduling.Request{Operation: r.Operation, Model: r.Model, PromptBytes: r.PromptBytes, Choices: r.Choices, Stream: r.Stream}
			picks = append(picks, c.Picks...)
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || len(picks) != tc.picks {
			t.Errorf("%s: picks %v, %s", name, picks, diff)
		}
		if name == "a subset" && picks[0] != 1 {
			t.Errorf("%s: %v is picked", name, picks)
		}
	}
	if r, n := b.load(); r != requests || n != tokens {
		t.Errorf("%d requests and %d tokens are in flight, before it were %d and %d", r, n, requests, tokens)
	}
	if n := b.notes.picks(); n != 1 {
		t.Errorf("%d picks are counted", n)
	}
}

func TestDryRunThatWouldBeRefused(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxRequestBodyBytes = 100 }})
	never := func(*scheduling.Cycle) { t.Error("decided") }
	for _, body := range []string{"not JSON", chat(200)} {
		if err := b.server.DryRun(t.Context(), Draft{Path: "/v1/chat/completions", Body: []byte(body)}, never); !errors.Is(err, ErrDraft) {
			t.Errorf("%.10q: %v", body, err)
		}
	}
	for entry, good := range map[string]bool{"36961": false, "": false, "host:80": false, ":80": false, "10.0.0.1": true, "[::1]": true, "::1": true, "10.0.0.1:80": true} {
		decided := false
		err := b.server.DryRun(t.Context(), Draft{Path: "/v1/chat/completions", Body: []byte(chat(20)), Subset: []string{"10.0.0.1:1", entry}}, func(*scheduling.Cycle) { decided = true })
		if decided != good || errors.Is(err, ErrDraft) == good || !good && !strings.HasPrefix(err.Error(), fmt.Sprintf("subset[1]: must be ip:port, or an ip for all its ports, got %q", entry)) {
			t.Errorf("subset %q: decided %t, %v", entry, decided, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.server.DryRun(gone, Draft{}, never); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Producers that had no time say whose bound it was, and what they would have known is not known of anybody.
func TestTimeForProducersRunsOut(t *testing.T) {
	b := newBench(t, options{
		produce:   func(ctx context.Context) { <-ctx.Done() },
		configure: func(c *Config) { c.ProduceTimeout = 30 * time.Millisecond },
	})
	draft := Draft{Path: "/v1/chat/completions", Body: []byte(chat(4000))}
	if err := b.server.DryRun(t.Context(), draft, func(c *scheduling.Cycle) {
		if len(c.Faults) == 0 {
			t.Error("no producer is skipped")
		}
		for _, f := range c.Faults {
			if f.Err.Error() != "server.produceTimeout ran out (30ms)" || !errors.Is(f.Err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", f.Producer, f.Err)
			}
		}
	}); err != nil {
		t.Error(err)
	}
}
