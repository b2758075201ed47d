package precise

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/scheduling"
)

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// An engine whose removals are lost stays within its bound, and costs the others nothing.
func TestC24_StoresOnlyForEver(t *testing.T) {
	const limit = 1000
	events := 2000
	if raceEnabled {
		events = 200
	}
	p := newPool(t)
	p.hub.maxBlocks = limit
	noisy, quiet := p.open(), p.open()
	quiet.say(store(16, upTo(160), 1))
	name := uint64(1 << 32)
	for i := range events {
		first := 1_000_000 + 1600*i
		ev := store(16, from(first, first+1599), name)
		name += 100
		noisy.Apply(&wire.Batch{Events: []wire.Event{ev}})
		if i%3 == 0 { // offloaded too: the tiers share the bound
			noisy.Apply(&wire.Batch{Events: []wire.Event{byName("cpu", ev.Hashes...)}})
		}
		if noisy.blocks > limit {
			t.Fatalf("%d blocks after %d events", noisy.blocks, i)
		}
	}
	if err := noisy.check(); err != nil {
		t.Error(err)
	}
	z := p.hub.store.Sizes()
	if z.Positions > 3*limit+2*maxGhosts+maxRoutedBlocks || z.Bytes > 2<<20 {
		t.Errorf("%+v for one engine at its bound of %d blocks", z, limit)
	}
	if n := p.hub.stats.evicted.Load(); n < int64(events*100-limit) {
		t.Errorf("%d blocks evicted", n)
	}
	quiet.expect("the other engine", ask{tokens: upTo(160)}, 160)
	// What comes is there, but where making room has hit it.
	whole := 0
	for i := range 50 {
		tokens := from(1000*i+1, 1000*i+160)
		noisy.say(store(16, tokens, uint64(100*i+1)))
		if noisy.cached(ask{tokens: tokens}) == 160 {
			whole++
		}
	}
	if whole < 40 {
		t.Errorf("%d of 50 new prompts are whole", whole)
	}
	noisy.close()
	quiet.close()
	if z := p.hub.store.Sizes(); z.Chains != 0 || z.Bits != 0 {
		t.Errorf("left: %+v", z)
	}
}

// A bound of one block is a bound too.
func TestC24_SmallestBound(t *testing.T) {
	p := newPool(t)
	p.hub.maxBlocks = 1
	e := p.open()
	for i := range 50 {
		e.say(store(16, upTo(160), 1), on("cpu", store(16, upTo(16*(i%10+1)), 1)), removed("gpu", uint64(i%10+1)))
		if err := e.check(); err != nil || e.blocks > 1 {
			t.Fatalf("%d blocks, %v", e.blocks, err)
		}
	}
}

// Ten thousand endpoints that come and go leave nothing behind.
func TestC24_EndpointsComeAndGo(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("stays:1")
	h.site.at("stays:1").say(t, store(16, upTo(160), 1))
	goroutines := runtime.NumGoroutine()
	before := 0
	const each = 100
	rounds := 100
	if raceEnabled {
		rounds = 20
	}
	for round := range rounds {
		names := []string{"stays:1"}
		for i := range each {
			names = append(names, fmt.Sprintf("10.%d.%d.1:8000", round, i))
		}
		h.endpoints(names...)
		eventually(t, "those that went are freed", func() bool { return h.sourcesInUse() == each+1 })
		for i, name := range names[1:] {
			f := h.site.at(name)
			f.live()
			ev := store(16, upTo(320), uint64(100*i))
			ev.LoRA = fmt.Appendf(nil, "adapter-%d", (round*each+i)%1000)
			f.say(t, ev, store(16, upTo(160), 1), byName("cpu", 1, 2), after(4711, store(16, upTo(16), 99)))
			h.serve(ids("m", upTo(400)), name, -1)
		}
		if round == 9 {
			before = h.settled(t, goroutines)
		}
	}
	grown := h.settled(t, goroutines) - before
	if grown > 1<<20 {
		t.Errorf("%d bytes more after %d endpoints than after %d", grown, rounds*each, 10*each)
	}
	hub := h.hub()
	if n := hub.sources.Load(); n > 3*each {
		t.Errorf("%d numbers of sources in use", n)
	}
	if n := hub.store.Register(chain.NoSource, 0); int(n) > 8*each { // the next free one
		t.Errorf("%d holders in use", n)
	}
	hub.mu.Lock()
	if n := len(hub.waiting); n > 1 {
		t.Errorf("%d members are waited for", n)
	}
	hub.mu.Unlock()
	if n := hub.stats.blocks.Load(); n != 10 {
		t.Errorf("%d blocks, want the 10 of the one that stays", n)
	}
	if n := hub.stats.parked.Load(); n != 0 {
		t.Errorf("%d parked blocks", n)
	}
	checkStore(t, hub)
	h.expect("the one that stays", ids("m", upTo(160)), map[string]int{"stays:1": 160})
}

// sourcesInUse is the number of sources that are not freed yet.
func (h *harness) sourcesInUse() int {
	hub := h.hub()
	hub.indices.Lock()
	defer hub.indices.Unlock()
	return int(hub.sources.Load()) - len(hub.free)
}

// settled takes all endpoints but the one that stays away, waits until they are gone, and returns the heap.
func (h *harness) settled(t *testing.T, goroutines int) int {
	t.Helper()
	h.endpoints("stays:1")
	h.advance(defaultTTL)
	h.hub().queue.expire(h.now(), math.MaxInt) // as the watch does every second
	eventually(t, "everything is freed", func() bool { return h.hub().store.Sizes().Bits == 10 })
	eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	h.site.mu.Lock()
	for address := range h.site.feeds {
		if address != "stays:1" {
			delete(h.site.feeds, address)
		}
	}
	h.site.mu.Unlock()
	return heap()
}

// A hundred thousand adapters in events cost bounded memory, and none of them is taken for the base model.
func TestC24_AdaptersWithoutEnd(t *testing.T) {
	p := newPool(t)
	e := p.open()
	for i := range 100_000 {
		ev := store(16, upTo(16), uint64(i+1))
		ev.LoRA = fmt.Appendf(nil, "adapter-%d", i)
		e.Apply(&wire.Batch{Events: []wire.Event{ev}})
	}
	if n := len(p.hub.adapters.named); n != maxAdapters {
		t.Errorf("%d adapters are told apart, want %d", n, maxAdapters)
	}
	if n := p.hub.stats.refused.Load(); n != 100_000-maxAdapters {
		t.Errorf("%d refused, want the rest", n)
	}
	e.expect("the base model", ask{tokens: upTo(16), model: "base"}, 0)
	e.expect("the first", ask{tokens: upTo(16), model: "adapter-0"}, 16)
	e.expect("the last", ask{tokens: upTo(16), model: "adapter-99999"}, 0)
	// Once an engine has listed its models, whatever else an event names is known to be an adapter.
	p.hub.adapters.list([]string{"base"})
	ev := store(16, upTo(16), 100_001)
	ev.LoRA = []byte("adapter-99999")
	e.Apply(&wire.Batch{Events: []wire.Event{ev}})
	e.expect("the last, with models listed", ask{tokens: upTo(16), model: "adapter-99999"}, 16)
	e.expect("the base model, listed", ask{tokens: upTo(16), model: "base"}, 0)
}

// Kinds of attention, groups and media without end cost bounded memory as well.
func TestC24_GroupsAndMediaWithoutEnd(t *testing.T) {
	p := newPool(t)
	e := p.open()
	for i := range 10_000 {
		e.Apply(&wire.Batch{Events: []wire.Event{
			inGroup(i, "full_attention", store(16, upTo(16), 1)),
			inGroup(-i, fmt.Sprint("kind ", i), store(16, upTo(16), 2)),
			on(fmt.Sprint("medium ", i), store(16, upTo(16), uint64(i))),
		}})
	}
	if n := len(e.groups); n > maxNamedGroups {
		t.Errorf("%d groups are known", n)
	}
	if n := len(e.held); n > 2 {
		t.Errorf("%d tiers", n)
	}
	if n := len(e.held[0].groups); n > maxGroups {
		t.Errorf("%d groups in a tier", n)
	}
	if err := e.check(); err != nil {
		t.Error(err)
	}
}

// What sluice_kv_index_bytes says is within a factor of 1.4 of what the heap holds, and all of it comes back.
func TestC24_BytesGaugeFollowsTheHeap(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	if strconv.IntSize == 32 {
		t.Skip("the formula counts 64-bit pointers")
	}
	for _, tc := range []struct {
		name    string
		engines int
		own     bool // every engine has prompts of its own, or all the same
		blocks  int
	}{
		{"own prompts", 8, true, 32_000}, {"shared prompts", 8, false, 32_000}, {"shared by many", 100, false, 4000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.endpoints("last:1")
			h.metric("sluice_kv_index_bytes")
			before, gaugeBefore := heap(), h.metric("sluice_kv_index_bytes")
			names := make([]string, tc.engines)
			for i := range names {
				names[i] = fmt.Sprintf("10.0.%d.1:8000", i)
			}
			h.endpoints(names...)
			tokens := make([]uint32, 250*16)
			for i, name := range names {
				sink := h.site.at(name).rank(0)
				for at := 0; at < tc.blocks; at += 250 {
					for j := range tokens {
						tokens[j] = uint32(scheduling.Mix64(uint64(at*16 + j)))
						if tc.own {
							tokens[j] += uint32(i+1) * 7919
						}
					}
					ev := store(16, tokens, scheduling.Mix64(uint64(at))|1)
					for k := range ev.Hashes {
						ev.Hashes[k] = scheduling.Mix64(ev.Hashes[k] + uint64(k))
					}
					sink.Apply(&wire.Batch{Events: []wire.Event{ev}})
				}
			}
			grown, gauge := heap()-before, h.metric("sluice_kv_index_bytes")-gaugeBefore
			if n := h.metric("sluice_kv_index_holder_blocks"); int(n) != tc.engines*tc.blocks {
				t.Fatalf("%v blocks", n)
			}
			if ratio := gauge / float64(grown); ratio < 1/1.4 || ratio > 1.4 {
				t.Errorf("gauge %v B, heap %d B", gauge, grown)
			}
			h.endpoints("last:1")
			eventually(t, "everything is freed", func() bool { return h.hub().store.Sizes().Bits == 0 })
			h.site.mu.Lock()
			clear(h.site.feeds)
			h.site.mu.Unlock()
			eventually(t, "the memory comes back", func() bool { return heap()-before < max(grown/10, 1<<20) })
			if gauge := h.metric("sluice_kv_index_bytes") - gaugeBefore; gauge > float64(max(grown/10, 1<<20)) {
				t.Errorf("gauge %v B at the end", gauge)
			}
			runtime.KeepAlive(h)
		})
	}
}
