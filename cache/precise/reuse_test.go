package precise

import (
	"slices"
	"strconv"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// TestIndexOfOneThatIsGone has an engine leave while a prompt is looked up, and another one's events followed anew, so that
// this one gets the index that the other had: nothing that was found for the one may be told of the other, nor predicted.
func TestIndexOfOneThatIsGone(t *testing.T) {
	h := newHarness(t, nil)
	spec := func(name, topic string) scheduling.EndpointSpec {
		return scheduling.EndpointSpec{Address: name + ":1", UID: name, KVEvents: scheduling.KVEvents{Topic: topic}}
	}
	h.pool.Update([]scheduling.EndpointSpec{spec("a", "one"), spec("b", "one")})
	const blocks, size = 10, 16
	tokens, names := make([]uint32, blocks*size), make([]uint64, blocks)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	for i := range names {
		names[i] = uint64(1000 + i)
	}
	h.site.at("a:1").live()
	h.site.at("b:1").live()
	h.site.at("a:1").rank(0).Apply(&wire.Batch{Events: []wire.Event{
		{Kind: wire.Stored, Medium: "gpu", Hashes: names, Tokens: tokens, BlockSize: size}}})

	p, hub := h.producer(), h.hub()
	c := h.scheduler.Begin(h.pool.Snapshot(), ids("m", tokens), h.now())
	defer h.scheduler.End(c)
	pr := p.take()
	sizes := p.sizes(size)
	pr.hash(&hub.keys, sizes[:], 0, "", scheduling.TokenizedPrompt{Tokens: tokens, Count: len(tokens), Exact: true}, p.params.MaxPrefixTokens)
	p.lookUp(c, pr, size)
	a, b := c.Snapshot.Endpoints[0], c.Snapshot.Endpoints[1]
	told := func(e *scheduling.Endpoint) int {
		info, _ := p.info.In(c).Get(e.Ordinal)
		return info.CachedBlockCount
	}
	if told(a) != blocks || told(b) != 0 {
		t.Fatalf("a is told %d blocks, b %d, want %d and 0", told(a), told(b), blocks)
	}

	index := h.source("a:1").index
	h.pool.Update([]scheduling.EndpointSpec{spec("b", "one")})
	eventually(t, "the index to be free", func() bool {
		hub.indices.Lock()
		defer hub.indices.Unlock()
		return slices.Contains(hub.free, index)
	})
	turn := 0
	eventually(t, "b to get it, rather than its own once more", func() bool {
		turn++
		h.pool.Update([]scheduling.EndpointSpec{spec("b", strconv.Itoa(turn))})
		return h.source("b:1").index == index
	})
	if pr.reuses == hub.reuses.Load() {
		t.Error("a look-up that was under way would not be repeated")
	}
	settled := *pr
	p.settleOn(&settled, b, size, h.now())
	if settled.cached != 0 || settled.predicted >= 0 {
		t.Errorf("of b %d blocks are believed and %d tokens predicted from what a held", settled.cached, settled.predicted)
	}
	p.unsettle(&settled)
	p.lookUp(c, pr, size)
	if told(a) != 0 || told(b) != 0 {
		t.Errorf("a is told %d blocks, b %d, want none", told(a), told(b))
	}
	p.giveBack(pr)
}
