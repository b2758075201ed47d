package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

// virtual is the built-in configuration's scheduler over endpoints that exist in virtual time only.
type virtual struct {
	testing.TB
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	now       time.Duration
	prompts   uint32
	mu        sync.Mutex
	ids       uint64
}

// newVirtual builds the profile that runs where no file is given.
func newVirtual(tb testing.TB, endpoints int) *virtual {
	tb.Helper()
	_, s, err := config.Open("", nil, Catalogue())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	p := &virtual{TB: tb, pool: scheduling.NewPool(), scheduler: s}
	tb.Cleanup(p.pool.Watch(s.SnapshotChanged))
	p.resize(endpoints)
	return p
}

// resize makes the pool have so many endpoints; those that were there stay.
func (p *virtual) resize(endpoints int) {
	specs := make([]scheduling.EndpointSpec, endpoints)
	for i := range specs {
		specs[i].Address = fmt.Sprintf("10.0.1.%d:8000", i+1)
	}
	p.pool.Update(specs)
}

// prompt is tokens that no other prompt has, after those of a beginning.
func (p *virtual) prompt(beginning []uint32, tokens int) []uint32 {
	p.prompts++
	all := append([]uint32(nil), beginning...)
	for len(all) < tokens {
		all = append(all, p.prompts<<8|uint32(len(all)&0xff))
	}
	return all
}

func (p *virtual) begin(operation scheduling.Operation, tokens []uint32) *scheduling.Cycle {
	p.mu.Lock()
	p.ids++
	id := p.ids
	p.mu.Unlock()
	c := p.scheduler.Begin(p.pool.Snapshot(), &scheduling.Request{
		ID: id, Operation: operation, Model: "m", Tokens: tokens, TokenCount: len(tokens), Choices: 1, Stream: true,
	}, p.now)
	p.scheduler.Produce(p.Context(), c)
	return c
}

// commit picks, or fails the test. An endpoint of at least 0 is the only one that may be picked.
func (p *virtual) commit(c *scheduling.Cycle, only int) *scheduling.Flight {
	if only >= 0 {
		set := scheduling.NewSet(p.pool.Snapshot().Len())
		set.Add(only)
		c.Restrict(set)
	}
	f, err := p.scheduler.Commit(c)
	p.scheduler.End(c)
	if err != nil {
		p.Error(err)
	}
	return f
}

// send sends a prompt to an endpoint.
func (p *virtual) send(only int, tokens []uint32) *scheduling.Flight {
	return p.commit(p.begin(scheduling.OperationCompletions, tokens), only)
}

// end ends a flight as an engine does that prefills so many tokens per second, had nothing cached and decodes 100 tokens.
func (p *virtual) end(f *scheduling.Flight, tokens int, throughput, noise float64) {
	ttft := time.Duration((0.02 + float64(tokens)/throughput) * noise * float64(time.Second))
	p.now += ttft
	f.FirstToken(p.now)
	p.now += time.Second
	f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: tokens, CompletionTokens: 100}}, p.now)
}

// learn serves so many requests on each endpoint, one after the other, whose times are off by 10 %.
func (p *virtual) learn(requests int, throughput float64) {
	random := rand.New(rand.NewPCG(1, 2))
	for range requests {
		for e := range p.pool.Snapshot().Len() {
			tokens := 200 + random.IntN(4000)
			p.end(p.send(e, p.prompt(nil, tokens)), tokens, throughput, 1+0.2*(random.Float64()-0.5))
		}
	}
}

// where is the endpoint that a prompt would go to, and what the gate says of it. Nothing is charged.
func (p *virtual) where(tokens []uint32) (int, scheduling.GateVerdict) {
	p.Helper()
	c := p.begin(scheduling.OperationCompletions, tokens)
	defer p.scheduler.End(c)
	p.scheduler.Preview(c)
	if len(c.Gates) != 1 || len(c.Picks) != 1 {
		p.Fatalf("%d gates, picks %v", len(c.Gates), c.Picks)
	}
	return c.Picks[0], c.Gates[0].Verdict
}

// The throughputs that deployments were measured to have, and the constant in the middle; 0: nothing is known yet.
var throughputs = []float64{0, 743, 15928, 27261}

// TestC20_BuiltInProfileWeighsTokens: what keeps a prompt on the endpoint A that holds a part of it is what the part saves,
// whatever has been learnt of how fast engines are. B is idle.
func TestC20_BuiltInProfileWeighsTokens(t *testing.T) {
	const a, b = 0, 1
	for name, test := range map[string]struct {
		cached, prompt, lead int
		want                 int
		verdict              scheduling.GateVerdict
	}{
		"P1 stays on an A that is idle":                 {128, 160, 0, a, scheduling.GateHeld},
		"P1 leaves a busy A":                            {128, 160, 4000, b, scheduling.GateReleasedBreakEven},
		"P2 is below the threshold and still goes":      {60_000, 100_000, 0, a, scheduling.GateNoSticky},
		"P2 goes while A's lead is below what it saves": {60_000, 100_000, 59_000, a, scheduling.GateNoSticky},
		"P2 leaves beyond all that it can save":         {60_000, 100_000, 300_000, b, scheduling.GateNoSticky},
		"P3 has no block, and goes by load":             {0, 10, 4000, b, scheduling.GateNoSticky},
		"P4 sticks":                                     {1600, 1600, 1000, a, scheduling.GateHeld},
		"P4 is subject to the gate":                     {1600, 1600, 20_000, b, scheduling.GateReleasedBreakEven},
	} {
		for _, throughput := range throughputs {
			t.Run(fmt.Sprintf("%s, %v per second", name, throughput), func(t *testing.T) {
				p := newVirtual(t, 2)
				if throughput > 0 {
					p.learn(60, throughput)
				}
				beginning := p.prompt(nil, test.cached)
				if test.cached > 0 {
					p.end(p.send(a, beginning), test.cached, max(throughput, 1000), 1)
				}
				if test.lead > 0 {
					p.send(a, p.prompt(nil, test.lead))
				}
				got, verdict := p.where(p.prompt(beginning, test.prompt))
				if got != test.want || verdict != test.verdict {
					t.Errorf("goes to %d, the gate says %v; want %d, %v", got, verdict, test.want, test.verdict)
				}
			})
		}
	}
}

// TestC21_BuiltInProfileSpreadsAHerd: 48 requests at once over 8 idle endpoints that answer none of them meanwhile, whose first 64
// of 1,000 tokens are the same. What has been learnt of the endpoints, which are alike, sends nobody anywhere: neither noise
// nor that one of them is new.
func TestC21_BuiltInProfileSpreadsAHerd(t *testing.T) {
	const herd, endpoints = 48, 8
	for _, throughput := range throughputs {
		for _, operation := range []scheduling.Operation{
			scheduling.OperationCompletions, scheduling.OperationChat, scheduling.OperationResponses, scheduling.OperationMessages,
			scheduling.OperationEmbeddings, scheduling.OperationOther,
		} {
			t.Run(fmt.Sprintf("%v, %v per second", operation, throughput), func(t *testing.T) {
				p := newVirtual(t, endpoints-1)
				if throughput > 0 {
					p.learn(60, throughput)
				}
				p.resize(endpoints)
				shared := p.prompt(nil, 64)
				cycles := make([]*scheduling.Cycle, herd)
				for i := range cycles {
					cycles[i] = p.begin(operation, p.prompt(shared, 1000))
				}
				flights := make([]*scheduling.Flight, herd)
				var wg sync.WaitGroup
				for i, c := range cycles {
					wg.Go(func() { flights[i] = p.commit(c, -1) })
				}
				wg.Wait()
				each := make([]int, endpoints)
				for _, f := range flights {
					each[f.Endpoint.Ordinal]++
				}
				least, most := herd, 0
				for _, n := range each {
					least, most = min(least, n), max(most, n)
				}
				if most-least > 2 {
					t.Errorf("requests per endpoint: %v, want a spread of at most 2", each)
				}
			})
		}
	}
}

// TestC21_BuiltInProfileSpreadsCopies: copies of one prompt cost next to no prefill where it is cached, yet each makes the others
// decode longer. So they leave the endpoint that holds it once that costs more than computing it elsewhere, and not before.
func TestC21_BuiltInProfileSpreadsCopies(t *testing.T) {
	const endpoints, copies, tokens = 8, 800, 160
	for _, throughput := range throughputs {
		t.Run(fmt.Sprintf("%v per second", throughput), func(t *testing.T) {
			p := newVirtual(t, endpoints)
			if throughput > 0 {
				p.learn(60, throughput)
			}
			prompt := p.prompt(nil, tokens)
			first := p.send(-1, prompt)
			home := first.Endpoint // a flight that is done is another's
			p.end(first, tokens, max(throughput, 1000), 1)
			stay, away := 0, 0
			for range copies {
				if f := p.send(-1, prompt); f.Endpoint == home {
					stay++
				} else if away++; stay == 0 {
					t.Fatal("the first copy leaves")
				}
			}
			if even := copies / endpoints; stay < even || away < copies/2 {
				t.Errorf("%d of %d copies stay and %d leave, want at least %d and %d", stay, copies, away, even, copies/2)
			}
		})
	}
}
