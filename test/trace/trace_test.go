package trace

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/deploy/jaeger"
	"github.com/sluice-epp/sluice/server/telemetry/span"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// A client's spans, in traces of their own.
const (
	parentHeader = "traceparent"
	clientSpan   = "00f067aa0ba902b7"
	unrecorded   = "00-00000000000000000000000000000bad-" + clientSpan + "-00"
)

func traceOf(n int) string { return fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e%04x", n) }

func recorded(traceID string) string { return "00-" + traceID + "-" + clientSpan + "-01" }

// prompt is long enough to fill blocks.
var prompt = strings.Repeat("Where does the river go when it has reached the sea? ", 40)

// ask sends a chat whose answer is streamed, and returns who answered and what its usage says.
func ask(t *testing.T, s *stack, e *envoytest.Instance, headers ...string) (endpoint string, input, output, cached float64) {
	t.Helper()
	body := `{"model":"sim","max_tokens":6,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + prompt + `"}]}`
	a := lab.Post(t, s.client, e.URL("/v1/chat/completions"), body, headers...)
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	var last struct {
		Usage *struct {
			Prompt     float64 `json:"prompt_tokens"`
			Completion float64 `json:"completion_tokens"`
			Details    struct {
				Cached float64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	for line := range strings.Lines(a.Body) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {"); ok {
			if err := json.Unmarshal([]byte("{"+data), &last); err != nil {
				t.Fatal(err)
			}
		}
	}
	if last.Usage == nil {
		t.Fatalf("no usage in %s", a.Body)
	}
	return a.Header.Get("x-sim-endpoint"), last.Usage.Prompt, last.Usage.Completion, last.Usage.Details.Cached
}

// places are a trace's spans, each as its service and name behind those that it hangs below.
func places(spans []jaeger.Span) map[string]jaeger.Span {
	byID := map[string]jaeger.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	all := map[string]jaeger.Span{}
	for _, s := range spans {
		path := s.Service + ":" + s.Name
		for above, ok := byID[s.Parent]; ok; above, ok = byID[above.Parent] {
			path = above.Service + ":" + above.Name + " > " + path
		}
		all[path] = s
	}
	return all
}

// await waits until a trace has so many spans.
func (s *stack) await(t *testing.T, traceID string, n int) map[string]jaeger.Span {
	t.Helper()
	var spans []jaeger.Span
	defer func() {
		if t.Failed() {
			t.Logf("the trace:\n%s", strings.Join(jaeger.Tree(spans), "\n"))
		}
	}()
	lab.Wait(t, fmt.Sprintf("%d spans of the trace %s", n, traceID), func() bool {
		var err error
		if spans, err = s.api.Trace(t.Context(), traceID); err != nil {
			t.Fatal(err)
		}
		return len(spans) >= n
	})
	return places(spans)
}

// What every request with a streamed answer has, below the span that Sluice's hangs from.
var children = []string{
	span.Receive, span.Tokenize, span.Lookup, span.Produce, span.Wait, span.Fill, span.Filter, span.Score, span.Pick, span.FirstToken, span.End,
}

const (
	ingress = "envoy:ingress"
	call    = ingress + " > envoy:async envoy.service.ext_proc.v3.ExternalProcessor.Process egress"
	egress  = ingress + " > envoy:router inference-pool egress"
)

// tree is the whole of a trace: sluice is where Sluice's own spans hang, engine where the engine's does.
func tree(sluice, engine string, others ...string) []string {
	all := slices.Concat(others, []string{sluice + "sluice:" + span.Request, engine + "engine:" + span.Engine})
	for _, child := range children {
		all = append(all, sluice+"sluice:"+span.Request+" > sluice:"+child)
	}
	slices.Sort(all)
	return all
}

func sortedKeys(m map[string]jaeger.Span) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// TestTraces: one trace from the client's traceparent through Envoy's span to Sluice's and the engine's.
func TestTraces(t *testing.T) {
	s := newStack(t)
	traced, silent := s.envoy(t, true), s.envoy(t, false)

	t.Run("Envoy traces", func(t *testing.T) {
		ask(t, s, traced, parentHeader, recorded(traceOf(1)), "x-request-id", "first")
		want := tree(call+" > ", egress+" > ", ingress, call, egress)
		first := s.await(t, traceOf(1), len(want))
		if diff := cmp.Diff(want, sortedKeys(first)); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
		if got := first[ingress].Parent; got != clientSpan {
			t.Errorf("Envoy's span hangs below %q, want the client's", got)
		}
		// The same prompt again, once the index knows of it.
		lab.Wait(t, "the prompt to be cached", func() bool {
			_, _, _, cached := ask(t, s, traced, parentHeader, unrecorded)
			return cached > 0
		})
		endpoint, input, output, cached := ask(t, s, traced, parentHeader, recorded(traceOf(2)), "x-request-id", "second")
		second := s.await(t, traceOf(2), len(want))
		checkRequest(t, s, second[call+" > sluice:"+span.Request].Tags, endpoint, map[attribute]any{
			span.GenAIInputTokens: input, span.GenAIOutputTokens: output, span.GenAICachedTokens: cached, span.ResponseStatus: 200.0,
			span.EndReason: "complete", span.GenAIRequestModel: "sim", span.GenAIMaxTokens: 6.0, span.GenAIOperation: span.OperationChat,
			span.GenAIStream: true, span.ClientRequestID: "second", span.Candidates: 2.0, span.Gate: "held", span.PromptTokens: input,
			span.PromptExact: true, span.MatchBlockSize: 16.0,
		})
		of := second[egress+" > engine:"+span.Engine].Tags
		if of[string(span.VLLMInputTokens)] != input || of[string(span.VLLMOutputTokens)] != output || of[string(span.GenAICachedTokens)] != cached {
			t.Errorf("the engine's span says %v, its answer %v, %v and %v", of, input, output, cached)
		}
	})

	t.Run("Envoy does not trace", func(t *testing.T) {
		ask(t, s, silent, parentHeader, recorded(traceOf(3)))
		want := tree("", "")
		spans := s.await(t, traceOf(3), len(want))
		if diff := cmp.Diff(want, sortedKeys(spans)); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
		for _, root := range []string{"sluice:" + span.Request, "engine:" + span.Engine} {
			if got := spans[root].Parent; got != clientSpan {
				t.Errorf("%s hangs below %q, want the client's span", root, got)
			}
		}
	})

	t.Run("nobody before Envoy traces", func(t *testing.T) {
		ask(t, s, traced, "x-request-id", "without")
		want := tree(call+" > ", egress+" > ", ingress, call, egress)
		query := url.Values{"service": {"sluice"}, "tags": {`{"` + string(span.ClientRequestID) + `":"without"}`}}
		var spans []jaeger.Span
		lab.Wait(t, "the trace that Envoy began", func() bool {
			var err error
			spans, err = jaeger.Parse([]byte(lab.Get(t, s.client, s.api.URL+"/api/traces?"+query.Encode()).Body))
			if err != nil {
				t.Fatal(err)
			}
			return len(spans) >= len(want)
		})
		got := places(spans)
		if diff := cmp.Diff(want, sortedKeys(got)); diff != "" || got[ingress].Parent != "" {
			t.Errorf("Envoy's span hangs below %q; spans (-want +got):\n%s", got[ingress].Parent, diff)
		}
	})

	t.Run("not recorded", func(t *testing.T) {
		const ignored = 9
		for _, e := range []*envoytest.Instance{traced, silent} {
			ask(t, s, e, parentHeader, strings.TrimSuffix(recorded(traceOf(ignored)), "1")+"0")
		}
		// A later trace has come: the spans of an earlier one would have, too.
		ask(t, s, traced, parentHeader, recorded(traceOf(4)))
		s.await(t, traceOf(4), len(children)+5)
		if spans, err := s.api.Trace(t.Context(), traceOf(ignored)); err != nil || len(spans) != 0 {
			t.Errorf("%v; spans of a trace that is not to be recorded:\n%s", err, strings.Join(jaeger.Tree(spans), "\n"))
		}
	})

	t.Run("exemplars", func(t *testing.T) {
		page := lab.Get(t, s.client, "http://"+s.admin+"/metrics", "accept", "application/openmetrics-text;version=1.0.0").Body
		for _, histogram := range []string{"sluice_decision_seconds", "sluice_first_token_seconds", "sluice_request_seconds"} {
			named := false
			for line := range strings.Lines(page) {
				named = named || strings.HasPrefix(line, histogram+"_bucket{") && strings.Contains(line, `# {trace_id="4bf92f3577b34da6a3ce929d0e0e`)
			}
			if !named {
				t.Errorf("no bucket of %s names a trace", histogram)
			}
		}
	})
}
