package fit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/fit"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	simfit "github.com/sluice-epp/sluice/sim/fit"
)

// The costs of a simulated engine behind a socket come back from the times that a client takes. What is on the way, and what a
// busy machine adds, is in them: base takes in most of it.
func TestLiveEngine(t *testing.T) {
	p := sim.DefaultParams()
	p.MaxBatchedTokens, p.Cost.Base, p.Cost.PrefillToken = 2048, 40e-3, 110e-6
	s, err := engine.New(engine.Config{Params: p})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	random := rand.New(rand.NewPCG(1, 1))
	var table strings.Builder
	table.WriteString("prompt_tokens,cached_tokens,ttft_ms,in_flight\n")
	for i := range 21 {
		prompt := make([]int, []int{50, 1000, 3000}[i%3]+random.IntN(900))
		for k := range prompt {
			prompt[k] = 300 + random.IntN(900)
		}
		ttft, tokens, cached := ask(t, client, s.URL(), prompt)
		fmt.Fprintf(&table, "%d,%d,%g,0\n", tokens, cached, ttft.Seconds()*1e3)
	}
	var samples fit.Samples
	if err := samples.Table(strings.NewReader(table.String())); err != nil {
		t.Fatal(err)
	}
	r, err := simfit.Fit(samples.Kept, simfit.Options{Budget: p.MaxBatchedTokens, Default: sim.DefaultParams().Cost, Resamples: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v, R² %.4f, MAPE %.3f, %d outliers", r.Estimates[:3], r.R2, r.MAPE, r.Outliers)
	for i, within := range []struct{ low, high float64 }{{0.85, 1.6}, {0.88, 1.12}} {
		want := []float64{p.Cost.Base, p.Cost.PrefillToken}[i]
		if e := r.Estimates[i]; !e.Identified || e.Value < want*within.low || e.Value > want*within.high {
			t.Errorf("%s: %+v, want %v", e.Name, e, want)
		}
	}
	if r.MAPE > 0.15 {
		t.Errorf("mean error %.1f %%", 100*r.MAPE)
	}
}

// ask sends one request and returns the time to the first token, and the tokens that the engine counts.
func ask(t *testing.T, c *http.Client, url string, prompt []int) (ttft time.Duration, tokens, cached int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "sim", "prompt": prompt, "max_tokens": 2, "stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("content-type", "application/json")
	sent := time.Now()
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if ok && ttft == 0 {
			ttft = time.Since(sent)
		}
		var chunk struct {
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if ok && json.Unmarshal([]byte(data), &chunk) == nil && chunk.Usage != nil {
			tokens, cached = chunk.Usage.Prompt, chunk.Usage.Details.Cached
		}
	}
	if res.StatusCode != http.StatusOK || tokens != len(prompt) {
		t.Fatalf("status %s, %d tokens for %d", res.Status, tokens, len(prompt))
	}
	return ttft, tokens, cached
}
