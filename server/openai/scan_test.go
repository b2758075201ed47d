package openai_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

const (
	chatOp        = scheduling.OperationChat
	completionsOp = scheduling.OperationCompletions
	responsesOp   = scheduling.OperationResponses
	embeddingsOp  = scheduling.OperationEmbeddings
	messagesOp    = scheduling.OperationMessages
)

// scanned is a scan's result in a form that reads well in a table.
type scanned struct {
	Model, Salt, Prompt string
	Bytes               int
	Tokens              []uint32
	Count, Max, Choices int
	Stream              bool
	Prompts, Media      int
	ReportFull, IDs     bool
}

func scan(t *testing.T, op scheduling.Operation, body string) (scanned, openai.Info) {
	t.Helper()
	var r scheduling.Request
	info, err := openai.NewScanner().Scan(op, []byte(body), &r)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return scanned{
		Model: r.Model, Salt: r.CacheSalt, Prompt: promptText(&r), Bytes: r.PromptBytes, Tokens: r.Tokens,
		Count: r.TokenCount, Max: r.MaxOutputTokens, Choices: r.Choices, Stream: r.Stream,
		Prompts: info.Prompts, Media: info.Media, ReportFull: r.KVReportFull, IDs: r.ReturnTokenIDs,
	}, info
}

var shapes = []struct {
	name string
	op   scheduling.Operation
	body string
	want scanned // Choices 0 stands for 1, Bytes -1 for the length of Prompt
}{
	{"prompt string", completionsOp, `{"model":"m","prompt":"x"}`, scanned{Model: "m", Prompt: "x", Bytes: -1, Prompts: 1}},
	{"prompt strings", completionsOp, `{"prompt":["x","yz"]}`, scanned{Prompt: "x", Bytes: 3, Prompts: 2}},
	{"prompt token ids", completionsOp, `{"prompt":[1,2,3]}`, scanned{Tokens: []uint32{1, 2, 3}, Count: 3, Prompts: 1}},
	{"prompt token id lists", completionsOp, `{"prompt":[[1,2],[3]]}`, scanned{Tokens: []uint32{1, 2}, Count: 3, Prompts: 2}},
	{"prompt mixed, text first", completionsOp, `{"prompt":["x",[1,2]]}`, scanned{Prompt: "x", Bytes: 1, Count: 2, Prompts: 2}},
	{"prompt mixed, ids first", completionsOp, `{"prompt":[[1,2],"x"]}`, scanned{Tokens: []uint32{1, 2}, Count: 2, Bytes: 1, Prompts: 2}},
	{"prompt empty", completionsOp, `{"prompt":""}`, scanned{Prompts: 1}},
	{"prompt empty list", completionsOp, `{"prompt":[]}`, scanned{}},
	{"prompt null", completionsOp, `{"prompt":null}`, scanned{}},
	{"prompt a number", completionsOp, `{"prompt":7}`, scanned{}},
	{"prompt odd ids", completionsOp, `{"prompt":[[4294967295,4294967296,-1,2.0,5]]}`, scanned{Tokens: []uint32{4294967295}, Count: 2, Prompts: 1}},
	{"prompt embeds", completionsOp, `{"prompt_embeds":"AAAA","prompt":"x"}`, scanned{Prompt: `"AAAA"x`, Bytes: 1, Media: 1, Prompts: 1}},
	{"content string", chatOp, `{"messages":[{"role":"user","content":"hi"}]}`, scanned{Prompt: `"user"hi`, Bytes: -1, Prompts: 1}},
	{"content escapes stay", chatOp, `{"messages":[{"role":"user","content":"a\n\"\u00e9\\"}]}`, scanned{Prompt: `"user"a\n\"\u00e9\\`, Bytes: -1, Prompts: 1}},
	{"content null with tool calls", chatOp,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","tool_call_id":"1","content":"42"}]}`,
		scanned{Prompt: `"assistant"[{"id":"1"}]"tool"42`, Bytes: -1, Prompts: 1}},
	{"content absent", chatOp, `{"messages":[{"role":"assistant"},{}]}`, scanned{Prompt: `"assistant"`, Bytes: -1, Prompts: 1}},
	{"content parts", chatOp, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"},"y"]}]}`, scanned{Prompt: `"user"xy`, Bytes: -1, Prompts: 1}},
	{"content image", chatOp,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://i/1"}},{"type":"text","text":"x","image_url":null}]}]}`,
		scanned{Prompt: `"user"{"url":"http://i/1"}x`, Bytes: 7, Media: 1, Prompts: 1}},
	{"content unknown part", chatOp, `{"messages":[{"role":"user","content":[{"type":"hologram","hologram":{"x":[1]}},{"type":"text","text":"x"}]}]}`, scanned{Prompt: `"user"x`, Bytes: -1, Prompts: 1}},
	{"content a number", chatOp, `{"messages":[{"role":"user","content":5}]}`, scanned{Prompt: `"user"`, Bytes: -1, Prompts: 1}},
	{"messages null", chatOp, `{"messages":null}`, scanned{}},
	{"n and max tokens", chatOp, `{"n":4,"max_tokens":100}`, scanned{Choices: 4, Max: 100}},
	{"best_of", completionsOp, `{"n":2,"best_of":8}`, scanned{Choices: 8}},
	{"n odd", chatOp, `{"n":0}`, scanned{}},
	{"n huge", chatOp, `{"n":1000000000000000000000}`, scanned{Choices: 16384}},
	{"max_completion_tokens beside max_tokens", chatOp, `{"max_completion_tokens":7,"max_tokens":9}`, scanned{Max: 7}},
	{"max_completion_tokens null", chatOp, `{"max_completion_tokens":null,"max_tokens":9}`, scanned{Max: 9}},
	{"max_completion_tokens is chat's", completionsOp, `{"max_completion_tokens":7,"max_tokens":9}`, scanned{Max: 9}},
	{"max_output_tokens", responsesOp, `{"max_output_tokens":5,"max_tokens":9}`, scanned{Max: 5}},
	{"max_tokens 0", chatOp, `{"max_tokens":0}`, scanned{}},
	{"max_tokens null", chatOp, `{"max_tokens":null}`, scanned{}},
	{"max_tokens string", chatOp, `{"max_tokens":"10"}`, scanned{Max: 10}},
	{"max_tokens float", chatOp, `{"max_tokens":10.0}`, scanned{Max: 10}},
	{"max_tokens exponent", chatOp, `{"max_tokens":1e2}`, scanned{Max: 100}},
	{"max_tokens fraction", chatOp, `{"max_tokens":1.5}`, scanned{}},
	{"max_tokens negative", chatOp, `{"max_tokens":-3}`, scanned{}},
	{"max_tokens huge", chatOp, `{"max_tokens":99999999999999999999}`, scanned{Max: 1<<31 - 1}},
	{"max_tokens object", chatOp, `{"max_tokens":{"a":[1]}}`, scanned{}},
	{"stream true", chatOp, `{"stream":true}`, scanned{Stream: true}},
	{"stream string", chatOp, `{"stream":"true"}`, scanned{Stream: true}},
	{"stream string upper case", chatOp, `{"stream":"True"}`, scanned{Stream: true}},
	{"stream 1", chatOp, `{"stream":1}`, scanned{Stream: true}},
	{"stream false", chatOp, `{"stream":false}`, scanned{}},
	{"stream null", chatOp, `{"stream":null}`, scanned{}},
	{"last of two wins", chatOp,
		`{"model":"a","stream":true,"messages":[{"role":"user","content":"old"}],"model":"b","stream":false,"messages":[{"role":"user","content":"new"}]}`,
		scanned{Model: "b", Prompt: `"user"new`, Bytes: -1, Prompts: 1}},
	{"model escaped", chatOp, `{"model":"meta\/llama\u002d3"}`, scanned{Model: "meta/llama-3"}},
	{"model null", chatOp, `{"model":null}`, scanned{}},
	{"model absent", chatOp, `{}`, scanned{}},
	{"key escaped", chatOp, `{"mod\u0065l":"m"}`, scanned{Model: "m"}},
	{"unknown fields", chatOp, `{"kv_transfer_params":{"a":[{"messages":[{"content":"no"}]}]},"x":null,"model":"m"}`, scanned{Model: "m"}},
	{"byte order mark", chatOp, "\ufeff" + `{"model":"m"}`, scanned{Model: "m"}},
	{"white space", chatOp, " \r\n\t{ \"model\" : \"m\" , \"messages\" : [ { \"role\" : \"user\" } ] } \n", scanned{Model: "m", Prompt: `"user"`, Bytes: -1, Prompts: 1}},
	{"not an object", chatOp, `["model"]`, scanned{}},
	{"python's numbers", chatOp, `{"temperature":NaN,"top_p":-Infinity,"model":"m"}`, scanned{Model: "m"}},
	{"tools come first", chatOp, `{"messages":[{"role":"user","content":"q"}],"tools":[{"f":1}]}`, scanned{Prompt: `[{"f":1}]"user"q`, Bytes: -1, Prompts: 1}},
	{"empty tools are none", chatOp, `{"messages":[{"role":"user","content":"q"}],"tools":[],"functions":null}`, scanned{Prompt: `"user"q`, Bytes: -1, Prompts: 1}},
	{"template arguments identify and weigh nothing", chatOp,
		`{"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"enable_thinking":false}}`,
		scanned{Prompt: `{"enable_thinking":false}"user"q`, Bytes: 7, Prompts: 1}},
	{"responses input string", responsesOp, `{"input":"q","instructions":"be terse"}`, scanned{Prompt: "be terseq", Bytes: -1, Prompts: 1}},
	{"responses items", responsesOp,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"42"}]}`,
		scanned{Prompt: `"user"qf"{}"42`, Bytes: -1, Prompts: 1}},
	{"embeddings batch", embeddingsOp, `{"model":"e","input":["a","bc"]}`, scanned{Model: "e", Prompt: "a", Bytes: 3, Prompts: 2}},
	{"embeddings ids", embeddingsOp, `{"input":[[5],[6,7]]}`, scanned{Tokens: []uint32{5}, Count: 3, Prompts: 2}},
	{"messages system string", messagesOp, `{"messages":[{"role":"user","content":"q"}],"system":"s","max_tokens":3}`, scanned{Prompt: `s"user"q`, Bytes: -1, Max: 3, Prompts: 1}},
	{"messages system blocks", messagesOp,
		`{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"q"}]}]}`,
		scanned{Prompt: `s"user"q`, Bytes: -1, Prompts: 1}},
	{"messages tool use", messagesOp,
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"42"}]}]}]}`,
		scanned{Prompt: `"assistant"f{"a":1}"user"42`, Bytes: -1, Prompts: 1}},
	{"messages image and text document", messagesOp,
		`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AA"}},{"type":"document","source":{"data":"d","type":"text"}}]}]}`,
		scanned{Prompt: `"user"{"type":"base64","data":"AA"}{"data":"d","type":"text"}`, Bytes: 6 + 26, Media: 1, Prompts: 1}},
	{"report mode in chat", chatOp, `{"vllm_xargs":{"session_id":"s","kv_cache_report_mode":"full","x":[1]},"model":"m"}`, scanned{Model: "m", ReportFull: true}},
	{"report mode in completions", completionsOp, `{"prompt":[1,2],"vllm_xargs": { "kv_cache_report_mode" : "full" } }`, scanned{Tokens: []uint32{1, 2}, Count: 2, Prompts: 1, ReportFull: true}},
	{"report mode in responses", responsesOp, `{"vllm_xargs":{"kv_cache_report_mode":"full"}}`, scanned{ReportFull: true}},
	{"report mode in messages", messagesOp, `{"vllm_xargs":{"kv_cache_report_mode":"full"}}`, scanned{ReportFull: true}},
	{"report mode where embeddings have none", embeddingsOp, `{"vllm_xargs":{"kv_cache_report_mode":"full"}}`, scanned{}},
	{"report mode of another kind", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"incremental"}}`, scanned{}},
	{"report mode upper case", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"FULL"}}`, scanned{}},
	{"report mode with a space", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"full "}}`, scanned{}},
	{"report mode empty", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":""}}`, scanned{}},
	{"report mode in a list", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":["full"]}}`, scanned{}},
	{"report mode true", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":true}}`, scanned{}},
	{"report mode null", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":null}}`, scanned{}},
	{"report mode escaped", chatOp, `{"vllm_xargs":{"kv_cache_report_mod\u0065":"f\u0075ll"}}`, scanned{ReportFull: true}},
	{"report mode, the last of two", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"full","kv_cache_report_mode":"no"}}`, scanned{}},
	{"report mode, the last of two objects", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":{}}`, scanned{}},
	{"report mode, then null", chatOp, `{"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":null}`, scanned{}},
	{"report mode nested deeper", chatOp, `{"vllm_xargs":{"a":{"kv_cache_report_mode":"full"}},"x":{"vllm_xargs":{"kv_cache_report_mode":"full"}}}`, scanned{}},
	{"report mode at the top", chatOp, `{"kv_cache_report_mode":"full","vllm_xargs":"full"}`, scanned{}},
	{"token ids asked for in chat", chatOp, `{"return_token_ids":true,"model":"m"}`, scanned{Model: "m", IDs: true}},
	{"token ids asked for in completions", completionsOp, `{"return_token_ids": true }`, scanned{IDs: true}},
	{"token ids where the operation has none", messagesOp, `{"return_token_ids":true}`, scanned{}},
	{"token ids where responses have none", responsesOp, `{"return_token_ids":true}`, scanned{}},
	{"token ids where embeddings have none", embeddingsOp, `{"return_token_ids":true}`, scanned{}},
	{"token ids not asked for", chatOp, `{"return_token_ids":false}`, scanned{}},
	{"token ids null", chatOp, `{"return_token_ids":null}`, scanned{}},
	{"token ids as a string", chatOp, `{"return_token_ids":"true"}`, scanned{}},
	{"token ids as a number", chatOp, `{"return_token_ids":1}`, scanned{}},
	{"token ids as a list", chatOp, `{"return_token_ids":[true]}`, scanned{}},
	{"token ids spelled otherwise", chatOp, `{"Return_token_ids":true,"return_tokens_as_token_ids":true}`, scanned{}},
	{"token ids, the last of two", chatOp, `{"return_token_ids":true,"return_token_ids":false}`, scanned{}},
	{"text field of another API", completionsOp, `{"messages":[{"role":"user","content":"no"}],"prompt":"p"}`, scanned{Prompt: "p", Bytes: -1, Prompts: 1}},
}

func TestC17_PromptShapes(t *testing.T) {
	for _, c := range shapes {
		t.Run(c.name, func(t *testing.T) {
			got, _ := scan(t, c.op, c.body)
			want := c.want
			want.Choices = max(1, want.Choices)
			if want.Bytes < 0 {
				want.Bytes = len(want.Prompt)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.body, diff)
			}
		})
	}
}

// TestC20_TokenIDPromptsAreCountedExactly checks the counts that a matched share is worked out of.
func TestC20_TokenIDPromptsAreCountedExactly(t *testing.T) {
	for _, n := range []int{1, 10, 160, 1_600, 100_000} {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = strconv.Itoa(i * 7 % 150_000)
		}
		flat := strings.Join(ids, ", ")
		for body, op := range map[string]scheduling.Operation{
			`{"prompt":[` + flat + `]}`: completionsOp, `{"prompt":[[` + flat + `]]}`: completionsOp, `{"input":[` + flat + `]}`: embeddingsOp,
		} {
			got, _ := scan(t, op, body)
			if got.Count != n || len(got.Tokens) != n || got.Bytes != 0 || got.Prompt != "" {
				t.Fatalf("%d ids: %d counted, %d kept, %d bytes of text", n, got.Count, len(got.Tokens), got.Bytes)
			}
			for i, id := range got.Tokens {
				if int(id) != i*7%150_000 {
					t.Fatalf("id %d of %d is %d", i, n, id)
				}
			}
		}
	}
}

func TestC17_PathWithQueryOrTrailingSlash(t *testing.T) {
	for path, want := range map[string]scheduling.Operation{
		"/v1/chat/completions":                         chatOp,
		"/v1/chat/completions?api-version=1":           chatOp,
		"/v1/chat/completions/":                        chatOp,
		"/v1/chat/completions/?a=/v1/messages":         chatOp,
		"/openai/v1/chat/completions":                  chatOp,
		"/openai/deployments/gpt/chat/completions?x=y": chatOp,
		"/v3/chat/completions":                         chatOp,
		"http://host:80/v1/chat/completions":           chatOp,
		"/v1/completions":                              completionsOp,
		"/openai/deployments/gpt/completions":          completionsOp,
		"/v1/responses":                                responsesOp,
		"/v1/responses/":                               responsesOp,
		"/tenant-a/v1/embeddings":                      embeddingsOp,
		"/v1/messages?beta=true":                       messagesOp,
		"/anthropic/v1/messages":                       messagesOp,
		"/v1/messages/count_tokens":                    scheduling.OperationOther,
		"/v1/responses/resp_123":                       scheduling.OperationOther,
		"/v1/chat/completions/render":                  scheduling.OperationOther,
		"/v1/models":                                   scheduling.OperationOther,
		"/mail/messages":                               scheduling.OperationOther,
		"/llm/chat/completions":                        chatOp,
		"/version1/completions":                        scheduling.OperationOther,
		"/v1/audio/transcriptions":                     scheduling.OperationOther,
		"":                                             scheduling.OperationOther,
		"/":                                            scheduling.OperationOther,
		"*":                                            scheduling.OperationOther,
		"/v1/chat/completionsX":                        scheduling.OperationOther,
		"/openai/deployments//completions":             scheduling.OperationOther,
		"/x#/v1/chat/completions":                      scheduling.OperationOther,
		"/openai/responses":                            responsesOp,
		"/v1beta/openai/chat/completions":              chatOp,
	} {
		if got := openai.OperationOf(path); got != want {
			t.Errorf("OperationOf(%q) = %v, want %v", path, got, want)
		}
	}
}

func TestC17_OnlyWhatIsNotJSONIsRefused(t *testing.T) {
	for body, offset := range map[string]int{
		"": 0, "  ": 2, "hello": 0, `{"model":"m"`: 12, `{"model":"m"} x`: 14, `{"model" "m"}`: 9, `{model:1}`: 1,
		`{"a":1,}`: 7, `[1,]`: 3, `{"a":tru}`: 8, `{"a":01}`: 6, `{"a":"x}`: 8, `{"messages":[{"role":"user"]}`: 27,
		`{"prompt":[1,2`: 14, `{"prompt":[[1 2]]}`: 14, `{"a":[1}`: 7, "\x1f\x8b\x08gzip": 0, `{"a":-}`: 6, `{"a":1.}`: 7,
		`{"a":1e}`: 7, `{"a":nul`: 8, `--boundary`: 1,
	} {
		var r scheduling.Request
		_, err := openai.NewScanner().Scan(completionsOp, []byte(body), &r)
		var syntax *openai.SyntaxError
		if !errors.Is(err, openai.ErrNotJSON) || !errors.As(err, &syntax) {
			t.Errorf("%q: error %v, want ErrNotJSON", body, err)
			continue
		}
		if syntax.Offset != offset || syntax.Truncated != (offset == len(body)) {
			t.Errorf("%q: offset %d, truncated %v, want offset %d", body, syntax.Offset, syntax.Truncated, offset)
		}
		if len(body) > 3 && strings.Contains(err.Error(), body) {
			t.Errorf("the error %q shows the body", err)
		}
	}
}

func TestOtherOperationsAreNeverRefused(t *testing.T) {
	for body, model := range map[string]string{
		"--boundary\r\nContent-Disposition: form-data": "", "": "", `{"model":"m","query":"q"}`: "m", `{"model":"m"`: "m",
	} {
		var r scheduling.Request
		if _, err := openai.NewScanner().Scan(scheduling.OperationOther, []byte(body), &r); err != nil || r.Model != model {
			t.Errorf("%q: model %q, error %v; want %q", body, r.Model, err, model)
		}
	}
}

func TestC19_EmptyBodyIsAnsweredLikeTheEngineDoes(t *testing.T) {
	var r scheduling.Request
	if _, err := openai.NewScanner().Scan(chatOp, nil, &r); !errors.Is(err, openai.ErrNotJSON) {
		t.Errorf("an empty body: %v, want ErrNotJSON", err)
	}
	if info, err := openai.NewScanner().ScanPartial(chatOp, nil, &r); err != nil || !info.Cut {
		t.Errorf("an empty beginning: %v, cut %v; want no error and a cut", err, info.Cut)
	}
}
