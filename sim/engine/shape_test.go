package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/sim"
)

// TestShapesAreThoseOfVLLM compares answers with those of a real vLLM in testdata/vllm: each member
// of ours exists there with a value of the same JSON kind (or null on one side), each of theirs
// that is not null exists here unless it is listed as left out, and streams have the same events
// in the same order.
func TestShapesAreThoseOfVLLM(t *testing.T) {
	s := startServer(t, Config{
		Speed: fast, Models: []string{"tiny"}, Adapters: []string{"sql"}, Params: sim.Params{MaxModelLen: 1024}, KVEvents: &KVEvents{},
	})
	user := obj{"role": "user", "content": "import os, what is it?"}
	for _, tc := range []struct {
		name, method, path string
		body               obj
		stream             bool
		leftOut            []string // of theirs
		extra              []string // of ours
	}{
		{name: "chat", path: "/v1/chat/completions", body: obj{"messages": []obj{user}}},
		{name: "completion", path: "/v1/completions", body: obj{"prompt": []string{"a", "b"}}, extra: []string{"usage.prompt_tokens_details."}},
		{name: "messages", path: "/v1/messages", body: obj{"messages": []obj{user}, "max_tokens": 2}, extra: []string{"stop_sequence"}},
		{name: "responses", path: "/v1/responses", body: obj{"input": "import os"}, leftOut: []string{
			"parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "service_tier", "truncation",
			"presence_penalty", "frequency_penalty", "usage.output_tokens_details.tool_output_tokens",
		}},
		{name: "tokenize", path: "/tokenize", body: obj{"prompt": "import os", "return_token_strs": true}},
		{name: "models", method: "GET", path: "/v1/models", leftOut: []string{"data.permission"}},
		{name: "reset", path: "/reset_prefix_cache"},
		{name: "is_sleeping", method: "GET", path: "/is_sleeping"},
		{name: "detokenize", path: "/detokenize", body: obj{"tokens": []int{300, 301}}},
		{name: "kv_event_sources", method: "GET", path: "/kv_event_sources"},
		{name: "render_chat", path: "/v1/chat/completions/render", body: obj{"messages": []obj{user}}},
		{name: "render_completions", path: "/v1/completions/render", body: obj{"prompt": []string{"a", "b"}}},
		{name: "render_messages", path: "/v1/messages/render", body: obj{"messages": []obj{user}, "max_tokens": 2},
			leftOut: []string{"sampling_params.top_p", "sampling_params.min_p"}},
		{name: "render_responses", path: "/v1/responses/render", body: obj{"input": "import os"},
			leftOut: []string{"sampling_params.top_p", "sampling_params.min_p", "sampling_params.extra_args"}},
		{name: "chat_token_ids", path: "/v1/chat/completions", body: obj{"messages": []obj{user}, "return_token_ids": true},
			extra: []string{"usage.prompt_tokens_details."}},
		{name: "completion_token_ids", path: "/v1/completions", body: obj{"prompt": "a", "return_token_ids": true},
			extra: []string{"usage.prompt_tokens_details."}},
		{name: "chat_stream_token_ids", stream: true, path: "/v1/chat/completions",
			body:  obj{"messages": []obj{user}, "max_tokens": 12, "stream": true, "return_token_ids": true},
			extra: []string{"choices.stop_reason", "choices.token_ids"}}, // in the first chunk
		{name: "error_model", path: "/v1/chat/completions", body: obj{"model": "nope", "messages": []obj{user}}},
		{name: "error_validation", path: "/v1/chat/completions", body: obj{"model": "tiny"}},
		{name: "error_too_long", path: "/v1/chat/completions", body: obj{"messages": []obj{{"role": "user", "content": strings.Repeat("import os ", 900)}}}},
		{name: "error_messages_model", path: "/v1/messages", body: obj{"model": "nope", "messages": []obj{user}, "max_tokens": 2}},
		{name: "not_found", method: "GET", path: "/nope"},
		{name: "method_not_allowed", method: "GET", path: "/v1/completions"},
		{name: "chat_stream", stream: true, path: "/v1/chat/completions",
			body:  obj{"messages": []obj{user}, "max_tokens": 2, "stream": true, "stream_options": obj{"include_usage": true}},
			extra: []string{"choices.stop_reason", "choices.token_ids"}}, // in the first chunk
		{name: "completion_stream", stream: true, path: "/v1/completions",
			body:  obj{"prompt": "def", "max_tokens": 12, "stream": true, "stream_options": obj{"include_usage": true}},
			extra: []string{"usage.prompt_tokens_details"}},
		{name: "messages_stream", stream: true, path: "/v1/messages", body: obj{"messages": []obj{user}, "max_tokens": 11, "stream": true},
			extra: []string{"usage.cache_", "message.usage.cache_"}},
		{name: "responses_stream", stream: true, path: "/v1/responses", body: obj{"input": "import os", "max_output_tokens": 12, "stream": true},
			leftOut: []string{"response.parallel_tool_calls", "response.temperature", "response.tool_choice", "response.tools", "response.top_p", "response.background",
				"response.service_tier", "response.truncation", "response.presence_penalty", "response.frequency_penalty",
				"response.usage.output_tokens_details.tool_output_tokens"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/vllm/" + tc.name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var real struct {
				Status int
				Body   string
			}
			if err := json.Unmarshal(raw, &real); err != nil {
				t.Fatal(err)
			}
			method := tc.method
			if method == "" {
				method = "POST"
			}
			a := do(t, request(t, s, method, tc.path, tc.body))
			if a.status != real.Status {
				t.Errorf("status %d, vLLM answers %d", a.status, real.Status)
			}
			ours, theirs := []event{{data: string(a.body)}}, []event{{data: real.Body}}
			if tc.stream {
				ours, theirs = sseEvents(t, a.body), sseEvents(t, []byte(real.Body))
			}
			if len(ours) != len(theirs) {
				t.Fatalf("%d events, vLLM sends %d", len(ours), len(theirs))
			}
			for i := range ours {
				compareShapes(t, ours[i], theirs[i], tc.leftOut, tc.extra)
			}
		})
	}
}

func compareShapes(t *testing.T, ours, theirs event, leftOut, extra []string) {
	t.Helper()
	if ours.name != theirs.name {
		t.Errorf("event %q, vLLM sends %q", ours.name, theirs.name)
		return
	}
	if ours.data == "[DONE]" || theirs.data == "[DONE]" {
		if ours.data != theirs.data {
			t.Errorf("%q, vLLM sends %q", ours.data, theirs.data)
		}
		return
	}
	listed := func(path string, list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(path, p) })
	}
	a, b := shape(t, ours.data), shape(t, theirs.data)
	for path, kind := range a {
		if other, ok := b[path]; listed(path, extra) {
			continue
		} else if !ok {
			t.Errorf("%s: vLLM has no such member", path)
		} else if kind != other && kind != "null" && other != "null" {
			t.Errorf("%s: %s, in vLLM %s", path, kind, other)
		}
	}
	for path, kind := range b {
		if _, ok := a[path]; !ok && kind != "null" && !listed(path, leftOut) && !strings.HasSuffix(path, "_per_turn") {
			t.Errorf("%s: missing, in vLLM %s", path, kind)
		}
	}
}

// shape maps each member's path to the kind of its value; elements of arrays have the array's path.
func shape(t *testing.T, text string) map[string]string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	out := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				p := strings.TrimPrefix(path+"."+k, ".")
				out[p] = fmt.Sprintf("%T", e)
				if e == nil {
					out[p] = "null"
				}
				walk(p, e)
			}
		case []any:
			for _, e := range v {
				walk(path, e)
			}
		}
	}
	walk("", v)
	return out
}

// FuzzBodies feeds the request parsers of all endpoints, short of the model.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]},{"role":"tool","content":null}],"tools":[{}],"n":"2","stream":1}`,
		`{"prompt":["a",[1,2]],"max_tokens":"10","max_completion_tokens":1e1,"cache_salt":"t","stream_options":{"include_usage":"true"}}`,
		`{"input":[{"role":"user","content":"x"},{"type":"function_call"}],"instructions":"\ud800","previous_response_id":null}`,
		`{"prompt":[[1],[2,3]],"messages":null}`, `{"messages":[{"role":"assistant","tool_calls":[1]}]}`,
		`{"messages":[],"chat_template":"x","chat_template_kwargs":{"b":1e400,"a":"\ud800","a":2},"documents":[{"text":"d"}],"add_special_tokens":"yes"}`,
		"\ufeff{}", `[]`, `{"n":1e999}`, ``, `{"a":1,"a":2}`,
	} {
		f.Add([]byte(seed))
	}
	s, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var all struct {
			generationRequest `json:",inline"`
			Prompt            jsontext.Value `json:"prompt"`
			Messages          []message      `json:"messages"`
			Tools             jsontext.Value `json:"tools"`
		}
		if decode(body, &all) == nil {
			if _, err := s.limit(all.MaxTokens); err == nil && all.MaxTokens != nil && *all.MaxTokens < 1 {
				t.Errorf("limit of %d accepted", *all.MaxTokens)
			}
			prompts, err := s.prompts("prompt", all.Prompt, true)
			for _, p := range prompts {
				if err == nil && len(p) == 0 {
					t.Error("accepted a prompt without tokens")
				}
			}
			a, b := template{tok: s.tok}, template{tok: s.tok}
			errA := a.render(all.Tools, all.Messages, true)
			if errB := b.render(all.Tools, append(all.Messages[:len(all.Messages):len(all.Messages)], message{Role: "user"}), false); errA == nil {
				if errB != nil || !slices.Equal(a.out[:len(a.out)-1], b.out[:len(a.out)-1]) {
					t.Errorf("a further message changes the rendering before it (%v)", errB)
				}
			}
		}
		var chat chatPrompt
		if decode(body, &chat) == nil && chat.Messages != nil {
			a, errA := chat.tokens(s)
			b, errB := chat.tokens(s)
			if !slices.Equal(a, b) || (errA == nil) != (errB == nil) {
				t.Errorf("rendered as %v (%v), then as %v (%v)", a, errA, b, errB)
			}
		}
		var r responsesRequest
		if decode(body, &r) == nil {
			tm := template{tok: s.tok}
			if err := r.prompt(&tm); err == nil && len(tm.out) < 2 {
				t.Errorf("prompt of %d tokens", len(tm.out))
			}
		}
		var m messagesRequest
		_ = decode(body, &m)
	})
}
