// Package approx provides approx-prefix-cache-producer: it estimates what each engine's prefix cache holds from what
// was sent there, with nothing but requests to go by. An index remembers per endpoint the block hashes of the prompts
// that it was picked for, in an LRU of the size of its cache.
package approx

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "approx-prefix-cache-producer"

// CacheConfig knows what engines say of the shape of their KV cache.
type CacheConfig interface {
	// CacheConfig returns an endpoint instance's block size in tokens and its number of blocks; ok is false where the
	// engine has not said. A number of blocks that is not positive is unknown.
	CacheConfig(ordinal int, generation uint64) (blockSizeTokens, numBlocks int, ok bool)
}

// Options are what the plugin is given by the process.
type Options struct {
	// CacheConfig serves autoTune; nil means that no engine says anything.
	CacheConfig CacheConfig
	// Needs, where not nil, is called while a producer with autoTune is built, and makes the producer depend on the
	// plugin that CacheConfig gets its answers from.
	Needs func(*scheduling.Builder)
	// Seed keys block hashes where hashSeed is not configured. The same in the whole process, so that a reload keeps
	// the index; see blockhash.NewSeed.
	Seed blockhash.Seed
	// Audits shows what engines report against what was predicted; nil means nobody does.
	Audits *audit.Collector
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer is where the index's metrics go; nil means nowhere.
	Registerer prometheus.Registerer
}

// Producer is the plugin.
type Producer struct {
	name    string
	params  Parameters
	seed    blockhash.Seed
	config  CacheConfig
	logger  *slog.Logger
	indexes *collector

	index   atomic.Pointer[index]
	prompts sync.Pool
	capped  atomic.Int64
	tuner   tuner

	audit    *audit.Table
	withdraw func() // takes the audit out of the metrics

	tokens scheduling.ValueKey[scheduling.TokenizedPrompt]
	blocks scheduling.ValueKey[promptBlocks]
	info   scheduling.Key[scheduling.PrefixCacheMatchInfo]
	learnt scheduling.StateKey[learnt]
}

// promptBlocks carries a request's hashes from Produce to Committed.
type promptBlocks struct{ *prompt }

// learnt is what a flight put into the index.
type learnt struct {
	prompt   *prompt
	on       *instance // nil: nothing was put in
	firstNew int
	promise  promise // stays until the end
}

func (f *Family) newProducer(b *scheduling.Builder, params Parameters, tokens scheduling.ValueKey[scheduling.TokenizedPrompt],
	column scheduling.Key[scheduling.PrefixCacheMatchInfo], previous *Producer) *Producer {
	o := f.options
	p := &Producer{name: b.Name, params: params, seed: o.Seed, config: o.CacheConfig, logger: o.Logger, indexes: f.indexes}
	if params.HashSeed != "" {
		p.seed = blockhash.SeedOf(params.HashSeed)
	}
	if params.AutoTune && o.Needs != nil {
		o.Needs(b)
	}
	p.tokens = tokens
	p.blocks = scheduling.ProduceValue[promptBlocks](b)
	p.info = column
	p.learnt = scheduling.KeepState[learnt](b)
	p.index.Store(p.firstIndex(previous))
	p.audit = &audit.Table{}
	if previous != nil {
		p.audit = previous.audit
	}
	p.withdraw = f.options.Audits.Add(p.name, audit.Approximate, p.audit)
	f.indexes.producers.Add(p.name, p)
	return p
}

// firstIndex is the index of the plugin that this one replaces where its hashes mean the same, else an empty one.
func (p *Producer) firstIndex(previous *Producer) *index {
	if previous != nil && previous.seed == p.seed {
		x := previous.index.Load()
		blockTokens := p.params.BlockSizeTokens
		if p.params.AutoTune && previous.params.AutoTune && p.config != nil {
			blockTokens = x.layout.BlockTokens()
		}
		if x.layout == p.params.layout(blockTokens) {
			x.setCapacity(p.params.LRUCapacityPerServer, p.params.AutoTune)
			return x
		}
	}
	p.logger.Info("prefix index starts empty", "producer", p.name, "block_size_tokens", p.params.BlockSizeTokens,
		"hash_seed_id", p.seed.ID())
	return newIndex(p.params.layout(p.params.BlockSizeTokens), p.params.LRUCapacityPerServer)
}

// Close takes the plugin's index out of the metrics.
func (p *Producer) Close() error {
	p.indexes.producers.Remove(p)
	p.withdraw()
	return nil
}

// Produce looks the prompt up and publishes match info for every candidate: one that holds nothing is known to hold
// nothing, and a prompt shorter than a block has no blocks.
func (p *Producer) Produce(_ context.Context, c *scheduling.Cycle) error {
	p.tune(c)
	x := p.index.Load()
	x.adopt(c.Snapshot)
	known, _ := p.tokens.In(c).Get()
	pr := p.take()
	pr.hash(x, p.seed, c.Request, known)
	if pr.capped && !c.Request.Trial {
		p.capped.Add(1)
	}
	x.lookup(c, pr, p.info.In(c))
	pr.lookedUp = true
	p.blocks.In(c).Set(promptBlocks{pr})
	return nil
}

// Prepare is Produce without the look-up, for a prompt that is known better: its text is only to be remembered for the
// time when it is not.
func (p *Producer) Prepare(c *scheduling.Cycle) {
	p.tune(c)
	x := p.index.Load()
	x.adopt(c.Snapshot)
	pr := p.take()
	pr.hash(x, p.seed, c.Request, scheduling.TokenizedPrompt{})
	p.blocks.In(c).Set(promptBlocks{pr})
}

func (p *Producer) take() *prompt {
	if pr, ok := p.prompts.Get().(*prompt); ok {
		return pr
	}
	return &prompt{}
}

func (p *Producer) giveBack(pr *prompt) {
	pr.index, pr.lookedUp = nil, false
	p.prompts.Put(pr)
}

// Committed records the prompt for the picked endpoint.
func (p *Producer) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	value := p.blocks.In(c)
	blocks, ok := value.Get()
	if !ok || blocks.prompt == nil {
		return
	}
	value.Set(promptBlocks{}) // the flight has it now
	state := p.learnt.Of(f)
	state.prompt = blocks.prompt
	p.promise(c, f, state)
	p.record(f, state)
}

func (p *Producer) record(f *scheduling.Flight, state *learnt) {
	x := state.prompt.index
	if state.on = x.instanceOf(f.Endpoint); state.on != nil {
		state.firstNew = x.record(state.on, state.prompt.hashes, uint32(f.ID))
	}
}

// Moved takes what the flight taught about the first endpoint back and records it for the one that served.
func (p *Producer) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	state := p.learnt.Of(f)
	if state.prompt == nil {
		return
	}
	p.takeBack(f, state)
	p.record(f, state)
}

func (p *Producer) takeBack(f *scheduling.Flight, state *learnt) {
	if state.on != nil {
		state.prompt.index.forget(state.on, state.prompt.hashes, state.firstNew, uint32(f.ID))
		state.on = nil
	}
}

// FirstToken settles what was recorded: the engine has computed the prompt.
func (p *Producer) FirstToken(f *scheduling.Flight, _ time.Duration) { p.settle(p.learnt.Of(f)) }

func (p *Producer) settle(state *learnt) {
	if state.prompt != nil {
		p.giveBack(state.prompt)
		*state = learnt{promise: state.promise}
	}
}

// Done settles what was recorded, unless the engine refused or failed the request before any token: then it holds
// nothing new, and a record would draw the prompt's next requests to an engine that fails.
func (p *Producer) Done(f *scheduling.Flight, _ time.Duration) {
	state := p.learnt.Of(f)
	if state.prompt != nil && failed(f.Outcome) {
		p.takeBack(f, state)
	}
	p.settle(state)
	p.compare(f, &state.promise)
}

func failed(o scheduling.Outcome) bool {
	return o.Status >= 400 || (o.Reason == scheduling.EndError && o.Status == 0)
}

// CacheLost forgets what was recorded for an endpoint instance: its engine was restarted in place, or put to sleep, and
// holds nothing any more. A record that would stay would pin its prompts to a cold engine.
func (p *Producer) CacheLost(ordinal int, generation uint64, _ bool) {
	x := p.index.Load()
	if in := x.member(ordinal, generation); in != nil {
		x.empty(in)
	}
}

// SnapshotChanged makes the index know the endpoints and frees what those that went held.
func (p *Producer) SnapshotChanged(s *scheduling.Snapshot) {
	x := p.index.Load()
	x.adopt(s)
	x.sweep()
	p.audit.SnapshotChanged(s)
}
