package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/sluice-epp/sluice/cmd/sluice/simulate"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// SimulateCommand compares configurations on a trace.
type SimulateCommand struct {
	Trace     []string      `help:"A trace of requests: Mooncake's JSON lines (hash_ids) or Azure's CSV (lengths), gzipped or not; a decision log, its files or their folder; 'b2b' makes llm-d's synthetic workload. May be repeated." placeholder:"FILE"`
	Config    []string      `help:"A configuration file; 'default' is the built-in one. May be repeated. Without one, the built-in configuration runs." placeholder:"FILE"`
	Policy    []string      `help:"Another project's policy beside them, with its defaults or the parameters given; may be repeated. 'list' lists them." sep:"none" placeholder:"NAME[:PARAMETER=VALUE,...]"`
	Grid      string        `help:"A YAML file that lists scenarios, candidates and seeds, instead of the flags that describe one." placeholder:"FILE"`
	Results   string        `help:"Keep each finished run as a line of this file, and run only what is not in it yet." placeholder:"FILE"`
	Limit     int           `help:"Most runs that --results may hold; a plan that needs more is refused. 0: any number." default:"600"`
	Endpoints int           `help:"Number of engines." default:"8"`
	Speed     float64       `help:"How many times faster than recorded the requests come." default:"1"`
	From      float64       `help:"Where in the trace to begin, as a share of its span, 0 to 1." default:"0"`
	To        float64       `help:"Where in the trace to end, as a share of its span, 0 to 1." default:"1"`
	Jitter    time.Duration `help:"Delay each request by up to so much, at random: traces whose times are rounded have bursts that never were (Mooncake's conversation trace: 3s)." default:"0s"`
	KVTokens  int           `name:"kv-tokens" help:"KV cache of each engine, in tokens." default:"307200"`
	Profile   string        `help:"Measured costs of the engines' steps, as 'sluice fit' writes them." type:"existingfile" placeholder:"FILE"`
	Engine    []string      `help:"Endpoints that differ, counted from 0: N or N-M, then slower=FACTOR (every step takes so many times longer) and kv-tokens=TOKENS. May be repeated." sep:"none" placeholder:"N[-M]:KEY=VALUE,..."`
	Shift     []string      `help:"A change in the middle of the run, at a share of its span: slower:at=0.5,endpoint=3,factor=3 or prompts:at=0.5,mean=78000,most=131072,rate=1 (prompts become as long on average; rate is by what the rate of requests changes) or burst:at=0.5,for=0.1,share=0.5,tokens=20000 (for a while a share of requests begins with the same prefix). May be repeated." sep:"none" placeholder:"KIND:KEY=VALUE,..."`
	Seeds     int           `help:"Runs of each, with other random numbers; more than one give intervals." default:"1"`
	Replicas  int           `help:"Replicas of Sluice, to which the requests come in turn at random." default:"1"`
	Delay     time.Duration `name:"event-delay" help:"How late KV events come, on average." default:"20ms"`
	Loss      float64       `name:"event-loss" help:"Share of engines' steps whose KV events never come, 0 to 1." default:"0"`
	Scrape    time.Duration `name:"scrape-interval" help:"Time between two readings of an engine's metrics." default:"50ms"`
	WarmUp    float64       `help:"Share of the requests, at the beginning, that does not count." default:"0.1"`
	TTFT      time.Duration `name:"slo-ttft" help:"Time to the first token within which a request is good." default:"5s"`
	TPOT      time.Duration `name:"slo-tpot" help:"Time per further token within which a request is good." default:"100ms"`
	Rate      float64       `name:"b2b-rate" help:"Requests per second of the b2b workload." default:"12"`
	Requests  int           `name:"b2b-requests" help:"Requests of the b2b workload." default:"5000"`
	Capacity  bool          `name:"find-capacity" help:"Search the highest speed, or rate of b2b, at which 90 % of the requests meet the SLO, instead of running at the one given. It is where the search begins; a good guess saves time. Runs with one seed."`
	Workers   int           `help:"Runs at a time (default: one per core)." default:"0"`
	HTML      string        `name:"html" help:"Write a page with tables and plots to a file." type:"path" placeholder:"FILE"`
	JSON      string        `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
}

// besideGrid are the flags that mean something beside --grid: what a grid does not say.
var besideGrid = []string{"grid", "results", "limit", "workers", "json", "html", "find-capacity"}

// Help is shown below the usage.
func (*SimulateCommand) Help() string {
	return `The scheduling code that serves decides about every request of the trace; modelled engines (as behind 'sluice engine')
compute them, in virtual time and closed loop: what is decided changes what comes next. What Sluice sees of the engines is as
late and as incomplete as the flags say. Examples:

  sluice simulate --trace b2b --config a.yaml --config b.yaml --seeds 5
  sluice simulate --trace b2b --policy llm-d --policy llm-d-gate:penalty=5000,index=approx
  sluice simulate --trace conversation_trace.jsonl --jitter 3s --speed 2 --kv-tokens 2400000
  sluice simulate --trace b2b --engine 6-7:slower=2,kv-tokens=100000 --shift slower:at=0.5,endpoint=3,factor=3
  sluice simulate --grid grid.yaml --results grid.jsonl --html grid.html

A grid runs every candidate in every scenario with every seed. With --results it can be stopped and goes on where it was. Lists
in a scenario are multiplied out; all keys are in docs/simulate.md. Example of a grid file:

  seeds: 5
  defaults: {endpoints: [8, 32], kvTokens: [307200]}
  scenarios:
    - {name: conversation, trace: conversation_trace.jsonl.gz, jitter: 3s, capacity: 1.8, load: [0.6, 0.85, 1], to: 0.5}
    - {name: b2b, b2b: {requests: 5000}, rate: [12, 15], kvTokens: [307200]}
  candidates:
    - {name: default}
    - {name: gate of 5 s, set: {prefix-cache-affinity-filter.penaltyMode: static, prefix-cache-affinity-filter.maxTTFTPenaltyMs: 5000}}
    - {name: tuned for b2b, config: blend.yaml, weights: {queue-scorer: 3}, scenarios: ["b2b*"]}
    - {policy: llm-d-gate, tuned: true}`
}

// Validate checks what needs no file.
func (s *SimulateCommand) Validate() error {
	switch {
	case slices.Contains(s.Policy, "list"):
	case len(s.Trace) == 0 && s.Grid == "":
		return errors.New("--trace or --grid: one of them is needed")
	case s.Endpoints < 1 || s.Endpoints > 1024:
		return fmt.Errorf("--endpoints: must be from 1 to 1024, got %d", s.Endpoints)
	case !(s.To > s.From):
		return fmt.Errorf("--to: must be above --from, got %v", s.To)
	case s.Workers < 0:
		return fmt.Errorf("--workers: must be >= 0, got %d", s.Workers)
	case s.Capacity && s.HTML != "":
		return errors.New("--html: must be absent with --find-capacity, which has nothing to plot")
	case s.Capacity && s.Results != "":
		return errors.New("--results: must be absent with --find-capacity, which keeps no runs")
	case s.Limit < 0:
		return fmt.Errorf("--limit: must be >= 0, got %d", s.Limit)
	}
	return nil
}

// Run simulates.
func (s *SimulateCommand) Run(i *interrupts, parsed *kong.Context) error {
	if slices.Contains(s.Policy, "list") {
		return policies.Write(os.Stdout)
	}
	plan, err := s.plan(i, parsed)
	if err != nil {
		return err
	}
	plan.Workers, plan.Build = s.Workers, versionString()
	if s.Results != "" {
		plan.Limit = s.Limit
	}
	if err := plan.Validate(); err != nil {
		return err
	}
	for _, note := range plan.Notes() {
		fmt.Fprintln(os.Stderr, "sluice:", note)
	}
	reporter := simulate.NewReporter(os.Stderr, term.IsTerminal(int(os.Stderr.Fd())))
	if s.Capacity {
		return s.capacities(i, plan, reporter)
	}
	results, err := simulate.OpenResults(s.Results)
	if err != nil {
		return fmt.Errorf("--results: %w", err)
	}
	err = plan.Complete(i, results, reporter.Tell)
	reporter.End()
	rows := plan.Rows(results)
	if errors.Is(err, context.Canceled) {
		s.interrupted(rows)
		_, files := s.files(rows) // what is done is reported where a file was asked for
		return errors.Join(err, files, results.Close())
	}
	if err := errors.Join(err, results.Close()); err != nil {
		return err
	}
	return s.report(rows)
}

// interrupted says what is kept.
func (s *SimulateCommand) interrupted(rows []simulate.Row) {
	done, all := 0, 0
	for i := range rows {
		done, all = done+len(rows[i].Runs), all+len(rows[i].Runs)+rows[i].Missing
	}
	if s.Results != "" {
		fmt.Fprintf(os.Stderr, "%s holds %d of %d runs; the same command goes on from there\n", s.Results, done, all)
		return
	}
	fmt.Fprintf(os.Stderr, "%d of %d runs were done; --results keeps them for the next time\n", done, all)
}

// plan is what a grid file says, or the flags.
func (s *SimulateCommand) plan(ctx context.Context, parsed *kong.Context) (*simulate.Plan, error) {
	if s.Grid != "" {
		for _, p := range parsed.Path {
			if p.Flag != nil && !slices.Contains(besideGrid, p.Flag.Name) {
				return nil, fmt.Errorf("--%s: must be absent with --grid; the file says it", p.Flag.Name)
			}
		}
		plan, err := simulate.LoadGrid(ctx, s.Grid)
		if err != nil && !strings.HasPrefix(err.Error(), s.Grid) { // faults begin with their place
			return nil, fmt.Errorf("--grid: %w", err)
		}
		return plan, err
	}
	plan := &simulate.Plan{Seeds: s.Seeds}
	for _, name := range s.Trace {
		scenario, err := s.scenario(ctx, name)
		if err != nil {
			return nil, err
		}
		plan.Scenarios = append(plan.Scenarios, scenario)
	}
	for _, name := range s.Config {
		if name == builtIn {
			plan.Candidates = append(plan.Candidates, simulate.BuiltIn())
			continue
		}
		c, err := simulate.FromFile(filepath.Base(name), name)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		plan.Candidates = append(plan.Candidates, c)
	}
	for _, spec := range s.Policy {
		p, err := policies.Parse(spec)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		plan.Candidates = append(plan.Candidates, simulate.FromPolicy(&p))
	}
	if len(s.Config) == 0 {
		// What serves without a file is what policies are compared with.
		plan.Candidates = slices.Insert(plan.Candidates, 0, simulate.BuiltIn())
	}
	return plan, nil
}

// scenario is what the flags say, with a trace or the workload that a name stands for.
func (s *SimulateCommand) scenario(ctx context.Context, name string) (simulate.Scenario, error) {
	scenario := simulate.Scenario{
		Name: filepath.Base(name), From: s.From, To: s.To, Speed: s.Speed, Jitter: s.Jitter, Pickers: s.Replicas, WarmUp: s.WarmUp,
		Sight:     fleet.Sight{EventDelay: s.Delay, EventLoss: s.Loss, ScrapeInterval: s.Scrape},
		Objective: fleet.Objective{TTFT: s.TTFT, TPOT: s.TPOT},
	}
	if name == "b2b" {
		w := trace.DefaultB2B()
		w.PerSecond, w.Requests = s.Rate, s.Requests
		if err := w.Validate(); err != nil {
			return scenario, err
		}
		scenario.B2B = &w
	} else {
		t, err := simulate.OpenTrace(ctx, name)
		if err != nil {
			return scenario, fmt.Errorf("--trace: %w", err)
		}
		scenario.Trace = t
	}
	for range s.Endpoints {
		scenario.Engines = append(scenario.Engines, simulate.Engine{KVTokens: s.KVTokens, Slower: 1})
	}
	if s.Profile != "" {
		p, err := openProfile(s.Profile)
		if err != nil {
			return scenario, err
		}
		scenario.Profile, scenario.ProfileName = &p, filepath.Base(s.Profile)
	}
	for _, spec := range s.Engine {
		if err := simulate.SetEngines(scenario.Engines, spec); err != nil {
			return scenario, fmt.Errorf("--engine: %w", err)
		}
	}
	for _, spec := range s.Shift {
		shift, err := simulate.ParseShift(spec)
		if err != nil {
			return scenario, fmt.Errorf("--shift: %w", err)
		}
		scenario.Shifts = append(scenario.Shifts, shift)
	}
	return scenario, nil
}

// capacities searches them.
func (s *SimulateCommand) capacities(ctx context.Context, plan *simulate.Plan, reporter *simulate.Reporter) error {
	found, err := plan.Capacities(ctx, reporter.Tell)
	reporter.End()
	if err != nil {
		return err
	}
	if s.JSON != "" {
		err := flagged("--json", writeTo(s.JSON, func(w io.Writer) error { return simulate.WriteCapacitiesJSON(w, found) }))
		if err != nil || s.JSON == "-" {
			return err
		}
	}
	return simulate.WriteCapacities(os.Stdout, found, width())
}

func (s *SimulateCommand) report(rows []simulate.Row) error {
	printed, err := s.files(rows)
	if err != nil || printed {
		return err
	}
	return simulate.WriteTable(os.Stdout, rows, width())
}

// files writes the files that flags name, and says whether one of them was the standard output.
func (s *SimulateCommand) files(rows []simulate.Row) (printed bool, err error) {
	if s.HTML != "" {
		err = flagged("--html", writeTo(s.HTML, func(w io.Writer) error { return simulate.WriteHTML(w, rows) }))
	}
	if s.JSON != "" && err == nil {
		err = flagged("--json", writeTo(s.JSON, func(w io.Writer) error { return simulate.WriteJSON(w, rows) }))
	}
	return s.HTML == "-" || s.JSON == "-", err
}

// width is how many cells a line has.
func width() int {
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w > 0 {
		return w
	}
	return 200
}
