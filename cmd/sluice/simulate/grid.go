package simulate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"time"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/profile"
	"github.com/sluice-epp/sluice/sim/trace"
)

// LoadGrid reads a file that describes a plan, with the traces and configurations that it names. The error has everything that
// is wrong with the file itself. Reading a decision log ends with ctx, and then the error is ctx's.
func LoadGrid(ctx context.Context, path string) (*Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseGrid(ctx, path, text)
}

// ParseGrid is LoadGrid for the text of a file. Paths in it are relative to the folder of name.
func ParseGrid(ctx context.Context, name string, text []byte) (*Plan, error) {
	g := gridFile{Seeds: 1}
	places, err := config.Decode(name, text, &g)
	if err != nil {
		return nil, err
	}
	r := &gridReader{ctx: ctx, places: places, folder: filepath.Dir(name), traces: map[string]*trace.Trace{}}
	plan := &Plan{Seeds: g.Seeds}
	if len(g.Scenarios) == 0 {
		r.faultf("scenarios", "must have one at least")
	}
	if len(g.Candidates) == 0 {
		r.faultf("candidates", "must have one at least")
	}
	for i := range g.Scenarios {
		plan.Scenarios = append(plan.Scenarios, r.scenarios(fmt.Sprintf("scenarios[%d]", i), merged(g.Scenarios[i], g.Defaults))...)
	}
	r.unique(len(plan.Scenarios), "scenarios", func(i int) string { return plan.Scenarios[i].Name })
	for i := range g.Candidates {
		plan.Candidates = append(plan.Candidates, r.candidates(fmt.Sprintf("candidates[%d]", i), &g.Candidates[i])...)
	}
	r.unique(len(plan.Candidates), "candidates", func(i int) string { return plan.Candidates[i].Name })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := r.faults.Err(); err != nil {
		return nil, err
	}
	return plan, nil
}

// merged is an entry with the defaults where it says nothing. What it says of the requests, and of their rate, is not mixed
// with what the defaults say.
func merged(e, defaults scenarioEntry) scenarioEntry {
	if e.Trace != nil || e.B2B != nil {
		defaults.Trace, defaults.B2B = nil, nil
	}
	if len(e.Rate)+len(e.Speed)+len(e.Load) > 0 {
		defaults.Rate, defaults.Speed, defaults.Load = nil, nil, nil
	}
	to, from := reflect.ValueOf(&e).Elem(), reflect.ValueOf(defaults)
	for i := range to.NumField() {
		if to.Field(i).IsNil() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return e
}

// gridReader gathers what is wrong with a grid.
type gridReader struct {
	ctx    context.Context //nolint:containedctx // of one reading
	places *config.Places
	folder string
	traces map[string]*trace.Trace
	faults config.Faults
	// multiplied is how many scenarios the lists make.
	multiplied int
}

func (r *gridReader) faultf(path, format string, args ...any) {
	r.faults = append(r.faults, r.places.Fault(path, format, args...))
}

func (r *gridReader) file(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(r.folder, p)
}

func (r *gridReader) unique(n int, list string, name func(int) string) {
	seen := map[string]bool{}
	for i := range n {
		if name(i) != "" && seen[name(i)] {
			r.faultf(list, "two of them are called %q", name(i))
		}
		seen[name(i)] = true
	}
}

// candidates are those that an entry stands for.
func (r *gridReader) candidates(at string, e *candidateEntry) []Candidate {
	for i, pattern := range e.Scenarios {
		if _, err := path.Match(pattern, ""); err != nil {
			r.faultf(fmt.Sprintf("%s.scenarios[%d]", at, i), "%v: %q", err, pattern)
		}
	}
	var all []Candidate
	switch {
	case e.Policy == "" && e.Tuned:
		r.faultf(at+".tuned", "is of policies")
	case e.Policy == "":
		all = []Candidate{r.configuration(at, e)}
	case e.Config != "" || e.Text != "" || len(e.Set)+len(e.Weights) > 0:
		r.faultf(at+".policy", "must be alone: config, text, set and weights are of configurations")
	case e.Tuned && e.Name != "":
		r.faultf(at+".name", "must be absent with tuned: each setting has a name of its own")
	default:
		all = r.policies(at, e)
	}
	for i := range all {
		all[i].Scenarios = e.Scenarios
	}
	return all
}

// policies are a policy, and where it is to be tuned all its settings.
func (r *gridReader) policies(at string, e *candidateEntry) []Candidate {
	p, err := policies.Parse(e.Policy)
	if err != nil {
		r.faultf(at+".policy", "%v", err)
		return nil
	}
	all := []policies.Policy{p}
	if e.Tuned {
		for _, params := range p.Tuned {
			tuned, err := p.With(params)
			if err != nil {
				r.faultf(at+".tuned", "%v", err)
			}
			all = append(all, tuned)
		}
	}
	var candidates []Candidate
	for i := range all {
		c := FromPolicy(&all[i])
		if e.Name != "" {
			c.Name = e.Name
		}
		if err := c.Check(); err != nil {
			r.faultf(at+".policy", "%v", err)
		}
		candidates = append(candidates, c)
	}
	return candidates
}

// configuration is the candidate of an entry that is no policy.
func (r *gridReader) configuration(at string, e *candidateEntry) Candidate {
	c := BuiltIn()
	switch {
	case e.Config != "" && e.Text != "":
		r.faultf(at+".text", "must be absent beside config")
	case e.Config != "":
		var err error
		if c, err = FromFile(filepath.Base(e.Config), r.file(e.Config)); err != nil {
			r.faultf(at+".config", "%v", err)
			return c
		}
	case e.Text != "":
		c.Name, c.At, c.Text = "", at+".text", []byte(e.Text)
	}
	if len(e.Set)+len(e.Weights) > 0 {
		var err error
		if c.Text, err = config.Changed(c.Text, e.Set, e.Weights); err != nil {
			r.faultf(at, "%v", err)
			return c
		}
		c.At += " as " + at + " changes it"
	}
	if e.Name != "" {
		c.Name = e.Name
	} else if e.Text != "" || len(e.Set)+len(e.Weights) > 0 {
		r.faultf(at+".name", "is missing")
	}
	if err := c.Check(); err != nil {
		var faults config.Faults
		if errors.As(err, &faults) {
			r.faults = append(r.faults, faults...)
		} else {
			r.faultf(at, "%v", err)
		}
	}
	return c
}

// or is what a pointer points to, or else a default.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// scenarios are those that an entry stands for.
func (r *gridReader) scenarios(at string, e scenarioEntry) []Scenario {
	before := len(r.faults)
	base := Scenario{
		Name: or(e.Name, ""), From: or(e.From, 0), To: or(e.To, 0), Speed: 1, Jitter: or(e.Jitter, 0), Pickers: or(e.Replicas, 1),
		Sight:     fleet.Sight{EventLoss: or(e.EventLoss, 0), ScrapeInterval: or(e.Scrape, 50*time.Millisecond)},
		WarmUp:    or(e.WarmUp, 0.1),
		Objective: fleet.Objective{TTFT: or(e.SLOTTFT, fleet.DefaultObjective.TTFT), TPOT: or(e.SLOTPOT, fleet.DefaultObjective.TPOT)},
	}
	if base.Name == "" {
		r.faultf(at+".name", "is missing")
	}
	for i := range e.Shifts {
		base.Shifts = append(base.Shifts, e.Shifts[i].shift())
	}
	if !r.fits(at, &e) {
		return nil
	}
	r.workload(at, &base, &e)
	r.profile(at, &base, &e)
	all := r.loads(at, base, &e)
	for i := range all {
		all[i].Family = base.Name // and from here on what else they are called by
	}
	all = product(all, e.Endpoints, []int{8}, func(s *Scenario, n int) string {
		s.Engines = make([]Engine, max(0, min(n, maxEngines+1)))
		return fmt.Sprintf("%d endpoints", n)
	})
	all = product(all, e.KVTokens, []int{307_200}, func(s *Scenario, tokens int) string {
		engines := make([]Engine, len(s.Engines))
		for i := range engines {
			engines[i] = Engine{KVTokens: tokens, Slower: 1}
		}
		s.Engines = engines
		return "KV " + short(float64(tokens))
	})
	all = product(all, e.EventDelay, []time.Duration{20 * time.Millisecond}, func(s *Scenario, d time.Duration) string {
		s.Sight.EventDelay = d
		return fmt.Sprintf("events %v late", d)
	})
	for i := range all {
		r.engines(at, &all[i], e.Engines)
		for j := range all[i].Shifts {
			if err := all[i].Shifts[j].problem(len(all[i].Engines)); err != nil && len(r.faults) == before {
				r.faultf(fmt.Sprintf("%s.shifts[%d]", at, j), "%v", err)
			}
		}
		if err := all[i].Validate(); err != nil && len(r.faults) == before {
			r.faultf(at, "%v", err)
		}
	}
	return all
}

// maxScenarios is how many scenarios the lists of a grid may be multiplied out to.
const maxScenarios = 10_000

// fits reports whether an entry's lists make few enough scenarios, together with those of the entries before it.
func (r *gridReader) fits(at string, e *scenarioEntry) bool {
	n := 1
	for _, values := range []int{len(e.Speed) + len(e.Rate) + len(e.Load), len(e.Endpoints), len(e.KVTokens), len(e.EventDelay)} {
		if n *= max(1, values); n > maxScenarios {
			break
		}
	}
	if r.multiplied += n; r.multiplied > maxScenarios {
		r.faultf(at, "its lists make more than %d scenarios of the grid: a run of each would never end", maxScenarios)
		return false
	}
	return true
}

// engines changes the endpoints that differ.
func (r *gridReader) engines(at string, s *Scenario, entries []engineEntry) {
	for i, e := range entries {
		if e.Endpoint < 0 || e.Endpoint >= len(s.Engines) {
			r.faultf(fmt.Sprintf("%s.engines[%d].endpoint", at, i), "must be from 0 to %d, got %d", len(s.Engines)-1, e.Endpoint)
			continue
		}
		engine := &s.Engines[e.Endpoint]
		engine.KVTokens, engine.Slower = or(e.KVTokens, engine.KVTokens), or(e.Slower, engine.Slower)
	}
}

// workload reads the trace, or takes the synthetic workload.
func (r *gridReader) workload(at string, s *Scenario, e *scenarioEntry) {
	switch {
	case (e.Trace == nil) == (e.B2B == nil):
		r.faultf(at, "must have either trace or b2b")
	case e.Trace != nil:
		file := r.file(*e.Trace)
		if r.traces[file] == nil {
			t, err := OpenTrace(r.ctx, file)
			if err != nil {
				r.faultf(at+".trace", "%v", err)
				return
			}
			r.traces[file] = t
		}
		s.Trace = r.traces[file]
	default:
		b := trace.DefaultB2B()
		b.FreshQuestions = e.B2B.FreshQuestions
		for to, from := range map[*int]*int{
			&b.Customers: e.B2B.Customers, &b.UsersPerCustomer: e.B2B.UsersPerCustomer, &b.SystemTokens: e.B2B.SystemTokens,
			&b.QuestionTokens: e.B2B.QuestionTokens, &b.AnswerTokens: e.B2B.AnswerTokens, &b.Requests: e.B2B.Requests,
		} {
			*to = or(from, *to)
		}
		s.B2B = &b
		if err := b.Validate(); err != nil {
			r.faultf(at+".b2b", "%v", err)
		}
	}
}

// profile reads what was measured of the engines.
func (r *gridReader) profile(at string, s *Scenario, e *scenarioEntry) {
	if e.Profile == nil {
		return
	}
	f, err := os.Open(r.file(*e.Profile))
	if err != nil {
		r.faultf(at+".profile", "%v", err)
		return
	}
	p, err := profile.Read(f)
	if err = errors.Join(err, f.Close()); err != nil {
		r.faultf(at+".profile", "%s: %v", *e.Profile, err)
		return
	}
	s.Profile, s.ProfileName = &p, filepath.Base(*e.Profile)
}

// loads are the scenarios of an entry's rates, speeds or loads.
func (r *gridReader) loads(at string, base Scenario, e *scenarioEntry) []Scenario {
	set := func(s *Scenario, v float64) {
		if s.B2B == nil {
			s.Speed = v
			return
		}
		b := *s.B2B
		b.PerSecond = v
		s.B2B = &b
	}
	given := 0
	for _, list := range [][]float64{e.Rate, e.Speed, e.Load} {
		if len(list) > 0 {
			given++
		}
		for _, v := range list {
			if !(v > 0) || math.IsInf(v, 0) {
				r.faultf(at, "rate, speed and load: must be > 0, got %v", v)
			}
		}
	}
	switch {
	case given > 1:
		r.faultf(at, "must have only one of rate, speed and load")
	case len(e.Rate) > 0 && base.B2B == nil:
		r.faultf(at+".rate", "is b2b's; a trace has a speed")
	case len(e.Speed) > 0 && base.B2B != nil:
		r.faultf(at+".speed", "is a trace's; b2b has a rate")
	case len(e.Load) > 0 && !(or(e.Capacity, 0) > 0):
		r.faultf(at+".load", "needs a capacity above 0, the speed or the rate that is full load")
	case len(e.Rate) > 0:
		return product([]Scenario{base}, e.Rate, nil, func(s *Scenario, v float64) string {
			set(s, v)
			s.Load, s.Axis, s.Value = v/or(e.Capacity, math.Inf(1)), "requests per second", v
			return fmt.Sprintf("%v/s", v)
		})
	case len(e.Load) > 0:
		return product([]Scenario{base}, e.Load, nil, func(s *Scenario, v float64) string {
			set(s, v**e.Capacity)
			s.Load, s.Axis, s.Value = v, "load, % of capacity", 100*v
			return fmt.Sprintf("%.4g %%", 100*v)
		})
	}
	return product([]Scenario{base}, e.Speed, []float64{1}, func(s *Scenario, v float64) string {
		if s.B2B == nil {
			set(s, v)
		}
		if len(e.Speed) > 0 {
			s.Load, s.Axis, s.Value = v/or(e.Capacity, math.Inf(1)), "speed", v
		}
		return fmt.Sprintf("×%v", v)
	})
}

// product is every scenario with every value. Where there are several values the names say which.
func product[T any](all []Scenario, values, otherwise []T, with func(*Scenario, T) string) []Scenario {
	if len(values) == 0 {
		values = otherwise
	}
	var next []Scenario
	for _, s := range all {
		for _, v := range values {
			changed := s
			if name := with(&changed, v); len(values) > 1 {
				changed.Name += " " + name
				changed.Family += " " + name
			}
			next = append(next, changed)
		}
	}
	return next
}

// short writes a number of tokens.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}
