package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fast is the speed of tests that are not about time.
const fast = 1000

func startServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// answer is a response read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t testing.TB, v any) {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
}

func do(t testing.TB, req *http.Request) answer {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, body}
}

func request(t testing.TB, s *Server, method, path string, body any) *http.Request {
	t.Helper()
	b, ok := body.(string)
	if !ok {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		b = string(raw)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func post(t testing.TB, s *Server, path string, body any) answer {
	t.Helper()
	return do(t, request(t, s, http.MethodPost, path, body))
}

func get(t testing.TB, s *Server, path string) answer {
	t.Helper()
	return do(t, request(t, s, http.MethodGet, path, ""))
}

type obj = map[string]any

// chatAnswer is what tests read of a chat completion or of its chunks.
type chatAnswer struct {
	Choices []struct {
		Index        int
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		Text         string
		FinishReason string   `json:"finish_reason"`
		TokenIDs     []uint32 `json:"token_ids"`
	}
	Usage          *usage
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
}

func chat(t testing.TB, s *Server, body obj) chatAnswer {
	t.Helper()
	var a chatAnswer
	post(t, s, "/v1/chat/completions", body).json(t, &a)
	return a
}

type event struct{ name, data string }

// sseEvents reads a whole stream of server-sent events.
func sseEvents(t testing.TB, body []byte) []event {
	t.Helper()
	var out []event
	var e event
	sc := bufio.NewScanner(bytes.NewReader(body))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		switch line := sc.Text(); {
		case line == "":
			out, e = append(out, e), event{}
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		default:
			t.Fatalf("line %q is no event", line)
		}
	}
	if e != (event{}) {
		t.Fatalf("stream ends within an event: %+v", e)
	}
	return out
}

const story = "The baker opens the shop before the sun is up. She lights the oven, weighs the flour, and waits. "

// A conversation of several turns finds all of the previous turn in the cache, answer included.
func TestMultiTurnChatHitsPromptAndAnswer(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	messages := []obj{
		{"role": "system", "content": strings.Repeat(story, 3)},
		{"role": "user", "content": "Tell me a story."},
	}
	held := 0 // tokens computed in the turn before
	for turn := range 4 {
		a := chat(t, s, obj{"messages": messages, "max_tokens": 50, "return_token_ids": true})
		want := held / 16 * 16
		if got := a.Usage.PromptDetails.CachedTokens; got != want {
			t.Fatalf("turn %d: %d tokens cached, want %d", turn, got, want)
		}
		if a.Usage.CompletionTokens != 50 || a.Usage.PromptTokens != len(a.PromptTokenIDs) ||
			a.Usage.TotalTokens != a.Usage.PromptTokens+50 {
			t.Errorf("usage = %+v with %d prompt tokens", a.Usage, len(a.PromptTokenIDs))
		}
		if text := a.Choices[0].Message.Content; strings.TrimSpace(text) == "" || text[0] == ' ' {
			t.Errorf("answer %q", text)
		}
		held = a.Usage.PromptTokens + 50 - 1 // the last token was sampled but not computed
		messages = append(messages,
			obj{"role": "assistant", "content": a.Choices[0].Message.Content},
			obj{"role": "user", "content": fmt.Sprintf("And then, %d?", turn)})
	}
}

// The answer to a chat encodes to the tokens it was made of, and depends on the prompt alone.
func TestAnswersAreDeterministicAndRoundTrip(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	other := startServer(t, Config{Speed: fast})
	seen := map[string]bool{}
	for i := range 20 {
		body := obj{"messages": []obj{{"role": "user", "content": fmt.Sprint("question ", i)}}, "max_tokens": 1 + 13*i, "return_token_ids": true}
		a := chat(t, s, body)
		text := a.Choices[0].Message.Content
		if got := s.tok.Append(nil, text); fmt.Sprint(got) != fmt.Sprint(a.Choices[0].TokenIDs) {
			t.Fatalf("%q encodes to %v, was made of %v", text, got, a.Choices[0].TokenIDs)
		}
		if again := chat(t, other, body); again.Choices[0].Message.Content != text {
			t.Errorf("another server answers %q, not %q", again.Choices[0].Message.Content, text)
		}
		seen[text] = true
	}
	if len(seen) < 19 {
		t.Errorf("%d different answers to 20 prompts", len(seen))
	}
}

func TestChatStream(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	body := obj{
		"messages": []obj{{"role": "user", "content": story}}, "max_completion_tokens": 5, "max_tokens": 9, "n": 2, "stream": true,
		"stream_options": obj{"include_usage": true},
	}
	a := post(t, s, "/v1/chat/completions", body)
	if ct := a.header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	evs := sseEvents(t, a.body)
	if last := evs[len(evs)-1].data; last != "[DONE]" {
		t.Fatalf("stream ends with %q", last)
	}
	texts, chunks := [2]string{}, [2]int{}
	var usage *usage
	for _, e := range evs[:len(evs)-1] {
		var c chatAnswer
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Choices) == 0 {
			usage = c.Usage
			continue
		}
		ch := c.Choices[0]
		if first := chunks[ch.Index] == 0; (ch.Delta.Role == "assistant") != first || first && ch.Delta.Content != "" {
			t.Errorf("chunk %d of choice %d: %+v", chunks[ch.Index], ch.Index, ch.Delta)
		}
		chunks[ch.Index]++
		if (ch.FinishReason == "length") != (chunks[ch.Index] == 6) {
			t.Errorf("chunk %d of choice %d finishes with %q", chunks[ch.Index], ch.Index, ch.FinishReason)
		}
		texts[ch.Index] += ch.Delta.Content
	}
	if chunks != [2]int{6, 6} || texts[0] == texts[1] {
		t.Errorf("chunks %v, texts %q", chunks, texts)
	}
	if usage == nil || usage.CompletionTokens != 10 || usage.PromptTokens == 0 {
		t.Errorf("usage = %+v", usage)
	}
	body["stream"] = false
	whole := chat(t, s, body)
	for i := range 2 {
		if whole.Choices[i].Message.Content != texts[i] {
			t.Errorf("choice %d: streamed %q, whole %q", i, texts[i], whole.Choices[i].Message.Content)
		}
	}
	if whole.Usage.PromptTokens != usage.PromptTokens {
		t.Errorf("n=2 counts the prompt as %d tokens, then %d", usage.PromptTokens, whole.Usage.PromptTokens)
	}
}

func TestC31_ContinuousUsageIsCumulative(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	evs := sseEvents(t, post(t, s, "/v1/completions", obj{"prompt": []int{1, 2}, "n": 2, "max_tokens": 2, "stream": true,
		"stream_options": obj{"include_usage": true, "continuous_usage_stats": true}}).body)
	var got []int
	for _, e := range evs[:len(evs)-1] {
		var c chatAnswer
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Usage.CompletionTokens)
	}
	if fmt.Sprint(got) != "[1 2 3 4 4]" {
		t.Errorf("completion tokens by chunk: %v", got)
	}
}

func TestMessagesStreamUsage(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	body := obj{"messages": []obj{{"role": "user", "content": strings.Repeat(story, 4)}}, "system": "Be brief.", "max_tokens": 3, "stream": true}
	var read int
	for range 2 {
		evs := sseEvents(t, post(t, s, "/v1/messages", body).body)
		var start struct{ Message struct{ Usage messageUsage } }
		var delta struct{ Usage messageUsage }
		if err := json.Unmarshal([]byte(evs[0].data), &start); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(evs[len(evs)-2].data), &delta); err != nil {
			t.Fatal(err)
		}
		if evs[0].name != "message_start" || evs[len(evs)-2].name != "message_delta" || len(evs) != 8 {
			t.Fatalf("events %+v", evs)
		}
		u := delta.Usage
		if start.Message.Usage.InputTokens != u.InputTokens || u.OutputTokens != 3 {
			t.Errorf("usage %+v, then %+v", start.Message.Usage, u)
		}
		read = u.CacheRead
		var count map[string]int
		post(t, s, "/v1/messages/count_tokens", body).json(t, &count)
		if u.InputTokens+u.CacheRead != count["input_tokens"] {
			t.Errorf("input %d + cached %d tokens, counted %d", u.InputTokens, u.CacheRead, count["input_tokens"])
		}
	}
	if read == 0 {
		t.Error("nothing read from the cache the second time")
	}
}

func TestResponsesUsage(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	body := obj{"instructions": "Be brief.", "max_output_tokens": 4, "input": []obj{
		{"role": "user", "content": []obj{{"type": "input_text", "text": strings.Repeat(story, 4)}}},
		{"type": "function_call_output", "call_id": "c1", "output": "42"},
	}}
	for i := range 2 {
		var r response
		post(t, s, "/v1/responses", body).json(t, &r)
		if r.Usage.OutputTokens != 4 || r.Output[0].Content[0].Text == "" || r.Status != "incomplete" {
			t.Errorf("response %+v", r)
		}
		if cached := r.Usage.InputDetails.Cached; (cached > 0) != (i == 1) || cached%16 != 0 {
			t.Errorf("request %d: %d cached tokens", i, cached)
		}
	}
}

func TestC17_PromptShapes(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	for _, tc := range []struct {
		name, body string
		prompt, n  int
	}{
		{"text", `{"prompt":"oven"}`, 0, 1},
		{"texts", `{"prompt":["the oven","the sun"]}`, 0, 2},
		{"ids", `{"prompt":[1,2,3]}`, 3, 1},
		{"lists of ids", `{"prompt":[[1,2],[3]]}`, 3, 2},
		{"samples", `{"prompt":[[1,2],[3]],"n":3,"max_tokens":2}`, 3, 6},
		{"lenient numbers", `{"prompt":[1],"max_tokens":"2","n":1.0,"stream":"false"}`, 1, 1},
		{"nulls and unknown members", `{"prompt":[1],"max_tokens":null,"n":null,"stream":null,"cache_salt":null,"x":{"prompt":1}}`, 1, 1},
		{"byte order mark", "\ufeff" + `{"prompt":[1]}`, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a chatAnswer
			post(t, s, "/v1/completions?beta=true", tc.body).json(t, &a)
			if len(a.Choices) != tc.n || tc.prompt > 0 && a.Usage.PromptTokens != tc.prompt {
				t.Errorf("%d choices, usage %+v", len(a.Choices), a.Usage)
			}
			for i, c := range a.Choices {
				if c.Index != i || c.Text == "" || c.FinishReason != "length" {
					t.Errorf("choice %d: %+v", i, c)
				}
			}
			var e struct {
				Data  []struct{ Embedding []float64 }
				Usage usage
			}
			post(t, s, "/v1/embeddings", strings.Replace(tc.body, "prompt", "input", 1)).json(t, &e)
			if len(e.Data[0].Embedding) != embeddingSize || e.Usage.PromptTokens != a.Usage.PromptTokens || e.Usage.CompletionTokens != 0 {
				t.Errorf("embedding of %d, usage %+v", len(e.Data[0].Embedding), e.Usage)
			}
		})
	}
	for _, content := range []string{`"x"`, `null`, `[{"type":"text","text":"x"}]`, `[{"type":"image_url","image_url":{"url":"data:,x"}}]`, `[]`} {
		a := post(t, s, "/v1/chat/completions/", `{"messages":[{"role":"user","content":`+content+`},{"role":"critic"}]}`)
		if a.status != http.StatusOK {
			t.Errorf("content %s: %d %s", content, a.status, a.body)
		}
	}
}

func TestC15_CacheSaltAndAdapterSeparateCaches(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Adapters: []string{"sql"}})
	cached := func(salt, model string) int {
		body := obj{"prompt": strings.Repeat(story, 3), "max_tokens": 1, "cache_salt": salt}
		if model != "" {
			body["model"] = model
		}
		var a chatAnswer
		post(t, s, "/v1/completions", body).json(t, &a)
		return a.Usage.PromptDetails.CachedTokens
	}
	for i, tc := range []struct {
		salt, model string
		hit         bool
	}{
		{"", "", false}, {"", "sim", true}, {"tenant-1", "", false}, {"tenant-2", "", false}, {"tenant-1", "", true},
		{"", "sql", false}, {"tenant-1", "sql", false}, {"", "sql", true}, {"", "", true},
	} {
		if got := cached(tc.salt, tc.model); (got > 0) != tc.hit {
			t.Errorf("request %d, salt %q, model %q: %d tokens cached, want a hit: %v", i, tc.salt, tc.model, got, tc.hit)
		}
	}
	var reset map[string]bool
	post(t, s, "/reset_prefix_cache", "").json(t, &reset)
	if !reset["success"] || cached("", "") != 0 {
		t.Errorf("reset answered %v; cache not empty after it", reset)
	}
}

func TestTokenize(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	type tokenized struct {
		Count     int
		MaxLen    int `json:"max_model_len"`
		Tokens    []uint32
		TokenStrs []string `json:"token_strs"`
	}
	var a tokenized
	post(t, s, "/tokenize", obj{"prompt": story + "日本 <|end|>", "return_token_strs": true}).json(t, &a)
	if a.Count != len(a.Tokens) || a.MaxLen != 32_768 || len(a.TokenStrs) != a.Count || a.TokenStrs[a.Count-1] != "<|end|>" {
		t.Errorf("tokenized %+v", a)
	}
	var back map[string]string
	post(t, s, "/detokenize", obj{"tokens": a.Tokens}).json(t, &back)
	if back["prompt"] != "<|begin|>"+story+"日本 <|end|>" {
		t.Errorf("detokenized %q", back["prompt"])
	}
	messages := []obj{{"role": "system", "content": "Be brief."}, {"role": "user", "content": story}}
	tools := []obj{{"type": "function", "function": obj{"name": "f"}}}
	post(t, s, "/tokenize", obj{"messages": messages, "tools": tools}).json(t, &a)
	c := chat(t, s, obj{"messages": messages, "tools": tools, "return_token_ids": true})
	if fmt.Sprint(a.Tokens) != fmt.Sprint(c.PromptTokenIDs) {
		t.Errorf("tokenize gives %v, chat uses %v", a.Tokens, c.PromptTokenIDs)
	}
	var open tokenized
	post(t, s, "/tokenize", obj{"messages": messages, "tools": tools, "add_generation_prompt": false}).json(t, &open)
	if open.Count != a.Count-1 {
		t.Errorf("%d tokens without a generation prompt, %d with", open.Count, a.Count)
	}
}

func TestErrors(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Params: sim.Params{MaxModelLen: 200, NumBlocks: 100}, MaxBodyBytes: 4096})
	long := fmt.Sprintf(`{"prompt":[%s1],"max_tokens":5}`, strings.Repeat("1,", 200))
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"bad JSON", "POST", "/v1/chat/completions", `{"messages": [`, 400, `"type":"Bad Request","param":"body.`},
		{"empty body", "POST", "/v1/completions", ``, 400, `"type":"Bad Request"`},
		{"wrong type", "POST", "/v1/chat/completions", `{"messages":"hi"}`, 400, `"param":"body.messages"`},
		{"wrong salt", "POST", "/v1/completions", `{"prompt":"x","cache_salt":7}`, 400, `"param":"body.cache_salt"`},
		{"no messages", "POST", "/v1/chat/completions", `{}`, 400, `"param":"body.messages"`},
		{"no role", "POST", "/v1/chat/completions", `{"messages":[{"content":"x"}]}`, 400, `"param":"body.messages.0.role"`},
		{"unknown part", "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"smell"}]}]}`, 400, `"param":"messages.0.content.0.type"`},
		{"empty prompt", "POST", "/v1/completions", `{"prompt":""}`, 400, `"param":"prompt"`},
		{"empty list", "POST", "/v1/completions", `{"prompt":[]}`, 400, `"param":"prompt"`},
		{"unknown token", "POST", "/v1/completions", `{"prompt":[999999]}`, 400, `token id 999999`},
		{"unknown model", "POST", "/v1/chat/completions", `{"model":"nope","messages":[]}`, 404, `"type":"NotFoundError","param":"model","code":404`},
		{"too long", "POST", "/v1/completions", long, 400, `"param":"input_tokens"`},
		{"max_tokens", "POST", "/v1/completions", `{"prompt":"x","max_tokens":201}`, 400, `"param":"max_tokens"`},
		{"no tokens", "POST", "/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, `"param":"max_tokens"`},
		{"n", "POST", "/v1/completions", `{"prompt":"x","n":0}`, 400, `"param":"n"`},
		{"huge n", "POST", "/v1/completions", `{"prompt":["x","y"],"n":513}`, 400, `"param":"n"`},
		{"messages: no limit", "POST", "/v1/messages", `{"messages":[]}`, 400, `"param":"body.max_tokens"`},
		{"messages: unknown model", "POST", "/v1/messages", `{"model":"nope","messages":[]}`, 404, `{"type":"error","error":{"type":"NotFoundError"`},
		{"previous response", "POST", "/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, 404, `"param":"response_id"`},
		{"responses: no input", "POST", "/v1/responses", `{}`, 400, `"param":"body.input"`},
		{"detokenize", "POST", "/detokenize", `{"tokens":["x"]}`, 400, `"param":"body.tokens"`},
		{"unknown path", "GET", "/nope", ``, 404, `{"detail":"Not Found"}`},
		{"unknown path, POST", "POST", "/v1/nope", `{}`, 404, `{"detail":"Not Found"}`},
		{"wrong method", "GET", "/v1/completions", ``, 405, `{"detail":"Method Not Allowed"}`},
		{"body too large", "POST", "/v1/completions", strings.Repeat("x", 4097), 413, `exceeds 4096 bytes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := do(t, request(t, s, tc.method, tc.path, tc.body))
			if a.status != tc.status || !strings.Contains(string(a.body), tc.want) {
				t.Errorf("answer %d %s, want %d with %s", a.status, a.body, tc.status, tc.want)
			}
			if a.header.Get("Content-Type") != "application/json" {
				t.Errorf("content type %q", a.header.Get("Content-Type"))
			}
		})
	}
	// Nothing of this has reached the model.
	if st := s.Stats(); st.Finished+st.Aborted+st.Running+st.Waiting != 0 {
		t.Errorf("model has %+v", st)
	}
}

// An output that does not fit is cut at the model length.
func TestOutputIsBoundedByModelLength(t *testing.T) {
	s := startServer(t, Config{Speed: fast, Params: sim.Params{MaxModelLen: 64}})
	var a chatAnswer
	post(t, s, "/v1/completions", `{"prompt":[1,2,3,4],"max_tokens":64}`).json(t, &a)
	if a.Usage.CompletionTokens != 60 {
		t.Errorf("%d output tokens, want 60", a.Usage.CompletionTokens)
	}
}
