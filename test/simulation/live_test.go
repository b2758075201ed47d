package simulation

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
	"github.com/sluice-epp/sluice/test/lab"
)

// live plays a shape in wall-clock time: a client asks Envoy, which asks Sluice, which sends the requests to engines behind
// sockets.
func live(t *testing.T, s shape, text string) outcome {
	t.Helper()
	l := lab.New(t, lab.Plan{
		Engines: engines, Config: text,
		Engine: engine.Config{Speed: 1, Params: s.Params, KVEvents: &engine.KVEvents{}},
	})
	e := l.Envoy(t, envoy.Params{})
	client := &http.Client{Transport: l.Client.Transport} // no timeout: an answer takes as long as its queue
	url := e.URL("/v1/completions")
	if a := lab.Get(t, l.Client, e.URL("/v1/models")); a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	result := fleet.Result{Samples: make([]fleet.Sample, len(s.trace.Requests))}
	var mu sync.Mutex
	var faults []error
	var all sync.WaitGroup
	bodies := make([]string, len(s.trace.Requests))
	for i := range bodies {
		bodies[i] = body(t, s.trace, &s.trace.Requests[i])
	}
	began := time.Now()
	for i := range s.trace.Requests {
		r := &s.trace.Requests[i]
		time.Sleep(time.Until(began.Add(r.At)))
		all.Go(func() {
			sample, err := ask(t, client, url, bodies[i])
			if err == nil && sample.PromptTokens != r.PromptTokens {
				err = fmt.Errorf("the engine counts %d tokens, the trace %d", sample.PromptTokens, r.PromptTokens)
			}
			if err != nil {
				mu.Lock()
				faults = append(faults, fmt.Errorf("request %d: %w", i, err))
				mu.Unlock()
			}
			sample.At = r.At
			result.Samples[i] = sample
		})
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	return outcomeOf(&result)
}

func body(t *testing.T, tr *trace.Trace, r *trace.Request) string {
	t.Helper()
	return lab.JSON(t, map[string]any{
		"model": "sim", "prompt": tr.AppendTokens(nil, r), "max_tokens": r.OutputTokens, "stream": true,
		"stream_options": map[string]any{"include_usage": true},
	})
}

// ask sends a request and reads its answer as it streams.
func ask(t *testing.T, c *http.Client, url, body string) (fleet.Sample, error) {
	t.Helper()
	var s fleet.Sample
	sent := time.Now()
	res, err := c.Do(lab.Request(t, http.MethodPost, url, strings.NewReader(body)))
	if err != nil {
		return s, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return s, fmt.Errorf("status %s", res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if s.TTFT == 0 {
			s.TTFT = time.Since(sent)
		}
		if !strings.Contains(data, `"prompt_tokens"`) {
			continue
		}
		var usage struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Output  int `json:"completion_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &usage); err != nil {
			return s, err
		}
		s.PromptTokens, s.OutputTokens, s.CachedTokens = usage.Usage.Prompt, usage.Usage.Output, usage.Usage.Details.Cached
	}
	if err := lines.Err(); err != nil {
		return s, err
	}
	if s.PromptTokens == 0 {
		return s, errors.New("the answer has no usage")
	}
	return s, nil
}
