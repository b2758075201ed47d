package simulate

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
)

// What is found is held by a run that nobody gives up, and a little more is not.
func TestCapacities(t *testing.T) {
	p := plan().small(100)
	s := &p.Scenarios[0]
	s.Engines, s.Objective.TTFT = s.Engines[:2], 500*time.Millisecond
	p.Candidates = p.Candidates[2:]
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	goodput := func(s *Scenario) float64 {
		r, _, err := s.run(t.Context(), &p.Candidates[0], 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Summarise(s.WarmUp, s.Objective).Goodput
	}
	for _, from := range []float64{2, 160} { // below and above
		b := *s.B2B
		b.PerSecond = from
		s.B2B = &b
		found, err := p.Capacities(t.Context(), func(Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		c := found[0]
		if len(found) != 1 || c.Scenario != "b2b" || c.Candidate != "random" || c.Speed != 0 || c.Runs < 3 || c.Runs > maxProbes {
			t.Errorf("%+v", found)
		}
		if got := goodput(s.atLoad(c.Rate)); got < goodShare || got != c.Goodput {
			t.Errorf("at %v the goodput is %v, found was %v", c.Rate, got, c.Goodput)
		}
		if got := goodput(s.atLoad(c.Rate * 1.03)); got >= goodShare {
			t.Errorf("3 %% above %v the goodput is %v", c.Rate, got)
		}
	}
	recorded, err := s.B2B.Trace(rand.New(rand.NewPCG(1, 2))) // at 160 a second
	if err != nil {
		t.Fatal(err)
	}
	s.Trace, s.B2B = recorded, nil
	found, err := p.Capacities(t.Context(), func(Progress) {})
	if err != nil || found[0].Speed < 0.01 || found[0].Speed > 0.9 || found[0].Rate != 0 {
		t.Errorf("%v: %+v", err, found)
	}
	s.Objective = fleet.Objective{TTFT: time.Hour, TPOT: time.Hour}
	if _, err := p.Capacities(t.Context(), func(Progress) {}); err == nil || !strings.Contains(err.Error(), "b2b, random: the goodput is 90 % or more up to a load of") {
		t.Error(err)
	}
	s.Objective.TTFT, s.Speed = time.Nanosecond, 1
	if _, err := p.Capacities(t.Context(), func(Progress) {}); err == nil || !strings.Contains(err.Error(), "b2b, random: the goodput is below 90 % down to a load of") {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Capacities(over, func(Progress) {}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A judge gives up exactly when too many requests have missed the objective, those that still wait included.
func TestJudge(t *testing.T) {
	p := plan()
	p.Scenarios[0].WarmUp = 0.5
	gaveUp := 0
	j := newJudge(&p.Scenarios[0], 100, func() { gaveUp++ }) // 5 of the last 50 may miss
	on := judged{nobody{}, j}
	for i := range 100 {
		now := time.Duration(i) * time.Second
		on.Pick(now, request(i))
		if i%2 == 0 { // the others wait for ever
			on.FirstToken(now, request(i))
		}
		// 6 s after they came the 51st, 53rd, ... have waited for more than 5 s: the sixth of them is the 61st.
		if want := i >= 61+6; want != (gaveUp > 0) {
			t.Fatalf("after %d requests: gave up %d times", i+1, gaveUp)
		}
	}
	late := newJudge(&p.Scenarios[0], 100, func() { gaveUp = -1 })
	on = judged{nobody{}, late}
	for i := range 100 {
		on.Pick(0, request(i))
	}
	for i := range 60 {
		r := request(i)
		r.At = 0
		on.FirstToken(6*time.Second, r)
		if want := i >= 50+5; want != (gaveUp < 0) {
			t.Fatalf("after %d late tokens: %d", i+1, gaveUp)
		}
	}
}

type nobody struct{}

func (nobody) Pick(time.Duration, *fleet.Request) int   { return 0 }
func (nobody) FirstToken(time.Duration, *fleet.Request) {}
func (nobody) Done(time.Duration, *fleet.Request)       {}
func request(number int) *fleet.Request {
	return &fleet.Request{Request: &trace.Request{At: time.Duration(number) * time.Second}, Number: number}
}

func TestWriteCapacities(t *testing.T) {
	all := []Capacity{{"b2b", "a", 0, 12.345, 0.95, 7}, {"conversation", "b", 1.875, 0, 0.9, 6}}
	var text, out bytes.Buffer
	if err := errors.Join(WriteCapacities(&text, all, 100), WriteCapacitiesJSON(&out, all)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12.3/s", "speed 1.88", "95.0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	if !strings.Contains(out.String(), `"rate": 12.345`) || strings.Count(out.String(), "speed") != 1 {
		t.Error(out.String())
	}
}
