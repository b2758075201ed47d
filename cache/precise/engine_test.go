package precise

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/scheduling"
)

// pool is a hub without a scheduler: engines are opened by hand and hear bytes.
type pool struct {
	t        testing.TB
	hub      *hub
	payloads map[string][]byte
}

func newPool(t testing.TB) *pool {
	t.Helper()
	p := &pool{t: t, hub: newTestHub(), payloads: kvtest.Payloads(t)}
	t.Cleanup(func() { checkStore(t, p.hub) })
	return p
}

// engine is one source, told of what an engine publishes as the bytes that it sends.
type engine struct {
	*source
	pool    *pool
	decoder wire.Decoder
}

func (p *pool) open() *engine { return &engine{source: p.hub.newSource(), pool: p} }

// hear takes in payloads: by name ("K01") or bytes.
func (e *engine) hear(payloads ...any) *wire.Batch {
	e.pool.t.Helper()
	var last *wire.Batch
	for _, p := range payloads {
		payload, ok := p.([]byte)
		if name, named := p.(string); named {
			payload, ok = e.pool.payloads[name]
		}
		if !ok {
			e.pool.t.Fatalf("no payload %v", p)
		}
		b, err := e.decoder.Decode(payload)
		if err != nil {
			e.pool.t.Fatalf("%v: %v", p, err)
		}
		e.Apply(b)
		last = b
	}
	return last
}

// say takes in events, by way of their bytes.
func (e *engine) say(events ...wire.Event) {
	e.pool.t.Helper()
	if b := e.hear(wire.AppendBatch(nil, &wire.Batch{Events: events})); len(b.Events) != len(events) {
		e.pool.t.Fatalf("%d of %d events arrive: %d bad, %d unknown", len(b.Events), len(events), b.Bad, b.Unknown)
	}
}

// ask is a prompt to look up.
type ask struct {
	tokens   []uint32
	model    string // an adapter, where events have named it
	salt     string
	features []scheduling.PromptFeature
}

// info is what an engine is found to hold, through all that a request goes through.
func (e *engine) info(a ask) scheduling.PrefixCacheMatchInfo {
	e.pool.t.Helper()
	f, ok := e.pool.look(a).of(e.source, 16)
	if !ok {
		return scheduling.PrefixCacheMatchInfo{}
	}
	return f.info
}

func (p *pool) look(a ask) *prompt {
	h := p.hub
	adapter := h.keys.adapter([]byte(a.model))
	if !h.adapters.isAdapter(a.model, adapter) {
		adapter = 0
	}
	pr := &prompt{}
	pr.hash(&h.keys, []int{16, 32, 64}, adapter, a.salt, scheduling.TokenizedPrompt{Tokens: a.tokens, Features: a.features}, 1<<20)
	for i := range pr.cuts {
		if c := &pr.cuts[i]; c.size > 0 {
			c.lookup.Run(h.store, c.hashes, int(h.sources.Load()))
		}
	}
	return pr
}

// cached is the number of tokens that an engine is found to hold.
func (e *engine) cached(a ask) int {
	e.pool.t.Helper()
	i := e.info(a)
	return i.CachedBlockCount * i.BlockSizeTokens
}

// expect checks how many tokens an engine is found to hold.
func (e *engine) expect(when string, a ask, tokens int) {
	e.pool.t.Helper()
	if got := e.cached(a); got != tokens {
		e.pool.t.Errorf("%s: %d tokens of %d are found, want %d", when, got, len(a.tokens), tokens)
	}
}

// upTo are the tokens 1 to n: 1 to 16 are block one, 17 to 32 block two.
func upTo(n int) []uint32 { return from(1, n) }

func from(first, last int) (tokens []uint32) {
	for t := first; t <= last; t++ {
		tokens = append(tokens, uint32(t))
	}
	return tokens
}

// store is a store of the blocks of some tokens, named from first on.
func store(blockSize int, tokens []uint32, first uint64) wire.Event {
	e := wire.Event{Kind: wire.Stored, Tokens: tokens, BlockSize: blockSize, Medium: "gpu"}
	for i := range len(tokens) / blockSize {
		e.Hashes = append(e.Hashes, first+uint64(i))
	}
	return e
}

func after(parent uint64, e wire.Event) wire.Event {
	e.Parent, e.HasParent = parent, true
	return e
}

func on(medium string, e wire.Event) wire.Event {
	e.Medium = medium
	return e
}

func inGroup(number int, kind string, e wire.Event) wire.Event {
	e.Group, e.HasGroup, e.Spec = number, true, kind
	return e
}

func removed(medium string, names ...uint64) wire.Event {
	return wire.Event{Kind: wire.Removed, Hashes: names, Medium: medium}
}

// byName is a store that says nothing of its blocks but their names.
func byName(medium string, names ...uint64) wire.Event {
	return wire.Event{Kind: wire.Stored, Hashes: names, Medium: medium}
}

var cleared = wire.Event{Kind: wire.Cleared}

// checkStore checks the index's own bookkeeping.
func checkStore(t testing.TB, h *hub) {
	t.Helper()
	if err := h.store.Check(); err != nil {
		t.Error(err)
	}
}

// check checks that whatever a source knows by name has its place, and a bit there where it counts.
func (s *source) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, t := range s.held {
		for i := range t.groups {
			g := &t.groups[i]
			n += g.table.Len()
			if err := s.checkTable(t, g); err != nil {
				return err
			}
		}
	}
	if n != s.blocks {
		return fmt.Errorf("%d blocks in tables, counted %d", n, s.blocks)
	}
	var err error
	s.ghosts.table.All(func(name, at uint64) bool {
		if !s.pinned(chain.Ref(at)) {
			err = fmt.Errorf("ghost %x has no place", name)
		}
		return err == nil
	})
	return err
}

func (s *source) checkTable(t *tier, g *group) (err error) {
	g.table.All(func(name, at uint64) bool {
		ref := chain.Ref(at)
		switch {
		case !s.pinned(ref):
			err = fmt.Errorf("block %x has no place", name)
		case s.doubted == 0 && len(t.groups) == 1 && len(s.aliases.held) == 0 && len(s.aliases.names) == 0 && !s.store.Holds(t.holder, ref):
			err = fmt.Errorf("block %x does not count", name)
		case !t.complete(g, name, ref) && s.store.Holds(t.holder, ref) && len(s.aliases.names) == 0:
			err = fmt.Errorf("block %x counts, and not every group has it", name)
		}
		return err == nil
	})
	return err
}

// pinned reports whether any of the source's holders keeps a place.
func (s *source) pinned(at chain.Ref) bool {
	for _, h := range s.own() {
		if s.store.Holds(h, at) {
			return true
		}
	}
	return false
}
