package engine

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Whoever asks is told once of each request that the model worked for, however it ends, with what its usage says.
func TestServedIsTold(t *testing.T) {
	told := make(chan Served, 10)
	s := startServer(t, Config{Speed: 100, Served: func(s Served) { told <- s }})
	post := func(ctx context.Context, path, body string) (*http.Response, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return http.DefaultClient.Do(r)
	}
	next := func() Served {
		t.Helper()
		select {
		case got := <-told:
			return got
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was told")
			return Served{}
		}
	}
	for path, tc := range map[string]struct {
		body              string
		output, maxTokens int
	}{
		"/v1/chat/completions": {`{"stream":true,"max_tokens":3,"messages":[{"role":"user","content":"Hello!"}]}`, 3, 3},
		"/v1/completions":      {`{"max_tokens":5,"n":2,"prompt":"Hello!"}`, 10, 5},
		"/v1/responses":        {`{"max_output_tokens":2,"input":"Hello!"}`, 2, 2},
		"/v1/messages":         {`{"max_tokens":4,"messages":[{"role":"user","content":"Hello!"}]}`, 4, 4},
		"/v1/embeddings":       {`{"input":"Hello!"}`, 0, 0},
	} {
		res, err := post(t.Context(), path, tc.body)
		if err != nil {
			t.Fatal(err)
		}
		got := next()
		_ = res.Body.Close()
		if got.Path != path || got.Model != "sim" || got.CompletionTokens != tc.output || got.MaxTokens != tc.maxTokens || got.PromptTokens < 1 {
			t.Errorf("%s: %+v", path, got)
		}
		if got.Begun.IsZero() || got.Total <= 0 || got.Queue < 0 || got.FirstToken <= 0 || got.Decode < 0 {
			t.Errorf("%s: times %+v", path, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	res, err := post(ctx, "/v1/chat/completions", `{"stream":true,"max_tokens":20000,"messages":[{"role":"user","content":"Hello!"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = res.Body.Close()
	if got := next(); got.Decode != -1 || got.CompletionTokens >= 20000 {
		t.Errorf("a client that left: %+v", got)
	}
	if res, err = post(t.Context(), "/v1/completions", `{"prompt":""}`); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if len(told) != 0 {
		t.Errorf("a refused request was told: %+v", <-told)
	}
}
