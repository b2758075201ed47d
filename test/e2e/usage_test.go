package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// usage is what an engine reports of a request, in tokens.
type usage struct{ prompt, cached, output int }

func (u usage) plus(v usage) usage {
	return usage{u.prompt + v.prompt, u.cached + v.cached, u.output + v.output}
}

// rawUsage is usage in the shapes of all APIs at once; a field that is absent or null says nothing.
type rawUsage struct {
	PromptTokens     *int `json:"prompt_tokens"`
	CompletionTokens *int `json:"completion_tokens"`
	InputTokens      *int `json:"input_tokens"`
	OutputTokens     *int `json:"output_tokens"`
	CacheRead        *int `json:"cache_read_input_tokens"`
	PromptDetails    *struct {
		Cached *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails *struct {
		Cached *int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// envelope is where an answer or an event keeps its usage.
type envelope struct {
	Usage    *rawUsage `json:"usage"`
	Response *struct {
		Usage *rawUsage `json:"usage"`
	} `json:"response"`
	Message *struct {
		Usage *rawUsage `json:"usage"`
	} `json:"message"`
}

type chatAnswer struct {
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
}

type responsesAnswer struct {
	Output []struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	} `json:"output"`
}

type messagesAnswer struct {
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
}

func read[T any](t *testing.T, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return v
}

// usageOf reads the usage of an answer, streamed or not, independently of Sluice's reader.
func usageOf(t *testing.T, a lab.Answer) usage {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	var u usage
	if !strings.HasPrefix(a.Header.Get("content-type"), "text/event-stream") {
		u.merge(read[envelope](t, a.Body))
	} else {
		for line := range strings.Lines(a.Body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.HasPrefix(data, "{") {
				u.merge(read[envelope](t, data))
			}
		}
	}
	if u.prompt == 0 {
		t.Fatalf("the answer has no usage: %s", a.Body)
	}
	return u
}

func (u *usage) merge(e envelope) {
	for _, r := range []*rawUsage{e.Usage, wrapped(e.Response), wrapped(e.Message)} {
		if r == nil {
			continue
		}
		set(&u.prompt, r.PromptTokens)
		set(&u.output, r.CompletionTokens)
		set(&u.output, r.OutputTokens)
		set(&u.cached, r.CacheRead)
		if r.PromptDetails != nil {
			set(&u.cached, r.PromptDetails.Cached)
		}
		if r.InputDetails != nil {
			set(&u.cached, r.InputDetails.Cached)
		}
		if r.InputTokens != nil {
			u.prompt = *r.InputTokens
			if r.CacheRead != nil { // the Messages API leaves out what it read from the cache
				u.prompt += *r.CacheRead
			}
		}
	}
}

func wrapped(w *struct {
	Usage *rawUsage `json:"usage"`
}) *rawUsage {
	if w == nil {
		return nil
	}
	return w.Usage
}

func set(to, from *int) {
	if from != nil {
		*to = *from
	}
}
