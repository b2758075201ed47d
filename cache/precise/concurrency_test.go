package precise

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// busyEngine says what an engine with a small cache may say, for so many batches.
func busyEngine(f *stubFeed, seed uint64, batches int) {
	r := rand.New(rand.NewPCG(seed, 1))
	sink := f.rank(0)
	sink.State(cursor.Live)
	for range batches {
		// Prompts are few and short, so that everybody shares and forks them all the time.
		n := 1 + int(r.UintN(12))
		tokens := make([]uint32, 0, 16*n)
		names := make([]uint64, 0, n)
		h := seed + 1
		for range n {
			digit := uint32(r.UintN(2))
			h = scheduling.Mix64(h + uint64(digit))
			names = append(names, h)
			for i := range uint32(16) {
				tokens = append(tokens, 100*digit+i)
			}
		}
		ev := wire.Event{Kind: wire.Stored, Medium: "gpu", Hashes: names, Tokens: tokens, BlockSize: 16}
		switch r.UintN(12) {
		case 0, 1, 2, 3, 4:
		case 5, 6, 7:
			ev = removed("gpu", names[n-1])
		case 8:
			ev = byName("cpu", names...)
		case 9:
			ev = removed("cpu", names...)
		case 10:
			ev = on("cpu", ev)
		case 11:
			switch r.UintN(8) {
			case 0:
				ev = cleared
			case 1:
				sink.Forget(0)
			case 2:
				sink.State(cursor.Degraded)
			case 3:
				sink.State(cursor.Live)
			}
		}
		sink.Apply(&wire.Batch{Events: []wire.Event{ev}})
	}
}

// Engines speak, requests are looked up, believed, contradicted and taken back, endpoints come and go, metrics are read,
// all at once; afterwards everything is as it should be, and nothing is left.
func TestConcurrently(t *testing.T) {
	batches, requests, updates := 2000, 1000, 100
	if testing.Short() {
		batches, requests, updates = 500, 300, 40
	}
	h := newHarness(t, func(p *Parameters) { p.MaxBlocksPerEndpoint = 300 })
	steady := []string{"a:1", "b:1", "c:1"}
	h.endpoints(steady...)
	var work sync.WaitGroup
	for i, name := range steady {
		work.Go(func() { busyEngine(h.site.at(name), uint64(i+1)<<32, batches) })
	}
	for i := range 3 {
		work.Go(func() { h.busyClient(uint64(i), requests) })
	}
	work.Go(func() { // endpoints that come and go, and say something meanwhile
		for i := range updates {
			h.endpoints(append(steady[:3:3], []string{"d:1", "d:1#2", "e:1"}[i%3])...)
			for _, name := range []string{"d:1", "e:1"} {
				if h.endpoint(name) != nil {
					work.Go(func() { busyEngine(h.site.at(name), uint64(i)<<40, 20) })
				}
			}
			time.Sleep(time.Millisecond / 2)
		}
	})
	work.Go(func() {
		for range updates {
			h.hub().view()
			h.metricsOnly()
		}
	})
	work.Wait()
	h.endpoints(steady...)
	h.advance(defaultTTL)
	h.look(ids("m", upTo(16)))
	for _, name := range steady {
		if err := h.source(name).check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		h.source(name).Forget(0)
	}
	eventually(t, "everything is freed", func() bool { return h.hub().store.Sizes().Bits == 0 })
	checkStore(t, h.hub())
	if z := h.hub().store.Sizes(); z.Chains != 0 || z.Positions != 0 {
		t.Errorf("left: %+v", z)
	}
	if n := h.hub().stats.blocks.Load(); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
	if n := h.hub().stats.parked.Load(); n != 0 {
		t.Errorf("%d parked blocks are left", n)
	}
}

// metricsOnly reads the metrics and nothing of them.
func (h *harness) metricsOnly() {
	if _, err := h.registry.Gather(); err != nil {
		h.t.Error(err)
	}
}

// busyClient sends requests that end in every way.
func (h *harness) busyClient(seed uint64, requests int) {
	r := rand.New(rand.NewPCG(seed, 2))
	for range requests {
		tokens := make([]uint32, 0, 16*13)
		for range 1 + r.UintN(12) {
			digit := uint32(r.UintN(2))
			for i := range uint32(16) {
				tokens = append(tokens, 100*digit+i)
			}
		}
		request := ids("m", append(tokens, 7))
		request.KVReportFull = r.UintN(4) == 0
		request.ID = h.id.Add(1)
		c := h.scheduler.Begin(h.pool.Snapshot(), request, h.now())
		h.scheduler.Produce(h.t.Context(), c)
		f, err := h.scheduler.Commit(c)
		if err != nil {
			h.t.Error(err)
			return
		}
		h.scheduler.End(c)
		h.advance(time.Duration(r.UintN(100)) * time.Millisecond)
		if r.UintN(4) == 0 {
			f.Served(h.pool.Snapshot().Endpoints[r.UintN(3)], f.PickedAt)
		}
		outcome := scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}
		switch r.UintN(5) {
		case 0:
			outcome.Status = 503
		case 1:
			outcome.Reason = scheduling.EndDisconnect
		default:
			outcome.Usage.CachedTokens = int(r.UintN(uint(len(tokens) + 1)))
		}
		f.Done(outcome, h.now())
		if r.UintN(100) == 0 {
			e := h.pool.Snapshot().Endpoints[r.UintN(3)]
			h.producer().CacheLost(e.Ordinal, e.Generation, r.UintN(2) == 0)
		}
	}
}

// A pick waits for no engine: neither for a large batch of its events that is being taken in, nor for one that is stuck.
func TestPicksDoNotWaitForEvents(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	h.site.at("a:1").live()
	h.site.at("a:1").say(t, store(16, upTo(32), 1))
	s := h.source("a:1")
	s.mu.Lock() // as Apply does
	defer s.mu.Unlock()
	h.expect("meanwhile", ids("m", upTo(64)), map[string]int{"a:1": 32})
	h.serve(ids("m", upTo(64)), "a:1", 32)
	h.expect("what was picked", ids("m", upTo(64)), map[string]int{"a:1": 64})
}
