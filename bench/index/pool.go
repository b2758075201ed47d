package main

import (
	"math/rand/v2"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise"
)

const (
	blockSize    = 16
	promptBlocks = 256
	systemBlocks = 64 // all prompts begin with the same system prompt
)

// pool is an index with what its engines were told to hold.
type pool struct {
	index   *precise.Index
	engines []*bench
	prompts [][]uint32 // held by all, as far as each goes
	r       *rand.Rand
	held    int // (block, holder) pairs

	other     []uint32 // held by all too, and has nothing in common with those
	withHoles bool
}

// bench is an engine of the pool, with the name of the last block of the system prompt.
type bench struct {
	kvevents.Sink
	system uint64
}

// newPool fills an index: prompts that begin alike and that every holder has, each to a random depth, and single holders'
// prompts of as many distinct blocks as are asked for. With holes, each holder lacks one in 50 blocks of the shared
// prompts.
func newPool(holders, shared, blocks int, holes bool) *pool {
	p := &pool{index: precise.NewIndex(blockhash.SeedOf("bench")), r: rand.New(rand.NewPCG(1, 2)), withHoles: holes}
	for range holders {
		_, sink := p.index.Open()
		p.engines = append(p.engines, &bench{Sink: sink})
	}
	p.other = p.tokens(promptBlocks)
	system := p.tokens(systemBlocks)
	for _, e := range p.engines {
		p.store(e, 0, p.other)
		names := p.store(e, 0, system)
		e.system = names[len(names)-1]
	}
	for range shared {
		p.share(system, p.tokens(promptBlocks-systemBlocks))
	}
	for i := 0; i < blocks; i += promptBlocks {
		p.store(p.engines[p.r.IntN(holders)], 0, p.tokens(promptBlocks))
	}
	return p
}

// share makes all engines hold a prompt that follows the system prompt, one of them all of it.
func (p *pool) share(system, prompt []uint32) {
	owner := len(p.prompts) % len(p.engines)
	p.prompts = append(p.prompts, append(append([]uint32(nil), system...), prompt...))
	for i, e := range p.engines {
		n := 1 + p.r.IntN(len(prompt)/blockSize)
		if i == owner {
			n = len(prompt) / blockSize
		}
		for _, name := range p.store(e, e.system, prompt[:n*blockSize]) {
			if p.withHoles && i != owner && p.r.IntN(50) == 0 {
				p.remove(e, name)
			}
		}
	}
}

// change is a prompt's store and its removal.
type change struct{ store, remove *wire.Batch }

// churned are changes of prompts that nobody looks up.
func (p *pool) churned() []change {
	changes := make([]change, 64)
	for i := range changes {
		names := make([]uint64, promptBlocks)
		removals := make([]wire.Event, promptBlocks)
		for k := range names {
			names[k] = p.r.Uint64()
			removals[promptBlocks-1-k] = wire.Event{Kind: wire.Removed, Hashes: names[k : k+1], Medium: "gpu"}
		}
		changes[i] = change{
			store: &wire.Batch{Events: []wire.Event{{
				Kind: wire.Stored, Hashes: names, Tokens: p.tokens(promptBlocks), BlockSize: blockSize, Medium: "gpu",
			}}},
			remove: &wire.Batch{Events: removals},
		}
	}
	return changes
}

func (p *pool) tokens(blocks int) []uint32 {
	t := make([]uint32, blocks*blockSize)
	for i := range t {
		t[i] = p.r.Uint32N(150_000)
	}
	return t
}

// store tells of a prompt's blocks under new names, after a parent, 0 for none.
func (p *pool) store(to kvevents.Sink, parent uint64, tokens []uint32) []uint64 {
	names := make([]uint64, len(tokens)/blockSize)
	for i := range names {
		names[i] = p.r.Uint64()
	}
	to.Apply(&wire.Batch{Events: []wire.Event{{
		Kind: wire.Stored, Hashes: names, Tokens: tokens, BlockSize: blockSize, Medium: "gpu", Parent: parent, HasParent: parent != 0,
	}}})
	p.held += len(names)
	return names
}

func (p *pool) remove(from kvevents.Sink, name uint64) {
	from.Apply(&wire.Batch{Events: []wire.Event{{Kind: wire.Removed, Hashes: []uint64{name}, Medium: "gpu"}}})
	p.held--
}

func (p *pool) sinks() []kvevents.Sink {
	sinks := make([]kvevents.Sink, len(p.engines))
	for i, e := range p.engines {
		sinks[i] = e.Sink
	}
	return sinks
}
