package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// result is what the client saw of one request.
type result struct {
	conversation, turn int
	endpoint           string // who answered, by the engine's own word
	decision           string // Sluice's words, empty in the other half
	prompt, cached     int    // tokens, as the engine counted them
	ttft               time.Duration
	answer             string
	traceID            string // empty where nothing traces
}

// half is one run of the workload.
type half struct {
	client *http.Client
	url    string
	show   func(result)
	traces bool // requests ask to be recorded
}

// run plays the conversations, concurrency at a time, each turn after the answer before, and returns every result.
func (h *half) run(ctx context.Context) ([]result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var mu sync.Mutex // guards all and show
	var all []result
	var group sync.WaitGroup
	for range concurrency {
		group.Go(func() {
			for c := range next {
				err := h.converse(ctx, c, func(r result) {
					mu.Lock()
					defer mu.Unlock()
					all = append(all, r)
					h.show(r)
				})
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for c := range conversations {
		select {
		case next <- c:
		case <-ctx.Done():
		}
	}
	close(next)
	group.Wait()
	return all, context.Cause(ctx)
}

func (h *half) converse(ctx context.Context, conversation int, done func(result)) error {
	messages := opening(conversation)
	for turn := range turns {
		messages = append(messages, question(conversation, turn))
		if err := wait(ctx, pause(conversation, turn)); err != nil {
			return err
		}
		r, err := h.ask(ctx, messages, answerTokens(conversation, turn))
		if err != nil {
			return fmt.Errorf("conversation %d, turn %d: %w", conversation+1, turn+1, err)
		}
		r.conversation, r.turn = conversation, turn
		done(r)
		messages = append(messages, message{Role: "assistant", Content: r.answer})
	}
	return nil
}

// wait waits for d, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// ask sends one turn and reads its stream. TTFT is wall time from sending to the first piece of text.
func (h *half) ask(ctx context.Context, messages []message, maxTokens int) (result, error) {
	body, err := json.Marshal(map[string]any{
		"model": modelName, "messages": messages, "max_tokens": maxTokens,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		return result{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return result{}, err
	}
	req.Header.Set("content-type", "application/json")
	traceID := ""
	if h.traces {
		var parent string
		traceID, parent = newTrace()
		req.Header.Set("traceparent", parent)
	}
	sent := time.Now()
	res, err := h.client.Do(req)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = res.Body.Close() }()
	r := result{traceID: traceID, endpoint: res.Header.Get("x-sim-endpoint"), decision: res.Header.Get("x-sluice-decision")}
	if res.StatusCode != http.StatusOK {
		return r, fmt.Errorf("status %s", res.Status)
	}
	var answer strings.Builder
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return r, fmt.Errorf("reading a chunk: %w", err)
		}
		if len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
			if r.ttft == 0 {
				r.ttft = time.Since(sent)
			}
			answer.WriteString(c.Choices[0].Delta.Content)
		}
		if c.Usage != nil {
			r.prompt, r.cached = c.Usage.PromptTokens, c.Usage.Details.CachedTokens
		}
	}
	if err := lines.Err(); err != nil {
		return r, err
	}
	if r.ttft == 0 || r.prompt == 0 {
		return r, fmt.Errorf("the answer had no text or no usage")
	}
	r.answer = answer.String()
	return r, nil
}
