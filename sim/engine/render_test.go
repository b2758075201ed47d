package engine

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim"
)

// tokensOf is what the answer of a render route, or of inference, says of the prompt.
type tokensOf struct {
	TokenIDs       []uint32 `json:"token_ids"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	Model          string
	CacheSalt      *string `json:"cache_salt"`
	Sampling       struct {
		MaxTokens  int `json:"max_tokens"`
		OutputKind int `json:"output_kind"`
		Stop       []string
	} `json:"sampling_params"`
	Choices []struct {
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		TokenIDs       []uint32 `json:"token_ids"`
	}
	Usage usage
}

// A chat is rendered to exactly the tokens that inference computes and caches, whatever its form.
func TestRenderChatEqualsInference(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Adapters: []string{"sql"}})
	user := obj{"role": "user", "content": story}
	for name, body := range map[string]obj{
		"plain":   {"messages": []obj{user}},
		"adapter": {"messages": []obj{user}, "model": "sql", "cache_salt": "tenant-1"},
		"tools and parts": {
			"tools":    []obj{{"type": "function", "function": obj{"name": "f"}}},
			"messages": []obj{{"role": "system", "content": "Be brief."}, {"role": "user", "content": []obj{{"type": "text", "text": story}, {"type": "image_url", "image_url": obj{"url": "data:,x"}}}}},
		},
		"calls":         {"messages": []obj{user, {"role": "assistant", "content": nil, "tool_calls": []obj{{"id": "1"}}}, {"role": "tool", "content": "42"}}},
		"no generation": {"messages": []obj{user}, "add_generation_prompt": false},
		"continued":     {"messages": []obj{user, {"role": "assistant", "content": "Once upon"}}, "add_generation_prompt": false, "continue_final_message": true},
		"mm_payload":    {"messages": []obj{user}, "mm_payload": "none", "x": 1},
		"arguments":     {"messages": []obj{user}, "chat_template_kwargs": obj{"enable_thinking": false}},
		"template":      {"messages": []obj{user}, "chat_template": "{{ messages }}"},
		"documents":     {"messages": []obj{user}, "documents": []obj{{"title": "Bread", "text": story}}},
		"developer":     {"messages": []obj{{"role": "developer", "content": "Be brief."}, user}},
		"begin":         {"messages": []obj{user}, "add_special_tokens": true},
		"nothing":       {"messages": []obj{user}, "chat_template": nil, "chat_template_kwargs": nil, "documents": nil, "add_special_tokens": nil},
	} {
		t.Run(name, func(t *testing.T) {
			body["max_tokens"], body["return_token_ids"] = 3, true
			var rendered, tokenized, inferred tokensOf
			post(t, s, "/v1/chat/completions/render", body).json(t, &rendered)
			post(t, s, "/v1/chat/completions", body).json(t, &inferred)
			if diff := cmp.Diff(inferred.PromptTokenIDs, rendered.TokenIDs); diff != "" || len(rendered.TokenIDs) == 0 {
				t.Errorf("tokens (-inference +render):\n%s", diff)
			}
			var list struct{ Tokens []uint32 }
			post(t, s, "/tokenize", body).json(t, &list)
			tokenized.TokenIDs = list.Tokens
			if !slices.Equal(tokenized.TokenIDs, rendered.TokenIDs) {
				t.Errorf("tokenize gives %v, render %v", tokenized.TokenIDs, rendered.TokenIDs)
			}
			if rendered.Sampling.MaxTokens != 3 || rendered.Sampling.OutputKind != outputFinal {
				t.Errorf("sampling parameters %+v", rendered.Sampling)
			}
			if salt, ok := body["cache_salt"]; ok != (rendered.CacheSalt != nil) || ok && *rendered.CacheSalt != salt {
				t.Errorf("salt %v", rendered.CacheSalt)
			}
			var again tokensOf
			post(t, s, "/v1/chat/completions", body).json(t, &again)
			if got, want := again.Usage.PromptDetails.CachedTokens, (len(rendered.TokenIDs)-1)/16*16; got != want {
				t.Errorf("%d tokens cached the second time, of %d rendered", got, len(rendered.TokenIDs))
			}
		})
	}
}

func TestRenderCompletionsEqualsInference(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	for _, prompt := range []any{story, []string{story, "import os"}, []int{1, 2, 3}, [][]int{{1, 2}, {3}}} {
		var rendered []struct {
			tokensOf
			RequestID string `json:"request_id"`
		}
		var inferred tokensOf
		body := obj{"prompt": prompt, "return_token_ids": true, "max_tokens": 2, "stop": "x"}
		post(t, s, "/v1/completions/render", body).json(t, &rendered)
		post(t, s, "/v1/completions", body).json(t, &inferred)
		if len(rendered) != len(inferred.Choices) {
			t.Fatalf("%v: %d prompts rendered, %d answered", prompt, len(rendered), len(inferred.Choices))
		}
		for i, r := range rendered {
			if !slices.Equal(r.TokenIDs, inferred.Choices[i].PromptTokenIDs) {
				t.Errorf("%v: prompt %d is %v, inference has %v", prompt, i, r.TokenIDs, inferred.Choices[i].PromptTokenIDs)
			}
			if numbered := strings.HasSuffix(r.RequestID, fmt.Sprint("-", i)); numbered != (len(rendered) > 1) || r.Sampling.Stop[0] != "x" {
				t.Errorf("%v: prompt %d is %+v", prompt, i, r)
			}
		}
	}
}

// C09: whatever a request says of its rendering changes its tokens, and the same said in another way does not.
func TestC09_RenderingHeedsEveryField(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	tokens := func(path string, body obj, more ...any) string {
		t.Helper()
		b := maps.Clone(body)
		for i := 0; i < len(more); i += 2 {
			b[more[i].(string)] = more[i+1]
		}
		a := post(t, s, path, b)
		if a.status != http.StatusOK {
			t.Fatalf("%s %v: %d %s", path, b, a.status, a.body)
		}
		if path == "/v1/completions/render" {
			var all []tokensOf
			a.json(t, &all)
			return fmt.Sprint(all[0].TokenIDs)
		}
		var one tokensOf
		a.json(t, &one)
		return fmt.Sprint(one.TokenIDs)
	}
	type change = []any
	raw := func(s string) jsontext.Value { return jsontext.Value(s) }
	messages := []obj{{"role": "system", "content": "Be brief."}, {"role": "user", "content": story}}
	for _, tc := range []struct {
		path            string
		body            obj
		different, same []change
	}{
		{"/v1/chat/completions/render", obj{"messages": messages}, []change{
			{"add_special_tokens", true},
			{"chat_template", "{{ messages }}"},
			{"chat_template", "{{ messages }} "},
			{"chat_template_kwargs", obj{"enable_thinking": false}},
			{"chat_template_kwargs", obj{"enable_thinking": true}},
			{"documents", []obj{{"text": "a"}}},
			{"documents", []obj{{"text": "b"}}},
			{"messages", []obj{{"role": "developer", "content": "Be brief."}, messages[1]}},
		}, []change{
			{"add_special_tokens", false}, {"chat_template", nil}, {"chat_template", ""}, {"chat_template_kwargs", nil}, {"chat_template_kwargs", obj{}},
			{"documents", nil}, {"documents", []obj{}},
		}},
		{"/v1/chat/completions/render", obj{"messages": messages, "chat_template_kwargs": raw(`{"a": 1, "b": [2]}`)}, []change{
			{"chat_template_kwargs", raw(`{"a":1,"b":[3]}`)},
		}, []change{{"chat_template_kwargs", raw(`{"b":[2],"a":1}`)}}},
		{"/v1/messages/render", obj{"messages": messages[1:], "max_tokens": 1}, []change{
			{"chat_template_kwargs", obj{"enable_thinking": false}},
		}, []change{{"chat_template_kwargs", nil}}},
		{"/v1/completions/render", obj{"prompt": story}, []change{{"add_special_tokens", false}}, []change{{"add_special_tokens", true}, {"add_special_tokens", nil}}},
		{"/v1/completions/render", obj{"prompt": []int{1, 2}}, nil, []change{{"add_special_tokens", false}, {"add_special_tokens", true}}},
	} {
		plain := tokens(tc.path, tc.body)
		seen := map[string]change{plain: {"nothing"}}
		for _, c := range tc.different {
			got := tokens(tc.path, tc.body, c...)
			if other, found := seen[got]; found {
				t.Errorf("%s: %v has the tokens of %v", tc.path, c, other)
			}
			seen[got] = c
		}
		for _, c := range tc.same {
			if got := tokens(tc.path, tc.body, c...); got != plain {
				t.Errorf("%s: %v changes the tokens", tc.path, c)
			}
		}
	}
	// The tokenize route agrees on texts, whose special token it adds by default too.
	for _, special := range []any{nil, true, false} {
		var list struct{ Tokens []uint32 }
		post(t, s, "/tokenize", obj{"prompt": story, "add_special_tokens": special}).json(t, &list)
		if got, want := fmt.Sprint(list.Tokens), tokens("/v1/completions/render", obj{"prompt": story}, "add_special_tokens", special); got != want {
			t.Errorf("add_special_tokens=%v: tokenize gives %s, render %s", special, got, want)
		}
		var embedded, completed struct{ Usage usage }
		post(t, s, "/v1/embeddings", obj{"input": story, "add_special_tokens": special}).json(t, &embedded)
		post(t, s, "/v1/completions", obj{"prompt": story, "add_special_tokens": special}).json(t, &completed)
		if n := len(list.Tokens); embedded.Usage.PromptTokens != n || completed.Usage.PromptTokens != n {
			t.Errorf("add_special_tokens=%v: %d tokens, an embedding has %d, a completion %d", special, n, embedded.Usage.PromptTokens, completed.Usage.PromptTokens)
		}
	}
}

// Messages and responses do not tell their tokens; what they cache does.
func TestRenderMessagesAndResponsesEqualInference(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	for path, body := range map[string]obj{
		"/v1/messages":  {"system": "Be brief.", "messages": []obj{{"role": "user", "content": strings.Repeat(story, 3)}}, "max_tokens": 1},
		"/v1/responses": {"instructions": "Be short.", "input": strings.Repeat(story, 3), "max_output_tokens": 1},
	} {
		var rendered, completed tokensOf
		post(t, s, path+"/render", body).json(t, &rendered)
		post(t, s, path, body)
		post(t, s, "/v1/completions", obj{"prompt": rendered.TokenIDs, "max_tokens": 1}).json(t, &completed)
		if got, want := completed.Usage.PromptDetails.CachedTokens, (len(rendered.TokenIDs)-1)/16*16; got != want || want < 64 {
			t.Errorf("%s: the rendered prompt finds %d tokens cached, want %d", path, got, want)
		}
	}
}

func TestRenderErrors(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Params: sim.Params{MaxModelLen: 64}})
	long := strings.Repeat(story, 20)
	for _, tc := range []struct {
		path   string
		body   any
		status int
		want   string
	}{
		{"/v1/chat/completions/render", obj{"messages": []obj{}, "add_generation_prompt": false}, 400, "must not be empty"},
		{"/v1/chat/completions/render", obj{"messages": []obj{{"role": "user", "content": long}}}, 400, `"param":"input_tokens"`},
		{"/v1/chat/completions/render", obj{"messages": []obj{{"role": "user"}}, "continue_final_message": true}, 400, "cannot both be true"},
		{"/v1/chat/completions/render", obj{"messages": []obj{{"role": "user"}}, "chat_template_kwargs": "x"}, 400, `"param":"body.chat_template_kwargs"`},
		{"/v1/chat/completions", obj{"messages": []obj{{"role": "user"}}, "documents": obj{}}, 400, `"param":"body.documents"`},
		{"/v1/messages/render", obj{"messages": []obj{}, "max_tokens": 1, "chat_template_kwargs": []int{}}, 400, `"param":"body.chat_template_kwargs"`},
		{"/v1/chat/completions/render", obj{"messages": []obj{}, "chat_template": 1}, 400, `"param":"body.chat_template"`},
		{"/v1/chat/completions/render", obj{"model": "nope", "messages": []obj{}}, 404, "NotFoundError"},
		{"/v1/completions/render", obj{"prompt": long}, 400, `"param":"input_tokens"`},
		{"/v1/completions/render", obj{"prompt": slices.Repeat([]string{"a"}, maxSequences+1)}, 400, `"param":"n"`},
		{"/v1/completions/render", obj{"prompt": []string{"a", "b"}, "n": maxSequences/2 + 1}, 400, `"param":"n"`},
		{"/v1/completions", obj{"prompt": []string{"a", "b", "c", "d"}, "n": 1 << 62}, 400, `"param":"n"`},
		{"/v1/completions/render", obj{"prompt": "a", "n": 0}, 400, `"param":"n"`},
		{"/v1/messages/render", obj{"messages": []obj{{"role": "user"}}}, 400, `"param":"body.max_tokens"`},
		{"/v1/messages/render", obj{"model": "nope", "messages": []obj{}, "max_tokens": 1}, 404, `{"type":"error"`},
		{"/v1/responses/render", `{`, 400, "JSON decode error"},
	} {
		if a := post(t, s, tc.path, tc.body); a.status != tc.status || !strings.Contains(string(a.body), tc.want) {
			t.Errorf("%s %v: %d %s, want %d with %s", tc.path, tc.body, a.status, a.body, tc.status, tc.want)
		}
	}
	if st := s.Stats(); st.Finished+st.Aborted+st.Running+st.Waiting != 0 {
		t.Errorf("rendering has reached the model: %+v", st)
	}
	without := startServer(t, Config{Speed: fast, NoRender: true})
	if a := post(t, without, "/v1/chat/completions/render", obj{"messages": []obj{{"role": "user"}}}); a.status != http.StatusNotFound {
		t.Errorf("without render routes: %d %s", a.status, a.body)
	}
	if a := post(t, without, "/tokenize", obj{"prompt": "x"}); a.status != http.StatusOK {
		t.Errorf("tokenize without render routes: %d %s", a.status, a.body)
	}
}

func TestFaultsOfTheTokenizer(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	body := obj{"messages": []obj{{"role": "user", "content": "x"}}, "prompt": "x", "tokens": []int{1}}
	if err := s.SetFaults(Faults{RenderStatus: 500, RenderDelayMs: 30}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/chat/completions/render", "/v1/completions/render", "/tokenize", "/detokenize"} {
		start := time.Now()
		if a := post(t, s, path, body); a.status != 500 || time.Since(start) < 30*time.Millisecond {
			t.Errorf("%s: status %d after %v", path, a.status, time.Since(start))
		}
	}
	if a := post(t, s, "/v1/chat/completions", body); a.status != 200 {
		t.Errorf("inference fails too: %d", a.status)
	}
	if a := post(t, s, "/sim/fault", `{"render_status":200}`); a.status != 400 {
		t.Errorf("render_status 200: %d", a.status)
	}
}

// A stream tells the prompt's tokens in each sequence's first chunk only, and the answer's as they
// come.
func TestTokenIDsOfStreams(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	for path, body := range map[string]obj{
		"/v1/chat/completions": {"messages": []obj{{"role": "user", "content": story}}},
		"/v1/completions":      {"prompt": story},
	} {
		body["return_token_ids"], body["max_tokens"] = true, 4
		var whole tokensOf
		post(t, s, path, body).json(t, &whole)
		body["stream"] = true
		var got tokensOf
		got.Choices = slices.Clone(whole.Choices[:1])
		got.Choices[0].TokenIDs, got.Choices[0].PromptTokenIDs = nil, nil
		evs := sseEvents(t, post(t, s, path, body).body)
		for i, e := range evs[:len(evs)-1] {
			var chunk tokensOf
			answer{status: 200, body: []byte(e.data)}.json(t, &chunk)
			if i > 0 && (chunk.PromptTokenIDs != nil || chunk.Choices[0].PromptTokenIDs != nil) {
				t.Errorf("%s: chunk %d tells the prompt's tokens", path, i)
			}
			got.PromptTokenIDs = append(got.PromptTokenIDs, chunk.PromptTokenIDs...)
			got.Choices[0].PromptTokenIDs = append(got.Choices[0].PromptTokenIDs, chunk.Choices[0].PromptTokenIDs...)
			got.Choices[0].TokenIDs = append(got.Choices[0].TokenIDs, chunk.Choices[0].TokenIDs...)
		}
		whole.Usage, whole.Model, got.Model = usage{}, "", ""
		if diff := cmp.Diff(whole, got, cmp.AllowUnexported(usage{})); diff != "" || len(got.Choices[0].TokenIDs) != 4 {
			t.Errorf("%s (-whole +streamed):\n%s", path, diff)
		}
	}
}
