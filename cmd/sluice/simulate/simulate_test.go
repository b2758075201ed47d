package simulate

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const preciseConfig = `plugins:
  - type: precise-prefix-cache-producer
  - type: prefix-cache-scorer
  - type: queue-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: prefix-cache-scorer
        weight: 3
      - pluginRef: queue-scorer
      - pluginRef: max-score-picker
`

const randomConfig = `plugins:
  - type: random-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: random-picker
`

func plan(t *testing.T) Plan {
	t.Helper()
	w := trace.DefaultB2B()
	w.Requests, w.Customers, w.PerSecond = 400, 20, 4
	b2b, err := w.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	p := Plan{
		Traces: []*trace.Trace{b2b}, Speed: 1, Seeds: 2, WarmUp: 0.25, Objective: fleet.DefaultObjective,
		Sight: fleet.Sight{EventDelay: 20 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond},
	}
	for name, text := range map[string]string{"precise.yaml": preciseConfig, "random.yaml": randomConfig} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.Configs = append(p.Configs, path)
	}
	p.Configs = append(p.Configs, "")
	slices.SortFunc(p.Configs, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) }) // built-in, precise, random
	params := sim.DefaultParams()
	params.BlockSize, params.NumBlocks, params.MaxModelLen = b2b.BlockTokens, 300_000/b2b.BlockTokens, 10_000
	p.Endpoints = []sim.Params{params, params, params, params}
	return p
}

// What knows caches hits them, what does not does not; and the same plan makes the same figures, however many run at a time.
func TestConfigurationsAreCompared(t *testing.T) {
	p := plan(t)
	var told []int
	rows, err := p.Run(t.Context(), func(n int) { told = append(told, n) })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(told, []int{1, 2, 3, 4, 5, 6}) {
		t.Errorf("progress: %v", told)
	}
	hits := map[string]float64{}
	for i := range rows {
		r := &rows[i]
		if len(r.Runs) != 2 || r.Runs[0].Requests != 300 || r.Took <= 0 {
			t.Errorf("%+v", r)
		}
		hits[r.Config] = r.estimate(func(s fleet.Summary) float64 { return s.HitRate }).Mean
	}
	if hits["precise.yaml"] < 0.7 || hits["built-in"] < 0.7 || hits["random.yaml"] > hits["precise.yaml"]-0.05 {
		t.Errorf("hit rates: %v", hits)
	}
	p.Workers = 1
	again, err := p.Run(t.Context(), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if !slices.Equal(rows[i].Runs, again[i].Runs) {
			t.Errorf("%s: %+v, and again %+v", rows[i].Config, rows[i].Runs, again[i].Runs)
		}
	}
}

func TestFaultsOfAPlan(t *testing.T) {
	for name, change := range map[string]func(*Plan){
		"no trace": func(p *Plan) { p.Traces = nil }, "no configuration": func(p *Plan) { p.Configs = nil },
		"no endpoints": func(p *Plan) { p.Endpoints = nil }, "seeds": func(p *Plan) { p.Seeds = 0 },
		"speed": func(p *Plan) { p.Speed = 0 }, "warm-up": func(p *Plan) { p.WarmUp = 1 },
		"nothere.yaml on b2b, seed ": func(p *Plan) { p.Configs = []string{"/nothere.yaml"} },
	} {
		p := plan(t)
		change(&p)
		if _, err := p.Run(t.Context(), func(int) {}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	p := plan(t)
	if _, err := p.Run(over, func(int) {}); err == nil {
		t.Error("it ran although it was over")
	}
}

// Student's t for 4 degrees of freedom at 97.5 % is 2.776.
func TestIntervals(t *testing.T) {
	r := Row{}
	for _, v := range []float64{1, 2, 3, 4, 5} {
		r.Runs = append(r.Runs, fleet.Summary{TTFTMean: v})
	}
	of := func(s fleet.Summary) float64 { return s.TTFTMean }
	if e := r.estimate(of); e.Mean != 3 || math.Abs(e.Half-2.776*math.Sqrt(2.5/5)) > 1e-3 {
		t.Errorf("%+v", e)
	}
	r.Runs = r.Runs[:1]
	if e := r.estimate(of); e != (Estimate{Mean: 1}) {
		t.Errorf("%+v", e)
	}
}

func TestReports(t *testing.T) {
	rows := []Row{{Trace: "a trace", Config: "a.yaml", Runs: []fleet.Summary{{TTFTMean: 1.5, Goodput: 0.875, Gated: 4, Released: 1}}}}
	var table, out bytes.Buffer
	if err := WriteTable(&table, rows, 160); err != nil {
		t.Fatal(err)
	}
	if text := table.String(); !strings.Contains(text, "1.500") || !strings.Contains(text, "87.5") || !strings.Contains(text, "25.0") || strings.Contains(text, "±") {
		t.Error(text)
	}
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var read []struct {
		Config  string
		Figures map[string]Estimate
	}
	if err := json.Unmarshal(out.Bytes(), &read, json.MatchCaseInsensitiveNames(true)); err != nil || read[0].Config != "a.yaml" ||
		read[0].Figures["ttft_mean_s"].Mean != 1.5 || len(read[0].Figures) != len(figures) {
		t.Errorf("%v: %s", err, out.Bytes())
	}
}

// Policies run beside configurations, and are told from them in the rows.
func TestPoliciesRunBesideConfigurations(t *testing.T) {
	p := plan(t)
	p.Configs, p.Seeds = []string{""}, 1
	for _, spec := range []string{"random", "llm-d-gate:penalty=5000"} {
		policy, err := policies.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Policies = append(p.Policies, policy)
	}
	rows, err := p.Run(t.Context(), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	hits := map[string]float64{}
	for i := range rows {
		names = append(names, rows[i].Config)
		hits[rows[i].Config] = rows[i].Runs[0].HitRate
	}
	if !slices.Equal(names, []string{"built-in", "random", "llm-d-gate:penalty=5000"}) || hits["random"] > hits["llm-d-gate:penalty=5000"]-0.05 {
		t.Errorf("%v: %v", names, hits)
	}
	p.Configs, p.Policies = nil, p.Policies[1:]
	if p.Policies[0], err = p.Policies[0].With(policies.Params{"threshold": "2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), func(int) {}); err == nil || !strings.Contains(err.Error(), "llm-d-gate:threshold=2,penalty=5000 on b2b, seed 1") {
		t.Error(err)
	}
}
