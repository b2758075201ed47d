package simulate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/profile"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Scenario is what candidates are compared in: requests, engines, and how well the picker sees them.
type Scenario struct {
	// Name is unique in a plan.
	Name string
	// Family is what scenarios share that differ in nothing but their load, and Axis what that load is, such as "speed"; both may
	// be empty. Value is how much it is.
	Family, Axis string
	Value        float64
	// Trace are the requests; nil: those of B2B, drawn anew with each seed.
	Trace *trace.Trace
	// B2B is the synthetic workload.
	B2B *trace.B2B
	// From and To are the part of the trace that is used, in shares of its span; To 0 is its end.
	From, To float64
	// Speed is how many times faster than recorded the requests come.
	Speed float64
	// Load is what Speed, or B2B's rate, is of the fleet's capacity; 0 where that is not known.
	Load float64
	// Jitter delays each request by up to so much, drawn by the seed.
	Jitter time.Duration
	// Engines are the endpoints.
	Engines []Engine
	// Profile is what was measured of all engines, in place of the model's own figures; it may be nil.
	Profile *profile.Profile
	// ProfileName is what it is called.
	ProfileName string
	// Pickers are how many replicas pick.
	Pickers int
	// Sight says how well they see the engines.
	Sight fleet.Sight
	// WarmUp is the share of requests that do not count, 0 to 1, at the beginning.
	WarmUp float64
	// Objective is what a request is to be served within.
	Objective fleet.Objective
	// Shifts are what changes in the middle of the run.
	Shifts []Shift
}

// Engine is an endpoint.
type Engine struct {
	// KVTokens is its KV cache, in tokens.
	KVTokens int
	// Slower is by what its steps take longer than the model says.
	Slower float64
}

// maxEngines is how many there may be.
const maxEngines = 1024

// Validate reports everything that cannot be, each with the name of its flag or key.
func (s *Scenario) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(s.Trace != nil || s.B2B != nil, "trace: is missing")
	check(s.From >= 0 && s.From < s.end() && s.end() <= 1, "from, to: must be 0 <= from < to <= 1, got %v and %v", s.From, s.end())
	check(s.Speed > 0 && s.Speed <= 1e6, "speed: must be > 0, got %v", s.Speed)
	check(s.Jitter >= 0 && s.Jitter <= trace.MaxSpan, "jitter: must be from 0s to %v, got %v", trace.MaxSpan, s.Jitter)
	check(len(s.Engines) > 0 && len(s.Engines) <= maxEngines, "endpoints: must be from 1 to %d, got %d", maxEngines, len(s.Engines))
	for i, e := range s.Engines {
		check(e.KVTokens >= 1, "endpoint %d: KV tokens: must be > 0, got %d", i, e.KVTokens)
		check(e.Slower > 0 && e.Slower <= 1e6, "endpoint %d: slower: must be > 0, got %v", i, e.Slower)
	}
	check(s.Pickers >= 1 && s.Pickers <= 64, "replicas: must be from 1 to 64, got %d", s.Pickers)
	check(s.Sight.EventDelay >= 0, "event delay: must be >= 0s, got %v", s.Sight.EventDelay)
	check(s.Sight.EventLoss >= 0 && s.Sight.EventLoss <= 1, "event loss: must be from 0 to 1, got %v", s.Sight.EventLoss)
	check(s.Sight.ScrapeInterval >= 0, "scrape interval: must be >= 0s, got %v", s.Sight.ScrapeInterval)
	check(s.WarmUp >= 0 && s.WarmUp < 1, "warm-up: must be from 0 to below 1, got %v", s.WarmUp)
	check(s.Objective.TTFT > 0 && s.Objective.TPOT > 0, "SLO: must be > 0s, got %v and %v", s.Objective.TTFT, s.Objective.TPOT)
	for i := range s.Shifts {
		err := s.Shifts[i].problem(len(s.Engines))
		check(err == nil, "shift %d: %w", i+1, err)
	}
	return errors.Join(errs...)
}

func (s *Scenario) end() float64 {
	if s.To == 0 {
		return 1
	}
	return s.To
}

// requests is the trace of a run, with the changes of engines' speeds, those that hold from the beginning included.
func (s *Scenario) requests(seed uint64) (*trace.Trace, []fleet.Shift, error) {
	t := s.Trace
	var err error
	if t == nil {
		if t, err = s.B2B.Trace(rand.New(rand.NewPCG(seed, 0xb2b))); err != nil {
			return nil, nil, err
		}
	}
	if s.From > 0 || s.end() < 1 {
		if t, err = t.Between(s.From, s.end()); err != nil {
			return nil, nil, err
		}
	}
	t, when, err := s.shifted(t, rand.New(rand.NewPCG(seed, 0xb0257)))
	if err != nil {
		return nil, nil, err
	}
	var shifts []fleet.Shift
	for i, e := range s.Engines {
		if e.Slower != 1 {
			shifts = append(shifts, fleet.Shift{Engine: i, Slower: e.Slower})
		}
	}
	for i, shift := range s.Shifts {
		if shift.Slower.Factor != 0 {
			at := time.Duration(float64(when[i]) / s.Speed)
			shifts = append(shifts, fleet.Shift{At: at, Engine: shift.Slower.Engine, Slower: shift.Slower.Factor})
		}
	}
	t, err = t.Jittered(s.Jitter, rand.New(rand.NewPCG(seed, 0x71773))).Faster(s.Speed)
	return t, shifts, err
}

// params are the engines for a trace: they take its longest request, as far as it fits into their caches.
func (s *Scenario) params(t *trace.Trace) []sim.Params {
	longest := 1
	for _, r := range t.Requests {
		longest = max(longest, r.PromptTokens+r.OutputTokens)
	}
	all := make([]sim.Params, len(s.Engines))
	for i, e := range s.Engines {
		p := s.model()
		p.BlockSize = t.BlockTokens
		p.NumBlocks = max(1, e.KVTokens/p.BlockSize)
		p.MaxModelLen = min(longest, p.NumBlocks*p.BlockSize)
		all[i] = p
	}
	return all
}

// model is the engine without what a trace says.
func (s *Scenario) model() sim.Params {
	p := sim.DefaultParams()
	p.MaxWaiting = 1 << 20
	if s.Profile != nil {
		s.Profile.Apply(&p)
	}
	return p
}
