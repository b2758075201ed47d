package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Plan is what is simulated: every configuration on every trace, with every seed.
type Plan struct {
	// Traces are the requests.
	Traces []*trace.Trace
	// Speed is how many times faster than recorded the requests come.
	Speed float64
	// Jitter delays each request by up to so much, drawn by the seed.
	Jitter time.Duration
	// Configs are the configuration files; an empty name is the built-in one.
	Configs []string
	// Policies are other projects' policies, which run beside them.
	Policies []policies.Policy
	// Endpoints are the engines.
	Endpoints []sim.Params
	// Pickers are how many replicas pick.
	Pickers int
	// Sight says how well they see the engines.
	Sight fleet.Sight
	// Seeds is how many runs there are of each; their seeds are 1, 2, ….
	Seeds int
	// WarmUp is the share of requests that do not count, 0 to 1, at the beginning.
	WarmUp float64
	// Objective is what a request is to be served within.
	Objective fleet.Objective
	// Workers is how many runs there are at a time; 0 means one per core.
	Workers int
}

// Row is a configuration on a trace.
type Row struct {
	// Trace and Config name them.
	Trace, Config string
	// Runs are those of the seeds, in their order.
	Runs []fleet.Summary
	// Took is the time that all its runs took together.
	Took time.Duration
}

// Validate reports the first thing that cannot be.
func (p *Plan) Validate() error {
	switch {
	case len(p.Traces) == 0:
		return errors.New("no trace")
	case p.contenders() == 0:
		return errors.New("no configuration")
	case len(p.Endpoints) == 0:
		return errors.New("no endpoints")
	case p.Seeds < 1:
		return fmt.Errorf("seeds: must be >= 1, got %d", p.Seeds)
	case !(p.Speed > 0):
		return fmt.Errorf("speed: must be > 0, got %v", p.Speed)
	case !(p.WarmUp >= 0 && p.WarmUp < 1):
		return fmt.Errorf("warm-up: must be from 0 to below 1, got %v", p.WarmUp)
	}
	return nil
}

// Runs is how many there are.
func (p *Plan) Runs() int { return len(p.Traces) * p.contenders() * p.Seeds }

// Run runs them. progress is called after each, from one goroutine at a time, with how many are done.
func (p *Plan) Run(ctx context.Context, progress func(done int)) ([]Row, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	type cell struct {
		summary fleet.Summary
		took    time.Duration
	}
	cells := make([]cell, p.Runs())
	finished := make(chan struct{})
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		n := 0
		for range finished {
			n++
			progress(n)
		}
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.workers())
	for i := range cells {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			t, c, seed := p.at(i)
			began := time.Now()
			summary, err := p.one(p.Traces[t], c, uint64(seed)+1)
			if err != nil {
				return fmt.Errorf("%s on %s, seed %d: %w", p.contender(c), p.Traces[t].Name, seed+1, err)
			}
			cells[i] = cell{summary, time.Since(began)}
			finished <- struct{}{}
			return nil
		})
	}
	err := g.Wait()
	close(finished)
	<-reported
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, done := range cells {
		t, c, seed := p.at(i)
		if seed == 0 {
			rows = append(rows, Row{Trace: p.Traces[t].Name, Config: p.contender(c)})
		}
		row := &rows[len(rows)-1]
		row.Runs, row.Took = append(row.Runs, done.summary), row.Took+done.took
	}
	return rows, nil
}

// at is which trace, configuration and seed a run has: seeds follow each other, then configurations.
func (p *Plan) at(run int) (trace, config, seed int) {
	return run / (p.contenders() * p.Seeds), run / p.Seeds % p.contenders(), run % p.Seeds
}

func (p *Plan) workers() int {
	if p.Workers > 0 {
		return p.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// one is a single run.
func (p *Plan) one(t *trace.Trace, contender int, seed uint64) (fleet.Summary, error) {
	faster, err := t.Jittered(p.Jitter, rand.New(rand.NewPCG(seed, 0x71773))).Faster(p.Speed)
	if err != nil {
		return fleet.Summary{}, err
	}
	r, err := fleet.Run(fleet.Config{
		Trace: faster, Engines: p.Endpoints, Pickers: p.Pickers, Sight: p.Sight, Seed: seed,
		NewPicker: func(v *fleet.View) (fleet.Picker, error) { return p.newPicker(v, contender) },
	})
	if err != nil {
		return fleet.Summary{}, err
	}
	return r.Summarise(p.WarmUp, p.Objective), nil
}
