package tokens

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// captured is a captured exchange with a real engine, and an engine that answers with it.
type captured struct {
	Request  struct{ Method, Path, Body string }
	Response struct {
		Status int
		Body   string
	}
	sent string
}

func (c *captured) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	c.sent = r.URL.Path + " " + string(body)
	return &http.Response{
		StatusCode: c.Response.Status, ContentLength: -1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(c.Response.Body)),
	}, err
}

func TestCapturedRenderings(t *testing.T) {
	for name, op := range map[string]scheduling.Operation{
		"render_chat": scheduling.OperationChat, "render_completion": scheduling.OperationCompletions,
		"render_completion_list": scheduling.OperationCompletions, "render_messages": scheduling.OperationMessages,
		"render_responses": scheduling.OperationResponses,
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("render", "testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			c := &captured{}
			if err := json.Unmarshal(raw, c); err != nil {
				t.Fatal(err)
			}
			h := newExactHarness(t, c, nil)
			defer h.close()
			got := h.get(post(op, c.Request.Body))
			var answers []struct {
				TokenIDs []uint32 `json:"token_ids"`
			}
			text := c.Response.Body
			if text[0] != '[' {
				text = "[" + text + "]"
			}
			if err := json.Unmarshal([]byte(text), &answers); err != nil {
				t.Fatal(err)
			}
			want := scheduling.TokenizedPrompt{Tokens: answers[0].TokenIDs, Exact: true, BytesPerToken: 4}
			for _, a := range answers {
				want.Count += len(a.TokenIDs)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if sent := c.Request.Path + " " + strings.TrimSuffix(c.Request.Body, "}") + `,"mm_payload":"none"}`; c.sent != sent {
				t.Errorf("sent %s\nwant %s", c.sent, sent)
			}
		})
	}
}

// What an engine is asked is the body as the client wrote it, but for the model's name where it must be another.
func TestBodiesAreSentAsTheyAre(t *testing.T) {
	for _, tc := range []struct {
		name, body, model, modelName, want string
	}{
		{"as it is", ` {"model": "m",  "messages":[{"role":"user","content":"\u00fc \/"}] , "stream":true, "unknown":[1.50]} `, "m", "",
			`{"model": "m",  "messages":[{"role":"user","content":"\u00fc \/"}] , "stream":true, "unknown":[1.50],"mm_payload":"none"}`},
		{"another payload", `{"model":"m","mm_payload":"tensors","messages":[{"role":"user","content":"x"}]}`, "m", "",
			`{"model":"m","mm_payload":"none","messages":[{"role":"user","content":"x"}]}`},
		{"the model that the engine will see", `{"model":"alias","messages":[{"role":"user","content":"x"}]}`, "real \"one\"", "",
			`{"model":"real \"one\"","messages":[{"role":"user","content":"x"}],"mm_payload":"none"}`},
		{"the name that the server knows", `{"model":"adapter","messages":[{"role":"user","content":"x"}]}`, "adapter", "base",
			`{"model":"base","messages":[{"role":"user","content":"x"}],"mm_payload":"none"}`},
		{"no model", `{"messages":[{"role":"user","content":"x"}]}`, "", "base",
			`{"messages":[{"role":"user","content":"x"}],"mm_payload":"none","model":"base"}`},
		{"the last of two", `{"model":"a","model":"m","messages":[{"role":"user","content":"x"}]}`, "m", "",
			`{"model":"a","model":"m","messages":[{"role":"user","content":"x"}],"mm_payload":"none"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &engine{}
			h := newExactHarness(t, e, func(p *Parameters) { p.ModelName, p.VLLM.APIKey = tc.modelName, "k" })
			defer h.close()
			r := chatRequest(tc.body)
			r.Model = tc.model
			h.want(e, r)
			want := call{"render:8000", "/v1/chat/completions/render", tc.want, "Bearer k"}
			if calls := e.asked(); len(calls) != 1 || calls[0] != want {
				t.Errorf("asked %+v\nwant %+v", calls, want)
			}
		})
	}
}

// Bodies of every shape are routed, with exact tokens or with an estimate that is not zero; no shape is an error.
func TestC17_PromptShapes(t *testing.T) {
	completions, chats := scheduling.OperationCompletions, scheduling.OperationChat
	for _, tc := range []struct {
		op    scheduling.Operation
		body  string
		exact bool
	}{
		{completions, `{"model":"m","prompt":"x"}`, true},
		{completions, `{"model":"m","prompt":["x","y z"]}`, true},
		{completions, `{"model":"m","prompt":[]}`, false},
		{completions, `{"model":"m","prompt":[1,"x"]}`, false},
		{completions, `{"model":"m","prompt":7}`, false},
		{completions, `{"model":"m"}`, false},
		{chats, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, true},
		{chats, `{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{}]}]}`, true},
		{chats, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`, true},
		{chats, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}`, true},
		{chats, `{"model":"m","messages":[{"role":"user","content":[{"type":"new","new":1}]}],"n":4,"max_tokens":"10"}`, true},
		{chats, `{"model":"m","messages":[{"role":"user"}]}`, true},
		{chats, `{"model":"m","messages":[]}`, true},
		{chats, "\xef\xbb\xbf" + `{"model":"m","messages":[{"role":"user","content":"x"}]}`, true},
		{chats, `{"model":"m","messages":7}`, false},
		{chats, `{"model":"m","messages":[{"role":"user","content":"x"}]`, false},
		{chats, `[1]`, false},
		{chats, "{\x00\"\x00", false},
		{scheduling.OperationEmbeddings, `{"model":"m","input":"x"}`, false},
		{scheduling.OperationOther, `{"model":"m","input":"x"}`, false},
		{scheduling.OperationResponses, `{"model":"m","input":"x"}`, true},
		{scheduling.OperationResponses, `{"model":"m","input":"x","previous_response_id":"resp_1"}`, false},
		{scheduling.OperationMessages, `{"model":"m","system":"s","messages":[{"role":"user","content":"x"}]}`, true},
	} {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		got := h.get(post(tc.op, tc.body))
		if got.Exact != tc.exact || got.Count <= 0 || got.Exact != (got.Tokens != nil) {
			t.Errorf("%s: %+v, want it exact: %v", tc.body, got, tc.exact)
		}
		h.close()
	}
	e := &engine{}
	h := newExactHarness(t, e, nil)
	defer h.close()
	got := h.get(post(completions, `{"model":"m","prompt":["x","y z"]}`))
	if got.Count != 5 || !slices.Equal(got.Tokens, append([]uint32{7}, words("x")...)) {
		t.Errorf("%+v: a batch has the first prompt's tokens and the sum of all", got)
	}
	e.asked()
	ids := &scheduling.Request{Operation: completions, Model: "m", Body: []byte(`{"prompt":[1,2]}`), Tokens: []uint32{1, 2}, TokenCount: 2, Choices: 1}
	if got := h.get(ids); !got.Exact || got.Count != 2 || len(e.asked()) != 0 || h.count("sluice_token_exact_prompts_total", "token_ids") != 1 {
		t.Errorf("%+v: token ids need no engine", got)
	}
}

// However a body influences its rendering, the tokens are the engine's, or there are none and a counter says why.
func TestC09_TokensAreTheEngines(t *testing.T) {
	messages := `"model":"m","messages":[{"role":"system","content":"be kind"},{"role":"user","content":"what is it"}]`
	for _, tc := range []struct {
		name, body string
		op         scheduling.Operation
		tokenize   bool // faithful by the tokenize route too
	}{
		{"tools", `{` + messages + `,"tools":[{"type":"function","function":{"name":"f"}}]}`, scheduling.OperationChat, true},
		{"tools and auto", `{` + messages + `,"tools":[{"x":1}],"tool_choice":"auto"}`, scheduling.OperationChat, true},
		{"tools and a choice", `{` + messages + `,"tools":[{"x":1}],"tool_choice":"none"}`, scheduling.OperationChat, false},
		{"template arguments", `{` + messages + `,"chat_template_kwargs":{"enable_thinking":false}}`, scheduling.OperationChat, true},
		{"an answer to go on with", `{` + messages + `,"add_generation_prompt":false,"continue_final_message":true}`, scheduling.OperationChat, true},
		{"a template", `{` + messages + `,"chat_template":"other"}`, scheduling.OperationChat, true},
		{"documents", `{` + messages + `,"documents":[{"title":"a"}]}`, scheduling.OperationChat, false},
		{"reasoning effort", `{` + messages + `,"reasoning_effort":"high"}`, scheduling.OperationChat, false},
		{"nulls are absent", `{` + messages + `,"documents":null,"reasoning_effort":null,"tools":null}`, scheduling.OperationChat, true},
		{"special tokens", `{` + messages + `,"add_special_tokens":true}`, scheduling.OperationChat, true},
		{"cut", `{` + messages + `,"truncate_prompt_tokens":5}`, scheduling.OperationChat, false},
		{"a developer", `{"model":"m","messages":[{"role":"developer","content":"x"},{"role":"user","content":"y"}]}`, scheduling.OperationChat, true},
		{"no special tokens", `{"model":"m","prompt":"x y","add_special_tokens":false}`, scheduling.OperationCompletions, true},
		{"one in a list", `{"model":"m","prompt":["x y"]}`, scheduling.OperationCompletions, true},
		{"two in a list", `{"model":"m","prompt":["x y","z"]}`, scheduling.OperationCompletions, false},
		{"a suffix", `{"model":"m","prompt":"x y","suffix":"z"}`, scheduling.OperationCompletions, false},
		{"accents and emoji", `{"model":"m","messages":[{"role":"user","content":"e\u0301 \ud83d\ude00 é 😀"}]}`, scheduling.OperationChat, true},
		{"an image", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}`, scheduling.OperationChat, false},
		{"an escaped key", `{"model":"m","mess\u0061ges":[{"role":"user","content":"x"}]}`, scheduling.OperationChat, false},
		{"responses", `{"model":"m","input":"x"}`, scheduling.OperationResponses, false},
		{"messages", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, scheduling.OperationMessages, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &engine{}
			h := newExactHarness(t, e, nil)
			defer h.close()
			r := post(tc.op, tc.body)
			if strings.HasPrefix(tc.body, `{"model":"m","prompt":["x y","z"`) {
				if got := h.get(r); !got.Exact || got.Count != 5 || !slices.Equal(got.Tokens, e.truth(t, r)) {
					t.Errorf("%+v", got)
				}
			} else {
				h.want(e, r)
			}
			e = &engine{noRender: true}
			h2 := newExactHarness(t, e, nil)
			defer h2.close()
			if !tc.tokenize {
				h2.inexact(r, "tokenize_unfaithful")
				return
			}
			h2.want(e, r)
			if calls := e.asked(); len(calls) != 2 || calls[1].path != "/tokenize" || h2.count("sluice_token_exact_prompts_total", "tokenize") != 1 {
				t.Errorf("asked %+v", calls)
			}
		})
	}
	t.Run("an adapter whose tokenizer adds tokens", func(t *testing.T) {
		e := &engine{knows: []string{"base"}}
		h := newExactHarness(t, e, func(p *Parameters) { p.ModelName = "base" })
		defer h.close()
		for i := range mismatchesToDemote {
			r := chatRequest(fmt.Sprintf(`{"model":"adapter","messages":[{"role":"user","content":"question %d"}]}`, i))
			h.get(r, len(e.truth(t, r))+2)
		}
		h.inexact(chatRequest(`{"model":"adapter","messages":[{"role":"user","content":"another"}]}`), "mismatch_demoted")
		h.want(e, chatRequest(`{"model":"base","messages":[{"role":"user","content":"another"}]}`))
		if got := h.count("sluice_token_mismatch_ratio", "adapter"); got != 1 {
			t.Errorf("mismatch ratio %v, want 1", got)
		}
	})
}

// The features of media come with the tokens.
func TestFeatures(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}`
		body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},` + image + `,` + image + `]}]}`
		for range 2 { // rendered, remembered
			got := h.get(chatRequest(body))
			want := []scheduling.PromptFeature{{ID: "image-0", Offset: len(got.Tokens) - 7, Length: 2}, {ID: "image-1", Offset: len(got.Tokens) - 5, Length: 2}}
			if diff := cmp.Diff(want, got.Features); diff != "" {
				t.Errorf("of %v: (-want +got):\n%s", got.Tokens, diff)
			}
		}
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times", n)
		}
		// What is behind a URL may be something else by the next request.
		remote := strings.ReplaceAll(body, "data:image/png;base64,AA", "https://example.com/a.png")
		h.get(chatRequest(remote))
		h.get(chatRequest(remote))
		if n := len(e.asked()); n != 2 {
			t.Errorf("asked %d times for images elsewhere, want every time", n)
		}
	})
}

func TestMemo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		const body = `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"stream":false,"temperature":0}`
		h.want(e, chatRequest(body))
		e.asked()
		for name, same := range map[string]string{
			"the same":             body,
			"another way to write": `{ "model" : "m", "messages":[ {"role":"user","content":"x"} ],"tools":[{"a":1}]}`,
			"another sampling":     `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"stream":true,"stream_options":{},"temperature":1,"max_tokens":7,"seed":3,"user":"u","n":2}`,
			"another salt":         `{"cache_salt":"tenant","model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}]}`,
		} {
			h.want(e, chatRequest(same))
			if n := len(e.asked()); n != 0 {
				t.Errorf("%s: asked %d times", name, n)
			}
		}
		for name, other := range map[string]string{
			"a text":            `{"model":"m","messages":[{"role":"user","content":"y"}],"tools":[{"a":1}]}`,
			"a role":            `{"model":"m","messages":[{"role":"system","content":"x"}],"tools":[{"a":1}]}`,
			"a model":           `{"model":"n","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}]}`,
			"tools":             `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":2}]}`,
			"no tools":          `{"model":"m","messages":[{"role":"user","content":"x"}]}`,
			"kwargs":            `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"chat_template_kwargs":{"x":1}}`,
			"an unknown field":  `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"mystery":1}`,
			"one more message":  `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"user","content":"x"}],"tools":[{"a":1}]}`,
			"a cut":             `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"truncate_prompt_tokens":4,"max_tokens":3}`,
			"an answer's limit": `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"truncate_prompt_tokens":4,"max_tokens":4}`,
		} {
			h.want(e, chatRequest(other))
			if n := len(e.asked()); n != 1 {
				t.Errorf("another %s: asked %d times", name, n)
			}
		}
		if got := h.all("sluice_token_memo_lookups_total"); got["hit"] != 4 || got["miss"] != 11 {
			t.Errorf("look-ups %v", got)
		}
		// A date in the head may have changed with the quarter of an hour.
		time.Sleep(15 * time.Minute)
		h.want(e, chatRequest(body))
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times after a quarter of an hour", n)
		}
	})
}

// The salt separates caches, not tokens: both indexes get the same tokens and the salt beside them.
func TestC15_SaltIsNoPartOfTheTokens(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		for _, salt := range []string{`"cache_salt":"tenant-1",`, `"cache_salt":"tenant-2",`, `"cache_salt":"",`, `"cache_salt":7,`, ``} {
			h.want(e, chatRequest(`{`+salt+`"model":"m","messages":[{"role":"user","content":"x"}]}`))
		}
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestMemoIsBounded(t *testing.T) {
	e := &engine{}
	h := newExactHarness(t, e, func(p *Parameters) { p.VLLM.MemoBytes = minMemoBytes })
	defer h.close()
	text := strings.Repeat("word ", 2000)
	for i := range 200 {
		h.want(e, chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s %d"}]}`, text, i)))
	}
	bytes, prompts := h.all("sluice_token_memo_bytes")[""], h.all("sluice_token_memo_prompts")[""]
	if bytes > float64(minMemoBytes) || bytes < float64(minMemoBytes)*9/10 || prompts > 150 || h.all("sluice_token_memo_evicted_total")[""] != 200-prompts ||
		h.all("sluice_token_memo_limit_bytes")[""] != float64(minMemoBytes) {
		t.Errorf("%v prompts, %v bytes, %v evicted", prompts, bytes, h.all("sluice_token_memo_evicted_total"))
	}
}

// Requests for the same prompt share one call.
func TestSamePromptAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{before: slow(50 * time.Millisecond)}
		h := newExactHarness(t, e, nil)
		defer h.close()
		var all sync.WaitGroup
		for range 48 {
			all.Go(func() { h.want(e, chatRequest(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)) })
		}
		all.Wait()
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if n := len(h.exact().jobs); n != 0 {
			t.Errorf("%d jobs are left", n)
		}
	})
}

func TestMemoHitsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		r := chatRequest(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 5000) + `"}],"stream":true}`)
		h.want(e, r)
		usage := len(e.truth(t, r))
		if n := testing.AllocsPerRun(200, func() {
			got, f := h.ask(r)
			f.Done(complete(usage), 0)
			if !got.Exact {
				t.Fatal("not exact")
			}
		}); n != 0 {
			t.Errorf("%v allocations a request", n)
		}
	})
}

// A token source that is not there is not a prompt without tokens.
func TestC22_NoTokenSource(t *testing.T) {
	e := &engine{}
	h := newExactHarness(t, e, func(p *Parameters) { p.VLLM = &VLLM{Endpoints: true} })
	defer h.close()
	h.pool.Update([]scheduling.EndpointSpec{{Address: "s:1", Engine: "sglang"}})
	r := chatRequest(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 800) + `"}]}`)
	h.inexact(r, "no_server")
	if got := h.get(r); got.Count < 400 {
		t.Errorf("%d tokens for 4,000 bytes of text", got.Count)
	}
}

// The count is that of the tokens: nothing that is looked up by tokens can exceed it.
func TestC20_CountIsTheTokens(t *testing.T) {
	e := &engine{}
	h := newExactHarness(t, e, nil)
	defer h.close()
	for _, n := range []int{1, 10, 160, 1600, 100_000} {
		got := h.get(post(scheduling.OperationCompletions, `{"model":"m","prompt":"`+strings.Repeat("w ", n)+`"}`))
		if !got.Exact || got.Count != n+1 || len(got.Tokens) != got.Count {
			t.Errorf("%d words: %d tokens, counted %d", n, len(got.Tokens), got.Count)
		}
	}
}

func TestExactMetrics(t *testing.T) {
	e := &engine{}
	h := newExactHarness(t, e, nil)
	defer h.close()
	h.want(e, chatRequest(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
	h.want(e, chatRequest("{\"model\":\"bad\\ufffd\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"))
	bad := chatRequest(`{"model":"m","messages":[{"role":"user","content":"y"}]}`)
	bad.Model = "bad\xff" // no label value
	h.get(bad, 5)
	lint(t, h.registry)
	for name, want := range map[string]map[string]float64{
		"sluice_token_exact_prompts_total": {"render": 3},
		"sluice_token_render_servers":      {"closed": 1},
		"sluice_token_memo_prompts":        {"": 2}, // the third did not agree
		"sluice_token_memo_lookups_total":  {"miss": 3},
	} {
		if diff := cmp.Diff(want, h.all(name)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}
