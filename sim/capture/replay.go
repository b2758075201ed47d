package capture

import (
	"fmt"

	"github.com/sluice-epp/sluice/sim"
)

// Replay gives the requests to the engine model, one at a time, each with the answer that the captured engine gave, and
// returns how many tokens of each step's prompt the model had cached; 0 for a reset.
func (c *Capture) Replay() ([]int, error) {
	e, err := sim.New(c.Engine.Params(), nil)
	if err != nil {
		return nil, err
	}
	prompts := Prompts{Longest: c.Engine.MaxModelLen}
	cached := make([]int, len(c.Steps))
	for i, s := range c.Steps {
		prompt, err := prompts.Next(c.Steps[:i], s)
		if err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i, s.Name, err)
		}
		if s.Reset {
			e.ResetCache()
			continue
		}
		j := &sim.Job{Prompt: prompt, Output: s.Output, Adapter: s.Adapter, Salt: s.Salt}
		if err := e.Submit(0, j); err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i, s.Name, err)
		}
		for {
			if _, ok := e.Begin(0); !ok {
				break
			}
			e.Complete()
		}
		cached[i] = j.Progress().Cached
	}
	return cached, nil
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
