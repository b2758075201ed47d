package simulation

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/trace"
)

// blockTokens is the size of a block of the traces, and of the engines' KV blocks.
const blockTokens = 128

// slower is by what the engines are slower than the default ones: a request then takes long against what a busy machine adds.
const slower = 8

// engines is the number of engines.
const engines = 6

// shape is a trace and the engines for it.
type shape struct {
	name  string
	trace *trace.Trace
	sim.Params
	others map[string]other // what differs enough from the shape to be told apart
}

// other changes what is simulated.
type other struct {
	params func(*sim.Params)
	policy string // instead of the usual one, where it is not empty
}

// vocabulary is how many token ids the traces use: the engines' tokenizer has them all.
const vocabulary = 1000

// names gives blocks names of which each half is a token id: they follow in the prompt as they are.
type names struct{ last uint64 }

func (n *names) next() uint64 {
	n.last++
	return n.last%vocabulary + n.last/vocabulary<<32
}

func (n *names) some(count int) []uint64 {
	all := make([]uint64, count)
	for i := range all {
		all[i] = n.next()
	}
	return all
}

func params() sim.Params {
	p := sim.DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxModelLen, p.MaxBatchedTokens = blockTokens, 2048, 32_768, 4096
	p.Cost.Base *= slower
	p.Cost.PrefillToken *= slower
	p.Cost.Attention *= slower
	p.Cost.DecodeSeq *= slower
	p.Cost.DecodeContext *= slower
	return p
}

// systemPrompts is a workload of many users of some customers: a long prompt for each customer, short questions.
func systemPrompts() shape {
	const customers, system, question = 18, 24, 5
	random, names := rand.New(rand.NewPCG(1, 1)), &names{}
	heads := make([][]uint64, customers)
	for i := range heads {
		heads[i] = names.some(system)
	}
	t := &trace.Trace{Name: "system prompts", BlockTokens: blockTokens}
	at := 0.0
	for range 150 {
		at += random.ExpFloat64() / 9.1
		head := heads[random.IntN(customers)]
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(at * float64(time.Second)), Blocks: append(head[:system:system], names.some(question)...),
			PromptTokens: (system+question)*blockTokens - random.IntN(blockTokens-2), OutputTokens: 4 + random.IntN(4),
		})
	}
	p := params()
	p.NumBlocks = 256 // nine prompts: much is evicted
	p.MaxModelLen = p.NumBlocks * p.BlockSize
	return shape{name: t.Name, trace: t, Params: p, others: map[string]other{
		"an eighth of the budget": {params: func(p *sim.Params) { p.MaxBatchedTokens /= 8 }},
		"slower prefill":          {params: func(p *sim.Params) { p.Cost.PrefillToken *= 1.25 }},
		"a third of the cache":    {params: func(p *sim.Params) { p.NumBlocks /= 3; p.MaxModelLen = p.NumBlocks * p.BlockSize }},
	}}
}

// conversations is a workload of long prompts that grow, some of them longer than an engine computes in a step.
func conversations() shape {
	random, names := rand.New(rand.NewPCG(2, 2)), &names{last: 100_000}
	t := &trace.Trace{Name: "conversations", BlockTokens: blockTokens}
	var talks [][]uint64
	at := 0.0
	for range 70 {
		at += random.ExpFloat64() / 3.6
		if len(talks) < 5 || random.IntN(4) == 0 {
			talks = append(talks, names.some(30+random.IntN(50)))
		}
		talk := &talks[max(0, len(talks)-1-random.IntN(6))]
		*talk = append((*talk)[:len(*talk):len(*talk)], names.some(2+random.IntN(12))...)
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(at * float64(time.Second)), Blocks: *talk,
			PromptTokens: len(*talk)*blockTokens - random.IntN(blockTokens-2), OutputTokens: 1 + random.IntN(8),
		})
	}
	return shape{name: t.Name, trace: t, Params: params(), others: map[string]other{
		"an eighth of the budget": {params: func(p *sim.Params) { p.MaxBatchedTokens /= 8 }},
		"slower prefill":          {params: func(p *sim.Params) { p.Cost.PrefillToken *= 1.25 }},
		"no ledger":               {policy: withoutLedger},
	}}
}

func shapes(t *testing.T) []shape {
	t.Helper()
	all := []shape{systemPrompts(), conversations()}
	for _, s := range all {
		if err := s.trace.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
