package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	"github.com/sluice-epp/sluice/cmd/sluice/simulate"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// SimulateCommand compares configurations on a trace.
type SimulateCommand struct {
	Trace     []string      `help:"A trace of requests: Mooncake's JSON lines (hash_ids) or Azure's CSV (lengths), gzipped or not; 'b2b' makes llm-d's synthetic workload. May be repeated." placeholder:"FILE"`
	Config    []string      `help:"A configuration file; may be repeated. Without one, the built-in configuration runs." placeholder:"FILE"`
	Policy    []string      `help:"Another project's policy beside them, with its defaults or the parameters given; may be repeated. 'list' lists them." sep:"none" placeholder:"NAME[:PARAMETER=VALUE,...]"`
	Endpoints int           `help:"Number of engines." default:"8"`
	Speed     float64       `help:"How many times faster than recorded the requests come." default:"1"`
	Jitter    time.Duration `help:"Delay each request by up to so much, at random: traces whose times are rounded have bursts that never were (Mooncake's conversation trace: 3s)." default:"0s"`
	KVTokens  int           `name:"kv-tokens" help:"KV cache of each engine, in tokens." default:"307200"`
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
	Workers   int           `help:"Runs at a time (default: one per core)." default:"0"`
	JSON      string        `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
}

// Help is shown below the usage.
func (*SimulateCommand) Help() string {
	return `The scheduling code that serves decides about every request of the trace; modelled engines (as behind 'sluice engine')
compute them, in virtual time and closed loop: what is decided changes what comes next. What Sluice sees of the engines is as
late and as incomplete as the flags say. Examples:

  sluice simulate --trace b2b --config a.yaml --config b.yaml --seeds 5
  sluice simulate --trace b2b --policy llm-d --policy llm-d-gate:penalty=5000,index=approx
  sluice simulate --trace conversation_trace.jsonl --jitter 3s --speed 2 --kv-tokens 2400000`
}

// blockTokens is the size of the engines' KV blocks where the trace has none that they could take.
const blockTokens = 512

// Run simulates.
func (s *SimulateCommand) Run(i *interrupts) error {
	if slices.Contains(s.Policy, "list") {
		return policies.Write(os.Stdout)
	}
	if len(s.Trace) == 0 {
		return errors.New("--trace: name a trace, or 'b2b'")
	}
	plan := simulate.Plan{
		Speed: s.Speed, Jitter: s.Jitter, Configs: s.Config, Pickers: s.Replicas, Seeds: s.Seeds, WarmUp: s.WarmUp, Workers: s.Workers,
		Sight:     fleet.Sight{EventDelay: s.Delay, EventLoss: s.Loss, ScrapeInterval: s.Scrape},
		Objective: fleet.Objective{TTFT: s.TTFT, TPOT: s.TPOT},
	}
	if len(plan.Configs) == 0 {
		plan.Configs = []string{""}
	}
	for _, spec := range s.Policy {
		p, err := policies.Parse(spec)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		plan.Policies = append(plan.Policies, p)
	}
	for _, name := range s.Trace {
		t, err := s.open(name)
		if err != nil {
			return fmt.Errorf("--trace: %w", err)
		}
		plan.Traces = append(plan.Traces, t)
	}
	if s.Endpoints < 1 || s.Endpoints > 1024 {
		return fmt.Errorf("--endpoints: must be from 1 to 1024, got %d", s.Endpoints)
	}
	for range s.Endpoints {
		plan.Endpoints = append(plan.Endpoints, s.engine(plan.Traces))
	}
	began := time.Now()
	rows, err := plan.Run(i, func(done int) {
		if term.IsTerminal(int(os.Stderr.Fd())) {
			fmt.Fprintf(os.Stderr, "\r%d of %d runs, %s ", done, plan.Runs(), time.Since(began).Round(time.Second))
		}
	})
	if err != nil {
		return err
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
	return s.report(rows)
}

// open reads a trace, or makes the one that a name stands for.
func (s *SimulateCommand) open(name string) (*trace.Trace, error) {
	if name != "b2b" {
		return trace.Open(name)
	}
	w := trace.DefaultB2B()
	w.PerSecond, w.Requests = s.Rate, s.Requests
	return w.Trace(rand.New(rand.NewPCG(1, 2)))
}

// engine has room for the longest request of all traces.
func (s *SimulateCommand) engine(traces []*trace.Trace) sim.Params {
	p := sim.DefaultParams()
	p.BlockSize = blockTokens
	if len(traces) == 1 {
		p.BlockSize = traces[0].BlockTokens
	}
	p.NumBlocks, p.MaxWaiting = max(1, s.KVTokens/p.BlockSize), 1<<20
	longest := 1
	for _, t := range traces {
		for _, r := range t.Requests {
			longest = max(longest, r.PromptTokens+r.OutputTokens)
		}
	}
	p.MaxModelLen = min(longest, p.NumBlocks*p.BlockSize)
	return p
}

func (s *SimulateCommand) report(rows []simulate.Row) error {
	if s.JSON != "" {
		to := io.Writer(os.Stdout)
		if s.JSON != "-" {
			f, err := os.Create(s.JSON)
			if err != nil {
				return fmt.Errorf("--json: %w", err)
			}
			defer func() { _ = f.Close() }()
			to = f
		}
		if err := simulate.WriteJSON(to, rows); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
		if s.JSON == "-" {
			return nil
		}
	}
	width := 160
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w > 0 {
		width = w
	}
	return simulate.WriteTable(os.Stdout, rows, width)
}
