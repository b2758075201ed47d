package fleet_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
)

// blind sends requests to each engine in turn, or at random where random is not nil.
type blind struct {
	engines int
	next    int
	random  *rand.Rand
	told    map[int]string
}

func (b *blind) Pick(_ time.Duration, r *fleet.Request) int {
	b.told[r.Number] = "picked"
	if b.random != nil {
		return b.random.IntN(b.engines)
	}
	b.next++
	return (b.next - 1) % b.engines
}

func (b *blind) FirstToken(_ time.Duration, r *fleet.Request) { b.told[r.Number] += " first" }
func (b *blind) Done(_ time.Duration, r *fleet.Request)       { b.told[r.Number] += " done" }

// poisson is a trace of n requests of one block, all different, that come at random at a mean rate per second.
func poisson(n int, rate float64, output int) *trace.Trace {
	random := rand.New(rand.NewPCG(1, 2))
	t := &trace.Trace{Name: "poisson", BlockTokens: 16}
	at := 0.0
	for i := range n {
		at += random.ExpFloat64() / rate
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(at * float64(time.Second)), Blocks: []uint64{uint64(i)}, PromptTokens: 16, OutputTokens: output,
		})
	}
	return t
}

func params() sim.Params {
	p := sim.DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxWaiting = 16, 100_000, 1_000_000
	return p
}

// Engines that serve one request at a time, each in the same time, are M/D/1 queues: with a load of ρ and a service time of D a
// request takes D + ρD/(2(1−ρ)) on average (Pollaczek and Khinchine).
func TestQueueingLimit(t *testing.T) {
	const service, engines = 20 * time.Millisecond, 4
	for _, load := range []float64{0.3, 0.6, 0.85} {
		p := params()
		p.MaxSeqs, p.Cost = 1, sim.StepCost{Base: service.Seconds()}
		c := fleet.Config{
			Trace: poisson(60_000, engines*load/service.Seconds(), 1), Engines: []sim.Params{p, p, p, p},
			NewPicker: func(*fleet.View) (fleet.Picker, error) {
				return &blind{engines: engines, random: rand.New(rand.NewPCG(3, 4)), told: map[int]string{}}, nil
			},
		}
		r, err := fleet.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		want := service.Seconds() * (1 + load/(2*(1-load)))
		if got := r.Summarise(0.1, fleet.DefaultObjective).TTFTMean; math.Abs(got/want-1) > 0.05 {
			t.Errorf("load %v: %.4f s, want %.4f", load, got, want)
		}
	}
}

// The same seed makes the same run; and whatever happens, a picker is told of each request's first token and end, in order.
func TestRunsAreRepeatable(t *testing.T) {
	run := func(seed uint64) *fleet.Result {
		b := &blind{engines: 2, told: map[int]string{}}
		c := fleet.Config{
			Trace: poisson(2000, 50, 20), Engines: []sim.Params{params(), params()}, Seed: seed, Pickers: 1,
			Sight:     fleet.Sight{EventDelay: 10 * time.Millisecond, EventLoss: 0.1, ScrapeInterval: 50 * time.Millisecond},
			NewPicker: func(*fleet.View) (fleet.Picker, error) { return b, nil },
		}
		r, err := fleet.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Samples) != 2000 || len(b.told) != 2000 {
			t.Fatalf("%d samples, %d requests told of", len(r.Samples), len(b.told))
		}
		for number, told := range b.told {
			if told != "picked first done" {
				t.Fatalf("request %d: %s", number, told)
			}
		}
		return r
	}
	if diff := cmp.Diff(run(1), run(1)); diff != "" {
		t.Error(diff)
	}
}

// An engine that becomes slower is slower from then on.
func TestShift(t *testing.T) {
	c := fleet.Config{
		Trace: poisson(2000, 20, 1), Engines: []sim.Params{params()},
		NewPicker: func(*fleet.View) (fleet.Picker, error) { return &blind{engines: 1, told: map[int]string{}}, nil },
	}
	span := c.Trace.Span()
	c.Shifts = []fleet.Shift{{At: span / 2, Engine: 0, Slower: 3}}
	r, err := fleet.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	var before, after []time.Duration
	for _, s := range r.Samples {
		if s.At < span/2 {
			before = append(before, s.TTFT)
		} else {
			after = append(after, s.TTFT)
		}
	}
	if b, a := average(before), average(after); a < 2*b {
		t.Errorf("%v before, %v after", b, a)
	}
}

// Noise changes how long steps take, and not how long they take on average by more than its own square; without it nothing is drawn.
func TestNoise(t *testing.T) {
	run := func(noise float64) (r *fleet.Result) {
		r, err := fleet.Run(fleet.Config{
			Trace: poisson(2000, 2, 1), Engines: []sim.Params{params()}, Noise: noise,
			NewPicker: func(*fleet.View) (fleet.Picker, error) { return &blind{engines: 1, told: map[int]string{}}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	plain, noisy := run(0), run(0.05)
	if diff := cmp.Diff(noisy, run(0.05)); diff != "" {
		t.Errorf("the same seed, another run: %s", diff)
	}
	var ratios []float64
	sum := 0.0
	for i, s := range noisy.Samples {
		ratio := s.TTFT.Seconds() / plain.Samples[i].TTFT.Seconds()
		ratios = append(ratios, ratio)
		sum += ratio
	}
	mean, squares := sum/float64(len(ratios)), 0.0
	for _, r := range ratios {
		squares += (r - mean) * (r - mean)
	}
	if deviation := math.Sqrt(squares / float64(len(ratios))); math.Abs(mean-1) > 0.005 || math.Abs(deviation-0.05) > 0.005 {
		t.Errorf("steps take %.4f ± %.4f of their time, want 1 ± 0.05", mean, deviation)
	}
}

func average(all []time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}

// What cannot be served is counted, and does not hold up the end.
func TestWhatIsNotServed(t *testing.T) {
	long := poisson(10, 100, 5)
	long.Requests[3].OutputTokens = 1 << 20 // no engine takes it
	refuses := 0
	r, err := fleet.Run(fleet.Config{
		Trace: long, Engines: []sim.Params{params()},
		NewPicker: func(*fleet.View) (fleet.Picker, error) {
			return picker{func(n int) int { refuses++; return -(n % 2) }}, nil
		},
	})
	if err != nil || r.NoPick != 5 || r.Refused != 0 || len(r.Samples) != 5 {
		t.Errorf("%v: %d without a pick, %d refused, %d served", err, r.NoPick, r.Refused, len(r.Samples))
	}
	r, err = fleet.Run(fleet.Config{
		Trace: long, Engines: []sim.Params{params()},
		NewPicker: func(*fleet.View) (fleet.Picker, error) { return picker{func(int) int { return 0 }}, nil },
	})
	if err != nil || r.Refused != 1 || len(r.Samples) != 9 {
		t.Errorf("%v: %d refused, %d served", err, r.Refused, len(r.Samples))
	}
}

type picker struct{ pick func(number int) int }

func (p picker) Pick(_ time.Duration, r *fleet.Request) int { return p.pick(r.Number) }
func (picker) FirstToken(time.Duration, *fleet.Request)     {}
func (picker) Done(time.Duration, *fleet.Request)           {}

func TestFaultsOfARun(t *testing.T) {
	good := func() fleet.Config {
		return fleet.Config{
			Trace: poisson(3, 100, 1), Engines: []sim.Params{params()},
			NewPicker: func(*fleet.View) (fleet.Picker, error) { return picker{func(int) int { return 0 }}, nil },
		}
	}
	for name, change := range map[string]func(*fleet.Config){
		"no engines": func(c *fleet.Config) { c.Engines = nil },
		"no picker":  func(c *fleet.Config) { c.NewPicker = nil },
		"no trace":   func(c *fleet.Config) { c.Trace = nil },
		"loss":       func(c *fleet.Config) { c.Sight.EventLoss = math.NaN() },
		"delay":      func(c *fleet.Config) { c.Sight.EventDelay = -1 },
		"shift":      func(c *fleet.Config) { c.Shifts = []fleet.Shift{{Engine: 1, Slower: 1}} },
		"noise":      func(c *fleet.Config) { c.Noise = math.NaN() },
		"much noise": func(c *fleet.Config) { c.Noise = 1.1 },
		"bad engine": func(c *fleet.Config) { c.Engines[0].BlockSize = 0 },
		"picker fails": func(c *fleet.Config) {
			c.NewPicker = func(*fleet.View) (fleet.Picker, error) { return nil, fmt.Errorf("no") }
		},
	} {
		c := good()
		change(&c)
		if _, err := fleet.Run(c); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
	if _, err := fleet.Run(good()); err != nil {
		t.Error(err)
	}
}
