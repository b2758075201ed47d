package calibrate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// The APIs that a probe can speak.
const (
	APICompletions = "completions"
	APIChat        = "chat"
)

// client asks an engine.
type client struct {
	base   string // without a slash at its end
	api    string
	model  string
	header http.Header
	http   *http.Client
}

// answer is what a request for one token got.
type answer struct {
	ttft           time.Duration // negative without a first token
	prompt, cached int           // tokens; -1 where the engine did not count
	terminated     bool
}

// baseOf checks a URL and takes a path of the API off its end.
func baseOf(endpoint string) (string, error) {
	whole := endpoint
	if !strings.Contains(endpoint, "://") && endpoint != "" {
		whole = "http://" + endpoint
	}
	u, err := url.Parse(whole)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("endpoint: must be like http://10.0.0.5:8000, got %q", endpoint)
	}
	u.RawQuery, u.Fragment = "", ""
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1"), nil
}

// The bounds of what is read of an answer, in bytes.
const (
	maxAnswer = 4 << 20
	maxEvent  = 1 << 20
	maxSaid   = 200
)

func (c *client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer func() { _ = answer.Body.Close() }()
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 4*maxSaid))
		return nil, fmt.Errorf("%s%s: status %d: %s", c.base, path, answer.StatusCode,
			display.ClipEnd(display.Plain(strings.TrimSpace(string(said))), maxSaid))
	}
	return answer, nil
}

// served is the model to ask and its longest prompt with answer, in tokens; 0 where the endpoint does not say.
func (c *client) served(ctx context.Context) (model string, longest int, err error) {
	answer, err := c.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&list); err != nil {
		return "", 0, fmt.Errorf("%s/v1/models: %w", c.base, err)
	}
	var names []string
	for _, m := range list.Data {
		if c.model == "" || m.ID == c.model {
			return m.ID, max(0, m.MaxModelLen), nil
		}
		names = append(names, display.Plain(m.ID))
	}
	if c.model == "" {
		return "", 0, fmt.Errorf("%s serves no model", c.base)
	}
	return "", 0, fmt.Errorf("%s does not serve the model %q, but %s", c.base, c.model, strings.Join(names, ", "))
}

// ask sends a prompt and asks for one token, streamed.
func (c *client) ask(ctx context.Context, prompt string) (answer, error) {
	body := map[string]any{
		"model": c.model, "max_tokens": 1, "temperature": 0, "stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	path := "/v1/completions"
	if c.api == APIChat {
		path = "/v1/chat/completions"
		body["messages"] = []any{map[string]any{"role": "user", "content": prompt}}
	} else {
		body["prompt"] = prompt
	}
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	began := time.Now()
	got, err := c.do(ctx, http.MethodPost, path, text)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = got.Body.Close() }()
	a, err := readStream(got.Body, func() time.Duration { return time.Since(began) })
	switch {
	case err != nil:
		return a, fmt.Errorf("%s%s: %w", c.base, path, err)
	case !a.terminated:
		return a, fmt.Errorf("%s%s: the answer ended early", c.base, path)
	case a.ttft < 0:
		return a, fmt.Errorf("%s%s: no token came", c.base, path)
	case a.prompt <= 0:
		return a, fmt.Errorf("%s%s: does not count prompt tokens in a stream (stream_options.include_usage)", c.base, path)
	}
	return a, nil
}

// readStream reads an answer of server-sent events. since is the time since the request was sent.
func readStream(from io.Reader, since func() time.Duration) (answer, error) {
	a := answer{ttft: -1, prompt: -1, cached: -1}
	events := bufio.NewScanner(io.LimitReader(from, maxAnswer))
	events.Buffer(nil, maxEvent)
	for events.Scan() {
		data, ok := bytes.CutPrefix(events.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			a.terminated = true
			return a, nil
		}
		if err := a.event(data, since); err != nil {
			return a, err
		}
	}
	return a, events.Err()
}

func (a *answer) event(data []byte, since func() time.Duration) error {
	var e struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   *struct {
			Prompt  int `json:"prompt_tokens"`
			Details *struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Error *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("the answer is no stream of JSON: %w", err)
	}
	if e.Error != nil {
		return errors.New("it answered with an error: " + display.ClipEnd(display.Plain(e.Error.Message), maxSaid))
	}
	if len(e.Choices) > 0 && a.ttft < 0 {
		a.ttft = since()
	}
	if e.Usage != nil && e.Usage.Prompt >= 0 && e.Usage.Prompt < 1<<30 {
		a.prompt = e.Usage.Prompt
		if d := e.Usage.Details; d != nil && d.Cached != nil && *d.Cached >= 0 && *d.Cached <= a.prompt {
			a.cached = *d.Cached
		}
	}
	return nil
}
