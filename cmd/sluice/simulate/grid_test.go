package simulate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const grid = `
seeds: 3
defaults: {kvTokens: [307200, 2400000], trace: mooncake.jsonl, warmUp: 0.2}
scenarios:
  - {name: conversation, capacity: 2, load: [0.5, 1], from: 0.5, jitter: 3s, endpoints: [8, 32], eventDelay: [0s, 500ms], eventLoss: 0.1, scrapeInterval: 1s, replicas: 2}
  - {name: speedy, speed: [1.5], kvTokens: [1000000], sloTTFT: 2s, sloTPOT: 50ms, profile: engine.yaml}
  - name: b2b
    b2b: {requests: 100, customers: 7}
    rate: [12, 15]
    kvTokens: [307200]
    engines: [{endpoint: 7, slower: 3, kvTokens: 100000}]
    shifts: [{at: 0.5, slower: {endpoint: 2, factor: 3}}, {at: 0.6, prompts: {mean: 78000}}, {at: 0.7, burst: {share: 0.2}}]
candidates:
  - name: default
  - config: blend.yaml
    scenarios: ["b2b*"]
  - {name: tuned, config: blend.yaml, weights: {queue-scorer: 3}}
  - {name: gate, set: {prefix-cache-affinity-filter.maxTTFTPenaltyMs: 5000}}
  - {policy: two-choices, tuned: true, scenarios: [none]}
  - name: inline
    text: |
      plugins: [{type: random-picker}]
      schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
`

// folder has a trace and a configuration, which grids may name.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "sim", "trace", "testdata", "mooncake.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"mooncake.jsonl": string(text), "blend.yaml": preciseConfig, "engine.yaml": "maxBatchedTokens: 4096\ncost: {base: 0.02}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGrid(t *testing.T) {
	path := filepath.Join(folder(t), "grid.yaml")
	if err := os.WriteFile(path, []byte(grid), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := LoadGrid(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	var scenarios, candidates []string
	by := map[string]*Scenario{}
	for i := range p.Scenarios {
		s := &p.Scenarios[i]
		scenarios, by[s.Name] = append(scenarios, s.Name), s
	}
	for _, c := range p.Candidates {
		candidates = append(candidates, c.Name)
	}
	if diff := cmp.Diff([]string{"default", "blend.yaml", "tuned", "gate", "two-choices", "two-choices:choices=3", "two-choices:choices=4", "inline"}, candidates); diff != "" {
		t.Error(diff)
	}
	if len(scenarios) != 16+1+2 || scenarios[0] != "conversation 50 % 8 endpoints KV 307.2k events 0s late" {
		t.Errorf("%q", scenarios)
	}
	s := by["conversation 100 % 32 endpoints KV 2.4M events 500ms late"]
	if s == nil || s.Speed != 2 || s.Load != 1 || s.From != 0.5 || s.Jitter != 3*time.Second || len(s.Engines) != 32 || s.Engines[31].KVTokens != 2_400_000 ||
		s.Sight.EventDelay != 500*time.Millisecond || s.Sight.EventLoss != 0.1 || s.Sight.ScrapeInterval != time.Second || s.Pickers != 2 || s.WarmUp != 0.2 || s.Trace == nil {
		t.Errorf("%+v", s)
	}
	if s := by["speedy"]; s == nil || s.Speed != 1.5 || s.Load != 0 || s.Engines[0].KVTokens != 1_000_000 || s.Objective.TTFT != 2*time.Second || s.Objective.TPOT != 50*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if m := by["speedy"].model(); m.MaxBatchedTokens != 4096 || m.Cost.Base != 0.02 {
		t.Errorf("%+v", m)
	}
	s = by["b2b 15/s"]
	wantShifts := []Shift{
		{At: 0.5, Slower: Slower{2, 3}}, {At: 0.6, Prompts: Prompts{78_000, 131_072, 1}}, {At: 0.7, Burst: Burst{0.1, 0.2, 20_000}},
	}
	if s == nil || s.B2B.PerSecond != 15 || s.B2B.Requests != 100 || s.B2B.Customers != 7 || s.B2B.SystemTokens != 6000 || s.Trace != nil ||
		s.Engines[7] != (Engine{100_000, 3}) || s.Engines[6] != (Engine{307_200, 1}) || !slices.Equal(s.Shifts, wantShifts) {
		t.Errorf("%+v", s)
	}
	if text := string(p.Candidates[2].Text); !strings.Contains(text, "weight: 3") {
		t.Error(text)
	}
	if text := string(p.Candidates[3].Text); !strings.Contains(text, "maxTTFTPenaltyMs: 5000") {
		t.Error(text)
	}
	if n := len(p.Runs()); n != 3*(19*4+2) {
		t.Errorf("%d runs", n)
	}
	p.Scenarios, p.Seeds = []Scenario{*s}, 1
	results := memory(t)
	if told := complete(t, p, results); told != 5 {
		t.Errorf("%d runs", told)
	}
}

func TestFaultsOfAGrid(t *testing.T) {
	const head = "candidates: [{name: default}]\n"
	const scenario = "scenarios:\n  - {name: a, b2b: {}}\n"
	dir := folder(t)
	for text, want := range map[string]string{
		"":                              "grid.yaml:1:1: has nothing in it",
		head + "scenariso: []":          `grid.yaml:2:1: scenariso: unknown key (did you mean "scenarios"?)`,
		head + "scenarios: [{nam: a}]":  `grid.yaml:2:14: scenarios[0].nam: unknown key (did you mean "name"?)`,
		head:                            "scenarios: must have one at least",
		scenario:                        "candidates: must have one at least",
		scenario + head + "seeds: 0":    "grid.yaml:4:8: seeds: must be from 1 to 1000, got 0",
		head + "scenarios: [{b2b: {}}]": "scenarios[0].name: is missing",
		head + "scenarios: [{name: a}]": "grid.yaml:2:13: scenarios[0]: must have either trace or b2b",
		head + "scenarios: [{name: a, trace: nowhere}]":                                    "grid.yaml:2:30: scenarios[0].trace: open " + dir + "/nowhere",
		head + "scenarios: [{name: a, trace: blend.yaml}]":                                 "scenarios[0].trace: blend.yaml: neither JSON lines",
		head + "scenarios: [{name: a, b2b: {requests: 0}}]":                                "grid.yaml:2:28: scenarios[0].b2b: b2b: cannot be made of",
		head + "scenarios: [{name: a, b2b: {}, rate: [0]}]":                                "scenarios[0]: rate, speed and load: must be > 0, got 0",
		head + "scenarios: [{name: a, b2b: {}, speed: [2]}]":                               "scenarios[0].speed: is a trace's; b2b has a rate",
		head + "scenarios: [{name: a, trace: mooncake.jsonl, rate: [2]}]":                  "scenarios[0].rate: is b2b's; a trace has a speed",
		head + "scenarios: [{name: a, b2b: {}, rate: [2], load: [1]}]":                     "must have only one of rate, speed and load",
		head + "scenarios: [{name: a, b2b: {}, load: [1]}]":                                "scenarios[0].load: needs a capacity above 0",
		head + "scenarios: [{name: a, b2b: {}, endpoints: [0]}]":                           "scenarios[0]: endpoints: must be from 1 to 1024, got 0",
		head + "scenarios: [{name: a, b2b: {}, endpoints: [1000000000]}]":                  "scenarios[0]: endpoints: must be from 1 to 1024",
		head + "scenarios: [{name: a, b2b: {}, engines: [{endpoint: 8}]}]":                 "scenarios[0].engines[0].endpoint: must be from 0 to 7, got 8",
		head + "scenarios: [{name: a, b2b: {}, shifts: [{at: 0.5}]}]":                      "scenarios[0].shifts[0]: must be one of slower, prompts and burst",
		head + "scenarios: [{name: a, b2b: {}, shifts: [{at: 2, burst: {}}]}]":             "scenarios[0].shifts[0]: at: must be from 0 to 1, got 2",
		head + "scenarios: [{name: a, b2b: {}, warmUp: 1}]":                                "scenarios[0]: warm-up: must be from 0 to below 1, got 1",
		head + "scenarios: [{name: a, b2b: {}}, {name: a, b2b: {}}]":                       `scenarios: two of them are called "a"`,
		scenario + "candidates: [{}, {}]":                                                  `candidates: two of them are called "built-in"`,
		scenario + "candidates: [{config: nowhere.yaml}]":                                  "grid.yaml:3:23: candidates[0].config: open " + dir + "/nowhere.yaml",
		scenario + "candidates: [{name: a, config: a, text: b}]":                           "candidates[0].text: must be absent beside config",
		scenario + "candidates: [{set: {queue-scorer.x: 1}}]":                              `candidates[0]: queue-scorer.x: the configuration has no plugin "queue-scorer"`,
		scenario + "candidates: [{set: {prefill-cost-scorer.alpha: 1}}]":                   "candidates[0].name: is missing",
		scenario + "candidates: [{name: a, set: {prefill-cost-scorer.alhpa: 1}}]":          "candidates[0] changes it",
		scenario + "candidates: [{name: a, config: blend.yaml, weights: {queue-scrr: 1}}]": `queue-scrr: no profile of the configuration refers to it (did you mean "queue-scorer"?)`,
		scenario + "candidates: [{policy: llm-d-gat}]":                                     `candidates[0].policy: unknown policy "llm-d-gat" (did you mean "llm-d-gate"?)`,
		scenario + "candidates: [{policy: 'llm-d-gate:threshold=2'}]":                      "candidates[0].policy: ",
		scenario + "candidates: [{policy: random, config: a}]":                             "candidates[0].policy: must be alone",
		scenario + "candidates: [{name: a, policy: random, tuned: true}]":                  "candidates[0].name: must be absent with tuned",
		scenario + "candidates: [{tuned: true}]":                                           "candidates[0].tuned: is of policies",
		scenario + "candidates: [{name: a, scenarios: ['[']}]":                             "candidates[0].scenarios[0]: syntax error in pattern",
		scenario + "candidates: [{name: a, text: 'plugns: []'}]":                           `candidates[0].text:1:1: plugns: unknown key (did you mean "plugins"?)`,
	} {
		_, err := ParseGrid(t.Context(), filepath.Join(dir, "grid.yaml"), []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	if _, err := LoadGrid(t.Context(), filepath.Join(dir, "none.yaml")); err == nil {
		t.Error("no file was read")
	}
}

func FuzzParseGrid(f *testing.F) {
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "sim", "trace", "testdata"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(grid))
	f.Add([]byte("scenarios: [{name: a, b2b: {}, rate: [1e308], endpoints: [1024], kvTokens: [1]}]\ncandidates: [{}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := ParseGrid(t.Context(), filepath.Join(dir, "grid.yaml"), text); err == nil {
			if err := p.Validate(); err != nil {
				t.Errorf("it was read, but is no plan: %v", err)
			}
		}
	})
}

// The grid in the documentation, and the one that the help shows, are read as they stand there.
func TestDocumentedGrids(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	docs, err := os.ReadFile(filepath.Join(root, "docs", "simulate.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, fenced, ok := strings.Cut(string(docs), "```yaml\n")
	fenced, _, closed := strings.Cut(fenced, "```")
	if !ok || !closed {
		t.Fatal("the page shows no grid")
	}
	source, err := os.ReadFile(filepath.Join(root, "cmd", "sluice", "simulate.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, helped, ok := strings.Cut(string(source), "Example of a grid file:\n")
	helped, _, closed = strings.Cut(helped, "`")
	if !ok || !closed {
		t.Fatal("the help shows no grid")
	}
	dir := folder(t)
	text, err := os.ReadFile(filepath.Join(dir, "mooncake.jsonl"))
	if err != nil || os.WriteFile(filepath.Join(dir, "conversation_trace.jsonl.gz"), text, 0o600) != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text      string
		scenarios int
	}{"docs": {fenced, 3*2*2 + 2}, "help": {helped, 3*2 + 2*2}} {
		p, err := ParseGrid(t.Context(), filepath.Join(dir, "grid.yaml"), []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(p.Scenarios) != c.scenarios || p.Seeds != 5 || len(p.Candidates) < 4 {
			t.Errorf("%s: %d scenarios, %d candidates", name, len(p.Scenarios), len(p.Candidates))
		}
		i := slices.IndexFunc(p.Candidates, func(c Candidate) bool { return c.Name == "gate of 5 s" })
		if i < 0 || !boundsTime(&p.Candidates[i]) {
			t.Errorf("%s: a gate of 5 s is none", name)
		}
	}
}

// boundsTime says whether a configuration's gate compares waits with 5 s.
func boundsTime(c *Candidate) bool {
	return strings.Contains(string(c.Text), "penaltyMode: static") && strings.Contains(string(c.Text), "maxTTFTPenaltyMs: 5000")
}

// Lists that are multiplied out to more than anybody could run are refused before anything is built of them.
func TestGridsThatNeverEnd(t *testing.T) {
	many := "[1" + strings.Repeat(", 1", 1999) + "]"
	_, err := ParseGrid(t.Context(), "grid.yaml", []byte("scenarios:\n  - {name: a, b2b: {}, rate: "+many+", endpoints: "+many+", kvTokens: "+many+"}\ncandidates:\n  - {name: b}\n"))
	if err == nil || !strings.Contains(err.Error(), "grid.yaml:2") || !strings.Contains(err.Error(), "more than 10000 scenarios") {
		t.Errorf("%v", err)
	}
}
