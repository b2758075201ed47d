// Package profile reads what of an engine's parameters was measured: how long its steps take, and how much it computes in one.
// `sluice fit` writes such files, `sluice engine` and `sluice simulate` take them.
package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/sim"
)

// Profile is what a file says; what it leaves out is nil.
type Profile struct {
	// MaxBatchedTokens is how many tokens a step computes, at most, and MaxSeqs for how many sequences.
	MaxBatchedTokens *int `yaml:"maxBatchedTokens,omitempty"`
	MaxSeqs          *int `yaml:"maxSeqs,omitempty"`
	// Cost is how long a step takes.
	Cost Cost `yaml:"cost"`
}

// Cost are the terms of [sim.StepCost], in seconds per unit.
type Cost struct {
	Base          *float64 `yaml:"base,omitempty"`
	PrefillToken  *float64 `yaml:"prefillToken,omitempty"`
	Attention     *float64 `yaml:"attention,omitempty"`
	DecodeSeq     *float64 `yaml:"decodeSeq,omitempty"`
	DecodeContext *float64 `yaml:"decodeContext,omitempty"`
	LoadToken     *float64 `yaml:"loadToken,omitempty"`
}

// maxBytes bounds a file.
const maxBytes = 1 << 16

// Of is the whole profile of an engine.
func Of(p sim.Params) Profile {
	c := &p.Cost
	return Profile{&p.MaxBatchedTokens, &p.MaxSeqs, Cost{
		&c.Base, &c.PrefillToken, &c.Attention, &c.DecodeSeq, &c.DecodeContext, &c.LoadToken,
	}}
}

// Read reads a file: YAML, of which unknown keys are faults. An error names the key and its line, or the value.
func Read(r io.Reader) (Profile, error) {
	var p Profile
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return p, fmt.Errorf("read profile: %w", err)
	}
	if len(text) > maxBytes {
		return p, fmt.Errorf("profile: longer than %d bytes", maxBytes)
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&p); err != nil {
		if errors.Is(err, io.EOF) {
			return p, errors.New("profile: is empty")
		}
		return p, fmt.Errorf("profile: %w", err)
	}
	err = p.validate()
	return p, err
}

func (p *Profile) validate() error {
	var errs []error
	for _, n := range []struct {
		name string
		v    *int
	}{{"maxBatchedTokens", p.MaxBatchedTokens}, {"maxSeqs", p.MaxSeqs}} {
		if n.v != nil && *n.v < 1 {
			errs = append(errs, fmt.Errorf("%s: must be > 0, got %d", n.name, *n.v))
		}
	}
	for _, c := range p.Cost.all() {
		if c.from != nil && !(*c.from >= 0 && !math.IsInf(*c.from, 1)) {
			errs = append(errs, fmt.Errorf("cost.%s: must be a finite number of seconds >= 0, got %v", c.name, *c.from))
		}
	}
	return errors.Join(errs...)
}

type term struct {
	name string
	from *float64
	to   func(*sim.StepCost) *float64
}

func (c *Cost) all() []term {
	return []term{
		{"base", c.Base, func(s *sim.StepCost) *float64 { return &s.Base }},
		{"prefillToken", c.PrefillToken, func(s *sim.StepCost) *float64 { return &s.PrefillToken }},
		{"attention", c.Attention, func(s *sim.StepCost) *float64 { return &s.Attention }},
		{"decodeSeq", c.DecodeSeq, func(s *sim.StepCost) *float64 { return &s.DecodeSeq }},
		{"decodeContext", c.DecodeContext, func(s *sim.StepCost) *float64 { return &s.DecodeContext }},
		{"loadToken", c.LoadToken, func(s *sim.StepCost) *float64 { return &s.LoadToken }},
	}
}

// Apply puts what the profile has in place of an engine's parameters. Of a smaller step MaxSeqs, where the profile leaves it out,
// is as many as the step has tokens.
func (p *Profile) Apply(to *sim.Params) {
	if p.MaxBatchedTokens != nil {
		to.MaxBatchedTokens = *p.MaxBatchedTokens
		to.MaxSeqs = min(to.MaxSeqs, to.MaxBatchedTokens)
	}
	if p.MaxSeqs != nil {
		to.MaxSeqs = *p.MaxSeqs
	}
	for _, c := range p.Cost.all() {
		if c.from != nil {
			*c.to(&to.Cost) = *c.from
		}
	}
}
