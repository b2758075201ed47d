package openai_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tmaxmax/go-sse"

	"github.com/sluice-epp/sluice/scheduling"
)

// eventsOf is the data of a stream's events as go-sse reads them; the end of the stream ends the last event.
func eventsOf(stream []byte) (events []string, ok bool) {
	whole := append(bytes.Clone(stream), "\n\n"...)
	for e, err := range sse.Read(bytes.NewReader(whole), &sse.ReadConfig{MaxEventSize: len(whole) + 1}) {
		if err != nil {
			return nil, false
		}
		if strings.TrimLeft(e.Data, " \t\r\n") != "" {
			events = append(events, e.Data)
		}
	}
	return events, true
}

// plainAnswer reads events one by one through encoding/json. comparable is false where an event is no object with
// unique and plain names, of which a reader that does not collect can say less.
func plainAnswer(events []string) (a answer, comparable bool) {
	counts := map[string]int{}
	for _, data := range events {
		if strings.TrimSpace(data) == "[DONE]" {
			a.Done = true
			continue
		}
		var v map[string]any
		d := json.NewDecoder(strings.NewReader(data))
		d.UseNumber()
		if !jsontext.Value(data).IsValid() || strings.Contains(data, `\u`) || d.Decode(&v) != nil || v == nil {
			return a, false
		}
		holders := 0
		for _, holder := range []map[string]any{v, object(v["message"]), object(v["response"])} {
			if u := object(holder["usage"]); u != nil {
				holders++
				addUsage(counts, u)
			}
			a.Failed = a.Failed || nonEmptyFailure(holder["error"])
		}
		if holders > 1 {
			return a, false // their order would matter
		}
		_, prompt := counts["prompt cached"]
		if _, input := counts["input cached"]; prompt && input {
			return a, false
		}
		kind, _ := v["type"].(string)
		switch kind {
		case "message_stop", "response.completed", "response.incomplete":
			a.Done = true
		case "response.failed", "response.cancelled":
			a.Done, a.Failed = true, true
		case "error":
			a.Failed = true
		}
		a.First = a.First || generates(v) || counts["completion_tokens"] > 0
	}
	a.Usage = plainUsage(counts)
	return a, true
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func addUsage(counts map[string]int, u map[string]any) {
	put := func(name string, v any) {
		number, ok := v.(json.Number)
		if !ok || strings.ContainsAny(string(number), "-+eE") {
			return
		}
		whole, _, _ := strings.Cut(string(number), ".")
		n, err := strconv.Atoi(whole)
		if _, known := counts[name]; err == nil && n < 1<<40 && (n > 0 || !known) {
			counts[name] = n
		}
	}
	for name, v := range u {
		put(name, v)
	}
	put("prompt cached", object(u["prompt_tokens_details"])["cached_tokens"])
	put("input cached", object(u["input_tokens_details"])["cached_tokens"])
}

func plainUsage(counts map[string]int) scheduling.Usage {
	get := func(names ...string) int {
		for _, n := range names {
			if v, ok := counts[n]; ok {
				return v
			}
		}
		return -1
	}
	u := scheduling.Usage{
		PromptTokens: get("prompt_tokens"), CompletionTokens: get("completion_tokens", "output_tokens"),
		CachedTokens: get("prompt cached", "input cached", "cache_read_input_tokens"),
	}
	if input := get("input_tokens"); u.PromptTokens < 0 && input >= 0 {
		u.PromptTokens = input + max(0, get("cache_read_input_tokens")) + max(0, get("cache_creation_input_tokens"))
	}
	return u
}

func nonEmptyFailure(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case map[string]any, []any:
		return true
	}
	return false
}

// generates reports whether an event carries generated content.
func generates(v map[string]any) bool {
	choices, _ := v["choices"].([]any)
	for _, c := range choices {
		if filled(object(c), "text") || fromDelta(object(object(c)["delta"])) {
			return true
		}
	}
	return filled(v, "delta") || fromDelta(object(v["delta"])) ||
		filled(object(v["content_block"]), "text", "thinking", "name") || filled(object(v["item"]), "text", "thinking", "name")
}

func fromDelta(d map[string]any) bool {
	for _, name := range []string{"content", "audio", "tool_calls", "function_call"} {
		switch v := d[name].(type) {
		case []any:
			if len(v) > 0 {
				return true
			}
		case map[string]any:
			if len(v) > 0 {
				return true
			}
		}
	}
	return filled(d, "content", "audio", "reasoning_content", "reasoning", "refusal", "text", "thinking", "partial_json")
}

func filled(m map[string]any, names ...string) bool {
	for _, name := range names {
		if s, _ := m[name].(string); s != "" {
			return true
		}
	}
	return false
}

func FuzzResponse(f *testing.F) {
	files, err := filepath.Glob("testdata/responses/*.*")
	if err != nil || len(files) == 0 {
		f.Fatalf("testdata/responses: %v, %d files", err, len(files))
	}
	for i, name := range files {
		body := recorded(f, filepath.Base(name))
		f.Add(strings.HasSuffix(name, ".sse"), body, uint16(i*37), uint16(len(body)/2))
		if strings.HasSuffix(name, ".sse") {
			for _, vary := range variants {
				f.Add(true, []byte(vary(string(body))), uint16(i), uint16(i*101))
			}
		}
	}
	for _, s := range []string{
		"data: {\"usage\":{\"prompt_tokens\":1}}\r\rdata:[DONE]", "\ufeffdata: {}\n\n", "\xef\xbbdata: {}\n\n", "data\n\n", "data:\n",
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\n\n", "data: {\"delta\":\"x\"}\n\n", "data: {\"a\":[[[[[[[[1]]]]]]]]}\n\n",
	} {
		f.Add(true, []byte(s), uint16(3), uint16(9))
	}
	for name, c := range idRecordings(f) {
		f.Add(strings.HasSuffix(name, ".sse"), c.body, uint16(len(c.body)/3), uint16(400))
	}
	for _, s := range []string{
		`{"prompt_token_ids":[1, 22 ,4294967295]}`, `{"prompt_token_ids":[1,4294967296]}`, `{"prompt_token_ids":[]}`,
		`{"choices":[{"prompt_token_ids":[3],"index":1},{"index":0,"prompt_token_ids":[1,2]}]}`, `{"prompt_token_ids":[0,01,-1,2.5]}`,
		`{"choices":[{"index":0,"prompt_token_ids":[1,["]"]]}],"prompt_token_ids":[2]}`, `{"choices":{"prompt_token_ids":[1]}}`,
		`{"prompt_token_ids":[1,2`, `{"choices":[[{"index":1,"prompt_token_ids":[1]}],{"prompt_token_ids":[2]}]}`,
	} {
		f.Add(false, []byte(s), uint16(20), uint16(23))
		f.Add(true, []byte("data: "+s+"\n\ndata: {\"prompt_token_ids\":[5]}\n\n"), uint16(27), uint16(30))
	}
	f.Fuzz(func(t *testing.T, stream bool, body []byte, first, second uint16) {
		contentType := "application/json"
		if stream {
			contentType = eventStream
		}
		whole := read(contentType, body)
		a, b := min(int(first), len(body)), min(int(second), len(body))
		if a > b {
			a, b = b, a
		}
		if cut := read(contentType, body[:a], body[a:b], nil, body[b:]); cut != whole {
			t.Fatalf("cut at %d and %d: %+v, whole: %+v", a, b, cut, whole)
		}
		single := make([][]byte, len(body))
		for i := range body {
			single[i] = body[i : i+1 : i+1]
		}
		if bytewise := read(contentType, single...); bytewise != whole {
			t.Fatalf("byte by byte: %+v, whole: %+v", bytewise, whole)
		}
		var events []string // nil where nothing can be compared
		if stream {
			events = compareStream(t, body, whole)
		} else if want, ok := plainAnswer([]string{string(body)}); ok {
			events = []string{string(body)}
			want.First, want.Done = false, true
			if whole != want {
				t.Fatalf("%+v, encoding/json says %+v", whole, want)
			}
		}
		checkPromptTokens(t, contentType, whole, events, [][]byte{body}, [][]byte{body[:a], body[a:b], body[b:]}, single)
	})
}

// compareStream compares with what go-sse and encoding/json make of the stream, and returns its events where they do.
func compareStream(t *testing.T, body []byte, got answer) (events []string) {
	t.Helper()
	events, ok := eventsOf(body)
	if !ok {
		return nil
	}
	want, ok := plainAnswer(events)
	if !ok {
		return nil
	}
	if got != want {
		t.Fatalf("%q:\n%+v, want\n%+v", body, got, want)
	}
	return events
}
