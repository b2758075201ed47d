package lab

import (
	"encoding/json"
	"strings"
	"testing"
)

// JSON encodes a value; what cannot be encoded fails the test.
func JSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Words is a text of about n words that begins with name and is its own for each name.
func Words(name string, n int) string {
	return name + strings.Repeat(" remembers the way of "+name, n/5)
}

// Chat is a chat request for the model sim: a system prompt of about n words that starts with name, and a question.
func Chat(t testing.TB, name string, n, maxTokens int, stream bool) string {
	t.Helper()
	return JSON(t, map[string]any{
		"model": "sim", "max_tokens": maxTokens, "stream": stream, "stream_options": map[string]any{"include_usage": true},
		"messages": []map[string]string{
			{"role": "system", "content": Words(name, n)},
			{"role": "user", "content": "Where to?"},
		},
	})
}
