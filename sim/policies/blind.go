package policies

import (
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// blind are the policies that know nothing of caches.
func blind() []Policy {
	return []Policy{
		{
			Name: "round-robin", Summary: "each endpoint in turn",
			Source: "gateway-api-inference-extension pkg/lwepp at 84436a96; production-stack routing_logic.py at a6c01db0",
			config: "round-robin.yaml",
		},
		{
			Name: "random", Summary: "any endpoint, evenly",
			Source: "SMG policies random.rs at 73da68ca9; Envoy RANDOM",
			config: "random.yaml",
		},
		{
			Name: "least-requests", Summary: "fewest requests in flight",
			Source: "AIBrix least_request.go at e3e10f9e; llm-d-router active-request-scorer at ebab68792",
			config: "least-requests.yaml",
		},
		{
			Name: "two-choices", Summary: "of two endpoints at random the one with fewer requests in flight",
			Source:     "Mitzenmacher 2001; SMG policies power_of_two.rs at 73da68ca9; Envoy LEAST_REQUEST",
			config:     "two-choices.yaml",
			Parameters: []Parameter{{Name: "choices", Default: "2", Help: "endpoints drawn"}},
			Tuned:      []Params{{"choices": "3"}, {"choices": "4"}},
		},
		{
			Name: "least-tokens", Summary: "fewest prompt tokens in flight that are not computed yet",
			Source: "llm-d-router token-load-scorer at ebab68792, without a prefix index",
			config: "least-tokens.yaml",
		},
	}
}

// RoundRobin picks the candidates in turn, in the order of their ordinals. It is a scheduling.Picker.
type RoundRobin struct{ next int }

func roundRobinType() scheduling.PluginType {
	return scheduling.PluginType{
		Type: "sim-round-robin-picker", Summary: "Picks the candidates in turn.",
		New: func(*scheduling.Builder) (any, error) { return &RoundRobin{}, nil },
	}
}

// Pick implements scheduling.Picker.
func (p *RoundRobin) Pick(_ *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	e := candidates.Next(p.next)
	if e < 0 {
		e = candidates.Next(0)
	}
	if e < 0 {
		return picks
	}
	p.next = e + 1
	return append(picks, e)
}

type twoChoicesParameters struct {
	// Choices is how many candidates are drawn; at least 1.
	Choices int `yaml:"choices"`
}

// TwoChoices draws some candidates, all different, and picks the one with the highest total. It is a scheduling.Picker.
type TwoChoices struct {
	choices int
	stream  uint64
	drawn   []int
}

func twoChoicesType() scheduling.PluginType {
	return scheduling.PluginType{
		Type: "sim-two-choices-picker", Summary: "Draws two candidates and picks the one with the higher total.",
		Parameters: &twoChoicesParameters{Choices: 2},
		New: func(b *scheduling.Builder) (any, error) {
			p := twoChoicesParameters{Choices: 2}
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if p.Choices < 1 {
				return nil, fmt.Errorf("parameters.choices: must be >= 1, got %d", p.Choices)
			}
			return &TwoChoices{choices: p.Choices, stream: b.Stream()}, nil
		},
	}
}

// Pick implements scheduling.Picker. Of equal totals the one drawn first is picked.
func (p *TwoChoices) Pick(c *scheduling.Cycle, candidates scheduling.Set, totals []float64, picks []int) []int {
	p.drawn = p.drawn[:0]
	for e := range candidates.All() {
		p.drawn = append(p.drawn, e)
	}
	if len(p.drawn) == 0 {
		return picks
	}
	random, best := c.Rand(p.stream), -1
	for i := range min(p.choices, len(p.drawn)) {
		j := i + random.IntN(len(p.drawn)-i)
		p.drawn[i], p.drawn[j] = p.drawn[j], p.drawn[i]
		if best < 0 || totals[p.drawn[i]] > totals[best] {
			best = p.drawn[i]
		}
	}
	return append(picks, best)
}
