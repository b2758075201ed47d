package vllm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

const (
	chat        = "/v1/chat/completions"
	completions = "/v1/completions"
)

// request is a request as a client sends it.
type request struct {
	path string
	body map[string]any
}

// newRequest asks for a number of tokens, no fewer.
func newRequest(path, model string, output int) request {
	return request{path: path, body: map[string]any{"model": model, "max_tokens": output, "ignore_eos": true, "temperature": 0}}
}

// with is the request with one more value in its body.
func (r request) with(key string, value any) request {
	r.body = maps.Clone(r.body)
	r.body[key] = value
	return r
}

// streamed is the request, answered as a stream.
func (r request) streamed() request {
	return r.with("stream", true).with("stream_options", map[string]any{"include_usage": true})
}

func (r request) salt() string {
	s, _ := r.body["cache_salt"].(string)
	return s
}

// adapter is the name of the request's LoRA adapter, empty for the base model.
func (r request) adapter() string {
	if model, _ := r.body["model"].(string); slices.Contains(adapters, model) {
		return model
	}
	return ""
}

// announcesAll reports whether the engine announces the blocks that it reuses, too.
func (r request) announcesAll() bool {
	x, _ := r.body["vllm_xargs"].(map[string]any)
	return x["kv_cache_report_mode"] == "full"
}

// answer is what the tests read of an engine's answer.
type answer struct {
	text   string
	prompt int // tokens
	cached int // tokens of the prompt that the engine had in its cache
}

// chunk is an answer, or a piece of one.
type chunk struct {
	Choices []struct {
		Message struct{ Content string }
		Delta   struct{ Content string }
		Text    string
	}
	Usage *struct {
		Prompt  int `json:"prompt_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// read reads an answer, streamed or whole.
func read(t *testing.T, a lab.Answer) answer {
	t.Helper()
	pieces := []string{a.Body}
	if strings.HasPrefix(a.Header.Get("content-type"), "text/event-stream") {
		pieces = pieces[:0]
		for line := range strings.Lines(a.Body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.TrimSpace(data) != "[DONE]" {
				pieces = append(pieces, data)
			}
		}
	}
	var out answer
	counted := false
	for _, piece := range pieces {
		var c chunk
		if err := json.Unmarshal([]byte(piece), &c); err != nil || a.Status != 200 {
			t.Fatalf("status %d, %v: %s", a.Status, err, a.Body)
		}
		for _, choice := range c.Choices {
			out.text += choice.Message.Content + choice.Delta.Content + choice.Text
		}
		if c.Usage != nil && c.Usage.Details != nil {
			out.prompt, out.cached, counted = c.Usage.Prompt, c.Usage.Details.Cached, true
		}
	}
	if !counted {
		t.Fatalf("the engine does not say how many tokens were cached: %s", a.Body)
	}
	return out
}

// conversation grows by a question and its answer a turn.
type conversation struct {
	model, salt string
	messages    []map[string]string
}

// newConversation begins with a system prompt of about n words, the same for the same name.
func newConversation(model, salt, name string, n int) *conversation {
	return &conversation{model: model, salt: salt, messages: []map[string]string{{"role": "system", "content": lab.Words(name, n)}}}
}

// ask is the request that asks one more question.
func (c *conversation) ask(question string, output int) request {
	c.messages = append(c.messages, map[string]string{"role": "user", "content": question})
	r := newRequest(chat, c.model, output).with("messages", slices.Clone(c.messages))
	if c.salt != "" {
		r = r.with("cache_salt", c.salt)
	}
	return r
}

// hear takes the answer into the conversation.
func (c *conversation) hear(text string) {
	c.messages = append(c.messages, map[string]string{"role": "assistant", "content": text})
}
