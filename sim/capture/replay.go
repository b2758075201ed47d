package capture

import (
	"fmt"

	"github.com/sluice-epp/sluice/sim"
)

// Replay gives the requests to the engine model as they were given to the captured engine, each with the answer that it gave,
// and returns how many tokens of each step's prompt the model had cached; 0 for a reset.
func (c *Capture) Replay() ([]int, error) {
	e, err := sim.New(c.Engine.Params(), nil)
	if err != nil {
		return nil, err
	}
	prompts := Prompts{Longest: c.Engine.MaxModelLen}
	jobs := make([]*sim.Job, len(c.Steps))
	for i, s := range c.Steps {
		if !s.Together {
			run(e)
		}
		prompt, err := prompts.Next(c.Steps[:i], s)
		if err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i, s.Name, err)
		}
		jobs[i] = &sim.Job{Prompt: prompt, Output: s.Output, Adapter: s.Adapter, Salt: s.Salt}
		if s.Reset {
			e.ResetCache()
			continue
		}
		if err := e.Submit(0, jobs[i]); err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i, s.Name, err)
		}
	}
	run(e)
	cached := make([]int, len(jobs))
	for i, j := range jobs {
		cached[i] = j.Progress().Cached
	}
	return cached, nil
}

// run runs an engine until it has nothing left to do.
func run(e *sim.Engine) {
	for {
		if _, ok := e.Begin(0); !ok {
			return
		}
		e.Complete()
	}
}

// Mismatch is a step of which engine and model disagree.
type Mismatch struct {
	Step            int
	Name            string
	Engine, Modeled int // cached tokens
}

// Compare replays the capture and returns where the model disagrees with the engine.
func (c *Capture) Compare() ([]Mismatch, error) {
	modeled, err := c.Replay()
	if err != nil {
		return nil, err
	}
	var all []Mismatch
	for i, s := range c.Steps {
		if modeled[i] != s.Cached {
			all = append(all, Mismatch{i, s.Name, s.Cached, modeled[i]})
		}
	}
	return all, nil
}
