package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/rates"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// history is a match producer that knows what it sent where: whole blocks of 16 token ids, chained from the head.
type history struct {
	match  scheduling.Key[scheduling.PrefixCacheMatchInfo]
	prompt scheduling.ValueKey[scheduling.TokenizedPrompt]
	mu     sync.Mutex
	sent   map[int]map[uint64]bool // by ordinal: the chained hashes of blocks
}

const blockTokens = 16

var historyType = scheduling.PluginType{
	Type: "history-producer",
	DefaultFor: []string{
		scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo](), scheduling.DataTypeOf[scheduling.TokenizedPrompt](),
	},
	New: func(b *scheduling.Builder) (any, error) {
		return &history{
			match:  scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b),
			prompt: scheduling.ProduceValue[scheduling.TokenizedPrompt](b),
			sent:   map[int]map[uint64]bool{},
		}, nil
	},
}

// chain is the chained hashes of the prompt's whole blocks. A prompt that came as text has its characters for tokens.
func chain(r *scheduling.Request) []uint64 {
	var hashes []uint64
	h := uint64(0)
	for i, token := range r.Tokens {
		h = scheduling.Mix64(h ^ uint64(token))
		if (i+1)%blockTokens == 0 {
			hashes = append(hashes, h)
		}
	}
	return hashes
}

func (p *history) Produce(_ context.Context, c *scheduling.Cycle) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	hashes := chain(c.Request)
	for e := range c.Candidates.All() {
		n := 0
		for n < len(hashes) && p.sent[e][hashes[n]] {
			n++
		}
		p.match.In(c).Set(e, scheduling.NewPrefixCacheMatchInfo(n, len(hashes), blockTokens))
	}
	p.prompt.In(c).Set(scheduling.TokenizedPrompt{Count: len(c.Request.Tokens), Exact: true})
	return nil
}

func (p *history) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := f.Endpoint.Ordinal
	if p.sent[e] == nil {
		p.sent[e] = map[uint64]bool{}
	}
	for _, h := range chain(c.Request) {
		p.sent[e][h] = true
	}
}
func (p *history) FirstToken(*scheduling.Flight, time.Duration) {}
func (p *history) Done(*scheduling.Flight, time.Duration)       {}

// herdRequest is the i-th of the requests that share their first 64 of 1,000 tokens.
func herdRequest(operation scheduling.Operation, id uint64, i int) *scheduling.Request {
	r := &scheduling.Request{ID: id, Operation: operation, Choices: 1, Stream: true}
	for t := range 1000 {
		token := uint32(t)
		if t >= 64 {
			token += uint32(1000 * (i + 1))
		}
		r.Tokens = append(r.Tokens, token)
	}
	r.TokenCount = len(r.Tokens)
	return r
}

// TestC21_Herd: 48 requests of 1,000 tokens that share their first 64, over 8 idle endpoints that answer none of them
// meanwhile. Whether they come one after another or all at once, each endpoint gets exactly 6, on every API.
func TestC21_Herd(t *testing.T) {
	const requests, endpoints = 48, 8
	want := slices.Repeat([]int{requests / endpoints}, endpoints)
	operations := []scheduling.Operation{
		scheduling.OperationCompletions, scheduling.OperationChat, scheduling.OperationResponses, scheduling.OperationMessages,
		scheduling.OperationEmbeddings, scheduling.OperationOther,
	}
	scorers := []string{"prefill-cost-scorer", "active-request-scorer"}
	for _, name := range scorers {
		for _, operation := range operations {
			for seed := range uint64(5) {
				t.Run(fmt.Sprintf("%s/%v/%d/in turn", name, operation, seed), func(t *testing.T) {
					h := newHerd(t, endpoints, name)
					for i := range requests {
						h.pick(h.begin(herdRequest(operation, seed<<32|uint64(i), i)))
					}
					h.expect(want)
				})
				t.Run(fmt.Sprintf("%s/%v/%d/at once", name, operation, seed), func(t *testing.T) {
					h := newHerd(t, endpoints, name)
					var cycles []*scheduling.Cycle
					for i := range requests {
						cycles = append(cycles, h.begin(herdRequest(operation, seed<<32|uint64(i), i)))
					}
					var wg sync.WaitGroup
					for _, c := range cycles {
						wg.Go(func() { h.pick(c) })
					}
					wg.Wait()
					h.expect(want)
				})
			}
		}
	}
}

// herd is a scheduler over idle endpoints, and the flights that it has in the air.
type herd struct {
	*testing.T
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	mu        sync.Mutex
	flights   []*scheduling.Flight
}

func newHerd(t *testing.T, endpoints int, scorerName string) *herd {
	t.Helper()
	h := &herd{T: t, pool: scheduling.NewPool()}
	types := slices.Concat([]scheduling.PluginType{historyType, ledger.Type()}, append(scorer.Types(), rates.Type()), picker.Types())
	s, err := scheduling.Build(types, schedtest.Config(nil, scorerName, "max-score-picker"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.scheduler = s
	t.Cleanup(h.pool.Watch(s.SnapshotChanged))
	var specs []scheduling.EndpointSpec
	for i := range endpoints {
		specs = append(specs, scheduling.EndpointSpec{Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
	}
	h.pool.Update(specs)
	return h
}

func (h *herd) begin(r *scheduling.Request) *scheduling.Cycle {
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	h.scheduler.Produce(h.Context(), c)
	return c
}

func (h *herd) pick(c *scheduling.Cycle) {
	f, err := h.scheduler.Commit(c)
	h.scheduler.End(c)
	if err != nil {
		h.Error(err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flights = append(h.flights, f)
}

// expect compares how many requests each endpoint has, ends them all and sees the ledger back at nothing.
func (h *herd) expect(want []int) {
	h.Helper()
	got := make([]int, len(want))
	for _, f := range h.flights {
		got[f.Endpoint.Ordinal]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		h.Errorf("requests per endpoint (-want +got):\n%s", diff)
	}
	for _, f := range h.flights {
		f.FirstToken(time.Second)
		f.Done(scheduling.Outcome{Status: 200}, 2*time.Second)
	}
	for l := range h.scheduler.Plugin(ledger.TypeName).(*ledger.Plugin).Loads() {
		if l.InFlightLoad != (scheduling.InFlightLoad{}) {
			h.Errorf("%s ends at %+v", l.Address, l.InFlightLoad)
		}
	}
}
