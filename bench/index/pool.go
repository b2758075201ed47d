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
	sharedBlocks = 64 // all prompts begin with the same system prompt
	prompts      = 64 // that all holders have, one as far as another
)

// pool is an index with what its engines were told to hold.
type pool struct {
	index   *precise.Index
	sinks   []kvevents.Sink
	prompts [][]uint32 // held by all, as far as each goes
	r       *rand.Rand
	held    int // (block, holder) pairs

	other     []uint32 // held by all too, and has nothing in common with those
	withHoles bool
}

// newPool fills an index: prompts that every holder has, each to a random depth, and single holders' prompts of as many
// distinct blocks as are asked for. With holes, each holder lacks one in 50 blocks of the shared prompts.
func newPool(holders, blocks int, holes bool) *pool {
	p := &pool{index: precise.NewIndex(blockhash.SeedOf("bench")), r: rand.New(rand.NewPCG(1, 2)), withHoles: holes}
	for range holders {
		_, sink := p.index.Open()
		p.sinks = append(p.sinks, sink)
	}
	system := p.tokens(sharedBlocks)
	p.other = p.tokens(promptBlocks)
	p.share(p.other)
	p.prompts = nil
	for range prompts {
		p.share(append(append([]uint32(nil), system...), p.tokens(promptBlocks-sharedBlocks)...))
	}
	for i := 0; i < blocks; i += promptBlocks {
		p.held += len(p.store(p.sinks[p.r.IntN(holders)], p.tokens(promptBlocks)))
	}
	return p
}

// share makes all engines hold a prompt, one of them all of it.
func (p *pool) share(prompt []uint32) {
	owner := len(p.prompts) % len(p.sinks)
	p.prompts = append(p.prompts, prompt)
	for i, sink := range p.sinks {
		n := sharedBlocks + p.r.IntN(promptBlocks-sharedBlocks+1)
		if i == owner {
			n = promptBlocks
		}
		names := p.store(sink, prompt[:n*blockSize])
		p.held += len(names)
		for _, name := range names {
			if p.withHoles && p.r.IntN(50) == 0 {
				p.remove(sink, name)
				p.held--
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

// store tells a sink of a prompt's blocks under new names.
func (p *pool) store(sink kvevents.Sink, tokens []uint32) []uint64 {
	names := make([]uint64, len(tokens)/blockSize)
	for i := range names {
		names[i] = p.r.Uint64()
	}
	sink.Apply(&wire.Batch{Events: []wire.Event{{
		Kind: wire.Stored, Hashes: names, Tokens: tokens, BlockSize: blockSize, Medium: "gpu",
	}}})
	return names
}

func (p *pool) remove(sink kvevents.Sink, name uint64) {
	sink.Apply(&wire.Batch{Events: []wire.Event{{Kind: wire.Removed, Hashes: []uint64{name}, Medium: "gpu"}}})
}
