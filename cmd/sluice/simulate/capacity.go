package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// Capacity is the most that a fleet takes of a scenario with a candidate.
type Capacity struct {
	Scenario  string `json:"scenario"`
	Candidate string `json:"candidate"`
	// Speed is the highest speed of the trace, or Rate the highest rate of the synthetic workload in requests per second, at which
	// the goodput is Share at least.
	Speed float64 `json:"speed,omitzero"`
	Rate  float64 `json:"rate,omitzero"`
	// Goodput is the goodput there.
	Goodput float64 `json:"goodput"`
	// Runs is how many it took to find.
	Runs int `json:"runs"`
}

// How the capacity is searched.
const (
	// goodShare is the goodput that counts as holding the load.
	goodShare = 0.9
	// step is by what the load grows or shrinks until it is bracketed.
	step = 1.4
	// precision is how far apart the load that is held and the one that is not are at the end.
	precision = 1.02
	// maxSteps is how many such steps there are, and maxProbes how many runs a search may take.
	maxSteps, maxProbes = 10, 18
)

// Capacities searches the capacity of every scenario with every candidate that runs in it, with one seed. It does not start from
// nothing: a load near the capacity saves runs. progress is as Complete's, with searches for runs. The plan must be valid.
func (p *Plan) Capacities(ctx context.Context, progress func(Progress)) ([]Capacity, error) {
	var searches []Run
	for _, r := range p.Runs() {
		if r.Seed == 1 {
			searches = append(searches, r)
		}
	}
	found := make([]Capacity, len(searches))
	tell := newTeller(len(searches), 0, progress)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.workers())
	for i, r := range searches {
		g.Go(func() (err error) {
			if found[i], err = capacity(ctx, r); err != nil {
				return fmt.Errorf("%s, %s: %w", r.Scenario.Name, r.Candidate.Name, err)
			}
			tell.done()
			return nil
		})
	}
	err := g.Wait()
	tell.end()
	return found, err
}

func capacity(ctx context.Context, r Run) (Capacity, error) {
	c := Capacity{Scenario: r.Scenario.Name, Candidate: r.Candidate.Name}
	at := r.Scenario.Speed
	if r.Scenario.B2B != nil {
		at = r.Scenario.B2B.PerSecond
	}
	low, high := 0.0, 0.0 // held, not held; 0: not known
	for ; c.Runs < maxProbes && ((low == 0 || high == 0) && c.Runs < maxSteps || low > 0 && high > 0 && high/low > precision); c.Runs++ {
		if err := ctx.Err(); err != nil { // a short run may end without having noticed
			return c, err
		}
		goodput, err := r.Scenario.atLoad(at).holds(ctx, r.Candidate)
		if err != nil {
			return c, err
		}
		if goodput >= goodShare {
			low, c.Goodput = at, goodput
		} else {
			high = at
		}
		switch {
		case high == 0:
			at = low * step
		case low == 0:
			at = high / step
		default:
			at = (low + high) / 2
		}
	}
	switch {
	case low == 0:
		return c, fmt.Errorf("the goodput is below %v %% down to a load of %.3g", 100*goodShare, high)
	case high == 0:
		return c, fmt.Errorf("the goodput is %v %% or more up to a load of %.3g", 100*goodShare, low)
	}
	if r.Scenario.B2B != nil {
		c.Rate = low
	} else {
		c.Speed = low
	}
	return c, nil
}

// atLoad is the scenario at another speed, or rate of the synthetic workload.
func (s *Scenario) atLoad(v float64) *Scenario {
	next := *s
	if s.B2B == nil {
		next.Speed = v
		return &next
	}
	b := *s.B2B
	b.PerSecond = v
	next.B2B = &b
	return &next
}

// holds is the goodput of a run; 0 where it was given up because it could not be good enough any more.
func (s *Scenario) holds(ctx context.Context, c *Candidate) (float64, error) {
	within, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var j *judge
	r, _, err := s.run(within, c, 1, func(p fleet.Picker, requests int) fleet.Picker {
		if j == nil { // all replicas have one
			j = newJudge(s, requests, giveUp)
		}
		return judged{p, j}
	})
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() == nil:
		return 0, nil
	case err != nil:
		return 0, err
	}
	return r.Summarise(s.WarmUp, s.Objective).Goodput, nil
}

// judge counts requests that miss the objective, and gives up once they are too many.
type judge struct {
	objective fleet.Objective
	first     int // request that counts
	left      int // how many more may miss it
	giveUp    func()
	settled   []bool // by request number: it has its first token, or has missed the objective
	came      []time.Duration
	oldest    int // request that may not be settled
}

func newJudge(s *Scenario, requests int, giveUp func()) *judge {
	first := int(s.WarmUp * float64(requests))
	return &judge{objective: s.Objective, first: first, left: int((1 - goodShare) * float64(requests-first)), giveUp: giveUp}
}

func (j *judge) miss(number int) {
	if number < j.first {
		return
	}
	if j.left--; j.left < 0 {
		j.giveUp()
	}
}

// arrived notes a request, and which of those before it wait for too long already.
func (j *judge) arrived(now time.Duration) {
	j.came, j.settled = append(j.came, now), append(j.settled, false)
	for ; j.oldest < len(j.came) && (j.settled[j.oldest] || now-j.came[j.oldest] > j.objective.TTFT); j.oldest++ {
		if !j.settled[j.oldest] {
			j.settled[j.oldest] = true
			j.miss(j.oldest)
		}
	}
}

// judged is a picker whose requests a judge looks at.
type judged struct {
	fleet.Picker
	judge *judge
}

// Pick implements fleet.Picker.
func (p judged) Pick(now time.Duration, r *fleet.Request) int {
	p.judge.arrived(now)
	return p.Picker.Pick(now, r)
}

// FirstToken implements fleet.Picker.
func (p judged) FirstToken(now time.Duration, r *fleet.Request) {
	if j := p.judge; !j.settled[r.Number] {
		j.settled[r.Number] = true
		if now-r.At > j.objective.TTFT {
			j.miss(r.Number)
		}
	}
	p.Picker.FirstToken(now, r)
}

// Token implements fleet.TokenFollower.
func (p judged) Token(now time.Duration, r *fleet.Request) {
	if t, ok := p.Picker.(fleet.TokenFollower); ok {
		t.Token(now, r)
	}
}

// Close closes the picker.
func (p judged) Close() error {
	if c, ok := p.Picker.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

// WriteCapacities writes them for people.
func WriteCapacities(w io.Writer, all []Capacity, cells int) error {
	columns := []display.Column{
		{Head: "scenario"}, {Head: "candidate", Flexible: true}, {Head: "capacity", Right: true}, {Head: "goodput %", Right: true}, {Head: "runs", Right: true},
	}
	rows := make([]display.Row, len(all))
	for i, c := range all {
		load := fmt.Sprintf("speed %.3g", c.Speed)
		if c.Rate > 0 {
			load = fmt.Sprintf("%.3g/s", c.Rate)
		}
		rows[i].Cells = []string{display.Plain(c.Scenario), display.Plain(c.Candidate), load, fmt.Sprintf("%.1f", 100*c.Goodput), fmt.Sprint(c.Runs)}
	}
	for _, line := range display.Table(columns, rows, cells, false) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// WriteCapacitiesJSON writes them for programs.
func WriteCapacitiesJSON(w io.Writer, all []Capacity) error {
	return json.MarshalWrite(w, all, json.Deterministic(true), jsontext.WithIndent("  "))
}
