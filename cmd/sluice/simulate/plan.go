package simulate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-epp/sluice/sim/fleet"
)

// Plan is what is simulated: the candidates in the scenarios, with every seed.
type Plan struct {
	// Scenarios and Candidates have unique names.
	Scenarios  []Scenario
	Candidates []Candidate
	// Seeds is how many runs there are of each; their seeds are 1, 2, ….
	Seeds int
	// Limit is how many runs a results file may have, those of this plan included; 0 does not bound them.
	Limit int
	// Workers is how many runs there are at a time; 0 means one per core.
	Workers int
	// Build names the program in results.
	Build string

	digests digests
}

// Run is one of a plan.
type Run struct {
	Scenario  *Scenario
	Candidate *Candidate
	Seed      int
	// Key names it by what decides how it comes out.
	Key string
}

// Validate reports the first thing that cannot be, and what is wrong with any candidate.
func (p *Plan) Validate() error {
	switch {
	case len(p.Scenarios) == 0:
		return errors.New("no scenario")
	case len(p.Candidates) == 0:
		return errors.New("no candidate")
	case p.Seeds < 1 || p.Seeds > 1000:
		return fmt.Errorf("seeds: must be from 1 to 1000, got %d", p.Seeds)
	}
	var errs []error
	names := map[string]bool{}
	for i := range p.Scenarios {
		s := &p.Scenarios[i]
		if err := s.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", s.Name, err))
		}
		if names["s "+s.Name] {
			errs = append(errs, fmt.Errorf("scenario %s: another one has its name", s.Name))
		}
		names["s "+s.Name] = true
	}
	for i := range p.Candidates {
		c := &p.Candidates[i]
		if err := c.Check(); err != nil {
			errs = append(errs, fmt.Errorf("candidate %s: %w", c.Name, err))
		}
		if names["c "+c.Name] {
			errs = append(errs, fmt.Errorf("candidate %s: another one has its name", c.Name))
		}
		names["c "+c.Name] = true
	}
	if len(errs) > 0 { // said before the probes, which take a while
		return errors.Join(errs...)
	}
	for i := range p.Candidates {
		if c := &p.Candidates[i]; c.behaviour == "" || c.probed != c.hash {
			if err := c.behave(); err != nil {
				errs = append(errs, fmt.Errorf("candidate %s: %w", c.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Runs are all of them, in the order of scenarios, candidates, seeds. The plan must be valid.
func (p *Plan) Runs() []Run {
	var all []Run
	for i := range p.Scenarios {
		for j := range p.Candidates {
			s, c := &p.Scenarios[i], &p.Candidates[j]
			if !c.runsIn(s.Name) {
				continue
			}
			for seed := 1; seed <= p.Seeds; seed++ {
				all = append(all, Run{s, c, seed, key(s, c, seed, &p.digests)})
			}
		}
	}
	return all
}

// Complete runs what the results lack. progress is called after each run, from one goroutine at a time. Where the context
// ends before, the results keep what is done. The plan must be valid.
func (p *Plan) Complete(ctx context.Context, results *Results, progress func(Progress)) error {
	var missing []Run
	all := p.Runs()
	queued := map[string]bool{}
	for _, r := range all {
		if results.Get(r.Key) == nil && !queued[r.Key] { // two candidates may do the same
			queued[r.Key], missing = true, append(missing, r)
		}
	}
	if have := results.Len(); p.Limit > 0 && len(missing) > 0 && have+len(missing) > p.Limit {
		return fmt.Errorf("%d runs are missing and %d are done, together %d: more than the limit of %d", len(missing), have, have+len(missing), p.Limit)
	}
	tell := newTeller(len(missing), len(all)-len(missing), progress)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.workers())
	for _, r := range missing {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := p.one(ctx, r, results); err != nil {
				return err
			}
			tell.done()
			return nil
		})
	}
	err := g.Wait()
	tell.end()
	return err
}

func (p *Plan) workers() int {
	if p.Workers > 0 {
		return p.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// one does a single run.
func (p *Plan) one(ctx context.Context, r Run, results *Results) error {
	began := time.Now()
	result, decision, err := r.Scenario.run(ctx, r.Candidate, r.Seed, nil)
	if err != nil {
		return fmt.Errorf("%s, %s, seed %d: %w", r.Scenario.Name, r.Candidate.Name, r.Seed, err)
	}
	err = results.Add(&Line{
		Key: r.Key, Build: p.Build, Scenario: r.Scenario.Name, Candidate: r.Candidate.Name, Seed: r.Seed,
		Took: time.Since(began).Round(time.Millisecond).Seconds(), Decision: decision.Seconds(),
		Summary: result.Summarise(r.Scenario.WarmUp, r.Scenario.Objective), Curves: result.Curves(r.Scenario.WarmUp),
	})
	if err != nil {
		return fmt.Errorf("keeping a result: %w", err)
	}
	return nil
}

// run plays the scenario once, and returns how long a decision took on average. wrap puts something between the fleet and its
// pickers, with how many requests there are; nil: nothing.
func (s *Scenario) run(ctx context.Context, c *Candidate, seed int, wrap func(p fleet.Picker, requests int) fleet.Picker) (*fleet.Result, time.Duration, error) {
	t, shifts, err := s.requests(uint64(seed))
	if err != nil {
		return nil, 0, err
	}
	watch := &stopwatch{}
	result, err := fleet.Run(fleet.Config{
		Trace: t, Engines: s.params(t), Pickers: s.Pickers, Sight: s.Sight, Seed: uint64(seed), Shifts: shifts, Stop: ctx.Done(),
		Pooled: c.pooled(),
		NewPicker: func(v *fleet.View) (fleet.Picker, error) {
			p, err := c.picker(v)
			if err != nil {
				return nil, err
			}
			p = timed{p, watch}
			if wrap != nil {
				p = wrap(p, len(t.Requests))
			}
			return p, nil
		},
	})
	if errors.Is(err, fleet.ErrStopped) {
		err = ctx.Err()
	}
	return result, watch.mean(), err
}
