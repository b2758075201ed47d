package simulate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/server/filelock"
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

func plan() *Plan {
	w := trace.DefaultB2B()
	w.Requests, w.Customers, w.PerSecond = 400, 20, 4
	s := Scenario{
		Name: "b2b", B2B: &w, Speed: 1, WarmUp: 0.25, Objective: fleet.DefaultObjective, Pickers: 1,
		Sight: fleet.Sight{EventDelay: 20 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond},
	}
	for range 4 {
		s.Engines = append(s.Engines, Engine{KVTokens: 300_000, Slower: 1})
	}
	return &Plan{Scenarios: []Scenario{s}, Seeds: 2, Candidates: slices.Clone(probed())}
}

// small makes runs of a fraction of the requests and of the tokens.
func (p *Plan) small(requests int) *Plan {
	w := *p.Scenarios[0].B2B
	w.Requests, w.SystemTokens, w.QuestionTokens, w.AnswerTokens = requests, 1600, 320, 160
	p.Scenarios[0].B2B = &w
	return p
}

func candidates() []Candidate {
	return []Candidate{
		BuiltIn(), {Name: "precise", At: "precise.yaml", Text: []byte(preciseConfig)}, {Name: "random", At: "random.yaml", Text: []byte(randomConfig)},
	}
}

// probed are those that plans have, which need no probe any more where they stay as they are.
var probed = sync.OnceValue(func() []Candidate {
	all := candidates()
	for i := range all {
		_ = errors.Join(all[i].Check(), all[i].behave()) // whoever validates a plan is told
	}
	return all
})

// complete runs what is missing and returns how often it told of progress.
func complete(t *testing.T, p *Plan, r *Results) (told int) {
	t.Helper()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := p.Complete(t.Context(), r, func(Progress) { told++ }); err != nil {
		t.Fatal(err)
	}
	return told - 1 // the first is before anything has run
}

func memory(t *testing.T) *Results {
	t.Helper()
	r, err := OpenResults("")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What knows caches hits them, what does not does not; and the same plan makes the same figures, however many run at a time.
func TestConfigurationsAreCompared(t *testing.T) {
	p, r := plan().small(400), memory(t)
	if told := complete(t, p, r); told != 6 {
		t.Errorf("told %d times", told)
	}
	hits := map[string]float64{}
	rows := p.Rows(r)
	for i := range rows {
		row := &rows[i]
		if len(row.Runs) != 2 || row.Missing != 0 || row.Runs[0].Summary.Requests != 300 || row.Runs[0].Took <= 0 || row.Runs[0].Decision <= 0 {
			t.Fatalf("%+v", row)
		}
		if c := row.Runs[0].Curves; len(c.TTFT) != len(fleet.QuantileShares) || len(c.Over) != fleet.TimeBins || len(c.Prefill) != 4 {
			t.Errorf("%+v", c)
		}
		hits[row.Candidate] = row.estimate(func(l *Line) float64 { return l.Summary.HitRate }).Mean
	}
	if hits["precise"] < 0.9 || hits["built-in"] < 0.9 || hits["random"] > hits["precise"]-0.05 {
		t.Errorf("hit rates: %v", hits)
	}
	if verdicts := rows[0].Runs[0].Curves.Verdicts; len(verdicts) == 0 {
		t.Error("the built-in configuration's gate decided nothing")
	}
	p.Workers = 1
	second := memory(t)
	complete(t, p, second)
	for i, again := range p.Rows(second) {
		for j, line := range again.Runs {
			if line.Summary != rows[i].Runs[j].Summary {
				t.Errorf("%s: %+v, and again %+v", again.Candidate, rows[i].Runs[j].Summary, line.Summary)
			}
		}
	}
}

func TestFaultsOfAPlan(t *testing.T) {
	for name, change := range map[string]func(*Plan){
		"no scenario": func(p *Plan) { p.Scenarios = nil }, "no candidate": func(p *Plan) { p.Candidates = nil },
		"seeds: must be":                      func(p *Plan) { p.Seeds = 0 },
		"scenario b2b: endpoints: must be":    func(p *Plan) { p.Scenarios[0].Engines = nil },
		"scenario b2b: speed: must be":        func(p *Plan) { p.Scenarios[0].Speed = 0 },
		"scenario b2b: warm-up: must be":      func(p *Plan) { p.Scenarios[0].WarmUp = 1 },
		"replicas: must be":                   func(p *Plan) { p.Scenarios[0].Pickers = 0 },
		"event loss: must be":                 func(p *Plan) { p.Scenarios[0].Sight.EventLoss = 2 },
		"event delay: must be":                func(p *Plan) { p.Scenarios[0].Sight.EventDelay = -1 },
		"scrape interval: must be":            func(p *Plan) { p.Scenarios[0].Sight.ScrapeInterval = -1 },
		"SLO: must be":                        func(p *Plan) { p.Scenarios[0].Objective.TPOT = 0 },
		"endpoint 1: slower: must be":         func(p *Plan) { p.Scenarios[0].Engines[1].Slower = 0 },
		"endpoint 1: KV tokens: must be":      func(p *Plan) { p.Scenarios[0].Engines[1].KVTokens = 0 },
		"shift 1: slower: endpoint: must be":  func(p *Plan) { p.Scenarios[0].Shifts = []Shift{{Slower: Slower{4, 1}}} },
		"trace: is missing":                   func(p *Plan) { p.Scenarios[0].B2B = nil },
		"from, to: must be":                   func(p *Plan) { p.Scenarios[0].From = 1 },
		"scenario b2b: another one":           func(p *Plan) { p.Scenarios = append(p.Scenarios, p.Scenarios[0]) },
		"candidate random: another one":       func(p *Plan) { p.Candidates = append(p.Candidates, p.Candidates[2]) },
		"random.yaml:1:1: plugns: unknown ke": func(p *Plan) { p.Candidates[2].Text = []byte("plugns: []") },
	} {
		p := plan()
		change(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSlowRun: what takes too long for a clock is an error that names the speed.
func TestSlowRun(t *testing.T) {
	p := plan()
	p.Scenarios[0].Speed = 1e-300
	if err := p.Complete(t.Context(), memory(t), func(Progress) {}); err == nil || !strings.Contains(err.Error(), "speed: 1e-300 makes a span") {
		t.Errorf("%v", err)
	}
}

// What a file holds is not run again, whatever it is called; what decides a run makes another one of it.
func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	last := memory(t)
	t.Cleanup(func() { _ = last.Close() })
	open := func() *Results {
		_ = last.Close()
		var err error
		if last, err = OpenResults(path); err != nil {
			t.Fatal(err)
		}
		return last
	}
	p := plan().small(60)
	p.Seeds, p.Scenarios[0].Engines = 1, p.Scenarios[0].Engines[:2]
	if told := complete(t, p, open()); told != 3 {
		t.Errorf("%d runs, want 3", told)
	}
	p.Scenarios[0].Name, p.Scenarios[0].To, p.Candidates[1].Name = "other", 1, "another"
	p.Candidates[2].Text = append([]byte("# another comment\n"), p.Candidates[2].Text...)
	if told := complete(t, p, open()); told != 0 {
		t.Errorf("%d runs again, only the names are others", told)
	}
	if rows := p.Rows(open()); rows[0].Scenario != "other" || rows[1].Candidate != "another" || len(rows[2].Runs) != 1 {
		t.Errorf("%+v", rows)
	}
	p.Seeds = 2
	if told := complete(t, p, open()); told != 3 {
		t.Errorf("%d runs for a second seed, want 3", told)
	}
	for name, change := range map[string]func(*Plan){
		"rate":      func(p *Plan) { b := *p.Scenarios[0].B2B; b.PerSecond = 5; p.Scenarios[0].B2B = &b },
		"speed":     func(p *Plan) { p.Scenarios[0].Speed = 1.5 },
		"cache":     func(p *Plan) { p.Scenarios[0].Engines = []Engine{{300_000, 1}, {200_000, 1}} },
		"slow":      func(p *Plan) { p.Scenarios[0].Engines = []Engine{{300_000, 1}, {300_000, 2}} },
		"shift":     func(p *Plan) { p.Scenarios[0].Shifts = []Shift{{At: 0.5, Slower: Slower{1, 3}}} },
		"prompts":   func(p *Plan) { p.Scenarios[0].Shifts = []Shift{{At: 0.5, Prompts: Prompts{9, 99, 1}}} },
		"loss":      func(p *Plan) { p.Scenarios[0].Sight.EventLoss = 0.5 },
		"warm-up":   func(p *Plan) { p.Scenarios[0].WarmUp = 0.5 },
		"objective": func(p *Plan) { p.Scenarios[0].Objective.TTFT = time.Second },
		"replicas":  func(p *Plan) { p.Scenarios[0].Pickers = 2 },
		"part":      func(p *Plan) { p.Scenarios[0].From = 0.5 },
		"jitter":    func(p *Plan) { p.Scenarios[0].Jitter = time.Second },
		"trace":     func(p *Plan) { p.Scenarios[0].Trace = requests(t) },
	} {
		p := plan().small(60)
		p.Scenarios[0].Engines = p.Scenarios[0].Engines[:2]
		change(p)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		if r := open(); slices.ContainsFunc(p.Runs(), func(run Run) bool { return r.Get(run.Key) != nil }) {
			t.Errorf("%s: counts as done", name)
		}
	}
	a, b := plan(), plan()
	a.Scenarios[0].Trace, b.Scenarios[0].Trace = requests(t), requests(t)
	b.Scenarios[0].Trace.Requests[3].OutputTokens++
	_ = errors.Join(a.Validate(), b.Validate())
	if a.Runs()[0].Key == b.Runs()[0].Key {
		t.Error("a trace with another answer counts as the same")
	}
}

func requests(t *testing.T) *trace.Trace {
	t.Helper()
	got, err := trace.Open(filepath.Join("..", "..", "..", "sim", "trace", "testdata", "mooncake.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTornResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := `{"key":"a","seed":1,"summary":{"Requests":7}}` + "\n\n"
	write(whole + `{"key":"b","se`)
	r, err := OpenResults(path)
	if err != nil || r.Len() != 1 || r.Get("a") == nil {
		t.Fatalf("%v: %d", err, r.Len())
	}
	if err := errors.Join(r.Add(&Line{Key: "c"}), r.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err = OpenResults(path); err != nil || r.Len() != 2 || r.Get("c") == nil {
		t.Fatalf("after what was torn: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		whole + "nothing\n" + whole:           ":3: no result of a run",
		whole + "{}\n":                        ":3: no result of a run: it has no key",
		whole + `{"key":"b"}` + "\n" + whole:  ":3: no result of a run: it has no summary",
		`{"key":"b","summary":{}}` + "\n":     ":1: no result of a run: it has no summary",
		"seeds: 5 # without an end":           ":1: no line of results ends here",
		`{"key":"b","se`:                      ":1: no line of results ends here",
		"\n\nno result":                       ":3: no line of results ends here",
		strings.Repeat("x", maxLine+1) + "\n": ":1: is longer than",
	} {
		write(text)
		if _, err := OpenResults(path); err == nil || !strings.Contains(err.Error(), path+want) {
			t.Errorf("%v, want %s", err, want)
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != text {
			t.Errorf("a file that is none was changed: %v", err)
		}
	}
	if _, err := OpenResults(filepath.Join(path, "x")); err == nil {
		t.Error("a file below a file was opened")
	}
	if _, err := OpenResults(t.TempDir()); err == nil {
		t.Error("a folder was opened")
	}
}

// TestResultsOfOneProcess: two at a time would each miss what the other adds.
func TestResultsOfOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	r, err := OpenResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := OpenResults(path); !errors.Is(err, filelock.ErrHeld) || !strings.Contains(err.Error(), path) {
		t.Errorf("the second got %v, %v", second, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err = OpenResults(path); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLimit(t *testing.T) {
	p, r := plan().small(60), memory(t)
	p.Seeds = 1
	complete(t, p, r)
	p.Seeds, p.Limit = 2, 5
	err := p.Complete(t.Context(), r, func(Progress) { t.Error("something ran") })
	if want := "3 runs are missing and 3 are done, together 6: more than the limit of 5"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	p.Seeds, p.Limit = 1, 1 // all is done
	if err := p.Complete(t.Context(), r, func(Progress) {}); err != nil {
		t.Error(err)
	}
}

// A plan that is interrupted ends in the middle of a run, and keeps those before.
func TestInterrupted(t *testing.T) {
	p, r := plan().small(100), memory(t)
	p.Workers = 1
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := p.Complete(ctx, r, func(state Progress) {
		if state.Done == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || r.Len() < 2 || r.Len() > 4 {
		t.Fatalf("%v with %d runs", err, r.Len())
	}
	kept := r.Len()
	if told := complete(t, p, r); told != 6-kept {
		t.Errorf("%d runs after %d", told, kept)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := p.Scenarios[0].run(stopped, &p.Candidates[0], 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that was stopped: %v", err)
	}
}

func TestProgress(t *testing.T) {
	var lines, screen strings.Builder
	file, terminal := NewReporter(&lines, false), NewReporter(&screen, true)
	for i := range 40 {
		p := Progress{Done: i, Missing: 39, Kept: 2, Elapsed: time.Duration(i) * time.Second}
		file.Tell(p)
		terminal.Tell(p)
	}
	file.End()
	terminal.End()
	want := `12 of 41 runs (2 were done before), 10s, about 29s left
22 of 41 runs (2 were done before), 20s, about 19s left
32 of 41 runs (2 were done before), 30s, about 9s left
41 of 41 runs (2 were done before), 39s
`
	if lines.String() != want {
		t.Errorf("%s", lines.String())
	}
	if text := screen.String(); strings.Count(text, "\r") != 41 || strings.Contains(text, "\n") || !strings.HasSuffix(text, "\r\033[K") {
		t.Errorf("%q", text)
	}
	lines.Reset()
	quick := NewReporter(&lines, false)
	quick.Tell(Progress{Done: 1, Missing: 1, Elapsed: time.Second})
	quick.Tell(Progress{Missing: 0, Kept: 5})
	if lines.Len() > 0 {
		t.Errorf("%q", lines.String())
	}
}

// Policies run beside configurations, and are told from them in the rows.
func TestPoliciesRunBesideConfigurations(t *testing.T) {
	p, r := plan().small(400), memory(t)
	p.Candidates, p.Seeds = p.Candidates[:1], 1
	for _, spec := range []string{"random", "llm-d-gate:penalty=5000"} {
		policy, err := policies.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Candidates = append(p.Candidates, FromPolicy(&policy))
	}
	complete(t, p, r)
	var names []string
	hits := map[string]float64{}
	for _, row := range p.Rows(r) {
		names = append(names, row.Candidate)
		hits[row.Candidate] = row.Runs[0].Summary.HitRate
	}
	if !slices.Equal(names, []string{"built-in", "random", "llm-d-gate:penalty=5000"}) || hits["random"] > hits["llm-d-gate:penalty=5000"]-0.05 {
		t.Errorf("%v: %v", names, hits)
	}
	bad, err := p.Candidates[2].Policy.With(policies.Params{"threshold": "2"})
	if err != nil {
		t.Fatal(err)
	}
	p.Candidates[2].Policy = &bad
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "affinityThreshold") {
		t.Error(err)
	}
}

// A candidate that does something else has other runs, even where its text says the same; what does the same has the same.
func TestBehaviourNamesRuns(t *testing.T) {
	key := func(c Candidate) string {
		p := plan()
		p.Candidates = []Candidate{c}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		return p.Runs()[0].Key
	}
	a, b := probed()[0], probed()[1]
	if key(a) != key(candidates()[0]) {
		t.Error("the same candidate has other runs")
	}
	if a.behaviour == "" || a.behaviour == b.behaviour {
		t.Error("two configurations that pick otherwise have the same behaviour")
	}
	other := a
	other.Text = b.Text
	if key(other) != key(b) {
		t.Error("a candidate whose text has changed keeps its behaviour")
	}
	p := plan()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	before := p.Runs()[0].Key
	p.Candidates[0].behaviour = b.behaviour
	if p.Runs()[0].Key == before {
		t.Error("another behaviour has the same runs")
	}
}
