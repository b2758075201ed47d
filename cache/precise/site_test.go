package precise

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// Prompts with a salt are told apart the same way by both indexes.
func TestC15_PreciseAndApproximateAgree(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	h.site.at("a:1").live()
	h.site.at("a:1").hear(t, kvtest.Payloads(t)["K27"])
	salted := func(r *scheduling.Request, salt string) *scheduling.Request {
		r.CacheSalt = salt
		return r
	}
	words := strings.Repeat("0123456789abcdef", 4) // one block of text
	h.serve(salted(text("m", words), "tenant-1"), "a:1", -1)
	for salt, want := range map[string]int{"tenant-1": 16, "tenant-2": 0, "": 0, strings.Repeat("s", 2000): 0} {
		h.expect("tokens", salted(ids("m", upTo(16)), salt), map[string]int{"a:1": want})
		h.expect("text", salted(text("m", words), salt), map[string]int{"a:1": want})
	}
	// An empty salt is none, for both.
	h.serve(text("m", words), "a:1", -1)
	h.site.at("a:1").say(t, store(16, upTo(16), 1))
	h.expect("tokens, empty salt", salted(ids("m", upTo(16)), ""), map[string]int{"a:1": 16})
	h.expect("text, empty salt", salted(text("m", words), ""), map[string]int{"a:1": 16})
}

// Orphans show in the metrics, and so does what became of them.
func TestC13_OrphansInTheMetrics(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	a := h.site.at("a:1")
	for i := range 10_000 {
		a.rank(0).Apply(&wire.Batch{Events: []wire.Event{after(uint64(1_000_000+i), store(16, from(17, 32), uint64(10+i)))}})
	}
	for name, want := range map[string]float64{
		"sluice_kv_event_blocks_total orphaned": 10_000, "sluice_kv_event_blocks_total orphan_dropped": 10_000 - defaultParked,
		"sluice_kv_index_parked_blocks": defaultParked, "sluice_kv_index_blocks": 0,
	} {
		if got := h.metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestC23_DataParallelRanks(t *testing.T) {
	payloads := kvtest.Payloads(t)
	one := ids("m", upTo(16))
	h := newHarness(t, nil)
	h.endpoints("a:1", "b:1")
	a := h.site.at("a:1")
	for rank := range 2 {
		a.rank(rank).State(cursor.Live)
	}
	for _, name := range []string{"K01", "K19", "K13"} { // rank 0, rank 1, removal on rank 0
		a.hear(t, payloads[name])
	}
	h.expect("rank 1 still has it", one, map[string]int{"a:1": 16, "b:1": 0})
	a.rank(0).Forget(0)
	h.expect("rank 0 restarted", one, map[string]int{"a:1": 16, "b:1": 0})
	a.rank(1).Forget(0)
	h.expect("rank 1 restarted", one, map[string]int{"a:1": 0, "b:1": 0})
	// The ranks' blocks do not add up: one engine serves, with what it has.
	a.hear(t, payloads["K01"])
	a.rank(1).Apply(&wire.Batch{Events: []wire.Event{after(0xa1a1a1a1a1a1a1a1, store(16, from(17, 32), 2))}})
	h.expect("a parent of another rank", ids("m", upTo(32)), map[string]int{"a:1": 16, "b:1": 0})
	a.rank(1).Apply(&wire.Batch{Events: []wire.Event{store(16, upTo(32), 1)}})
	h.expect("the better rank", ids("m", upTo(32)), map[string]int{"a:1": 32, "b:1": 0})
	// What was learnt of the sockets comes from the endpoint and the parameters.
	if c := a.config; c.Port != 5557 || c.Ranks != 1 || !c.Discover || c.Bind {
		t.Errorf("followed with %+v", c)
	}
	// Ranks have a bound, and what is beyond costs nothing but itself.
	for rank := range maxRanks + 10 {
		a.rank(rank).Apply(&wire.Batch{Events: []wire.Event{store(16, from(201, 216), 9)}})
	}
	if n := h.hub().sources.Load(); n > maxRanks+1 {
		t.Errorf("%d sources", n)
	}
	if _, ok := a.rank(maxRanks + 5).(deaf); !ok {
		t.Error("a rank beyond the bound has a source")
	}
	h.endpoints("b:1")
	eventually(t, "all ranks are freed", func() bool { return h.hub().store.Sizes().Chains == 0 })
}

func TestC34_AllBlocksCleared(t *testing.T) {
	payloads := kvtest.Payloads(t)
	two := ids("m", upTo(32))
	for _, clear := range []string{"K10", "K11"} {
		h := newHarness(t, nil)
		h.endpoints("a:1", "b:1")
		a, b := h.site.at("a:1"), h.site.at("b:1")
		b.live()
		for rank := range 2 {
			a.rank(rank).State(cursor.Live)
		}
		for _, name := range []string{"K01", "K02", "K12", clear} {
			a.hear(t, payloads[name])
		}
		h.expect(clear+": nothing in any tier", two, map[string]int{"a:1": 0, "b:1": 0})
		a.hear(t, payloads["K14"]) // was cleared with the rest
		a.hear(t, payloads["K02"]) // has no parent any more
		h.expect(clear+": parents are gone too", two, map[string]int{"a:1": 0, "b:1": 0})

		a.hear(t, payloads["K19"]) // rank 1
		b.hear(t, payloads["K01"])
		a.hear(t, payloads["K01"])
		a.hear(t, payloads[clear]) // of rank 0
		h.expect(clear+": other ranks and engines keep theirs", two, map[string]int{"a:1": 16, "b:1": 16})

		b.say(t, store(16, upTo(32), 1), cleared, store(16, upTo(16), 1))
		h.expect(clear+": in the middle of a batch", two, map[string]int{"a:1": 16, "b:1": 16})
		h.serve(two, "b:1", -1)
		routed := ids("m", from(501, 564))
		h.serve(routed, "b:1", -1)
		h.expect(clear+": only routed so far", routed, map[string]int{"a:1": 0, "b:1": 64})
		b.hear(t, payloads[clear])
		h.expect(clear+": all goes", two, map[string]int{"a:1": 16, "b:1": 0})
		h.expect(clear+": speculation goes too", routed, map[string]int{"a:1": 0, "b:1": 0})
	}
}

// Signs from elsewhere: the engine sleeps, or was started anew.
// An engine that sleeps has nothing, whatever a replay brings that ends later; what it tells once it is awake counts.
func TestC34_ReplayOfASleepingEngine(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	a := h.site.at("a:1")
	e := h.endpoint("a:1")
	expect := func(when string, tokens int) {
		t.Helper()
		h.expect(when, ids("m", upTo(64)), map[string]int{"a:1": tokens})
	}
	for _, name := range []string{"while it is replayed", "before it is replayed"} {
		if name == "while it is replayed" {
			a.rank(0).State(cursor.Replaying)
			a.say(t, store(16, upTo(32), 1))
		}
		h.producer().CacheLost(e.Ordinal, e.Generation, true) // started anew, and put to sleep before anybody looked
		h.producer().CacheLost(e.Ordinal, e.Generation, false)
		a.rank(0).Forget(cursor.CauseRestart)
		a.rank(0).State(cursor.Replaying)
		a.say(t, store(16, upTo(64), 1))
		expect(name+", asleep", 0)
		a.rank(0).State(cursor.Live)
		expect(name+", and then", 0)
		a.say(t, store(16, upTo(64), 1))
		expect(name+", awake", 64)
		a.rank(0).State(cursor.Replaying)
		a.say(t, after(4, store(16, from(65, 80), 5)))
		a.rank(0).State(cursor.Live)
		h.expect("a later gap", ids("m", upTo(80)), map[string]int{"a:1": 80})
	}
	h.producer().CacheLost(e.Ordinal, e.Generation, false)
	a.rank(0).State(cursor.Replaying)
	a.say(t, store(16, upTo(64), 1), cleared, store(16, upTo(16), 1))
	expect("a replay that holds the clearing", 16)
}

func TestC34_SleepAndRestart(t *testing.T) {
	payloads := kvtest.Payloads(t)
	h := newHarness(t, nil)
	h.endpoints("a:1", "b:1")
	for _, address := range []string{"a:1", "b:1"} {
		f := h.site.at(address)
		f.live()
		for _, name := range []string{"K01", "K02", "K12", "K19"} {
			f.hear(t, payloads[name])
		}
	}
	h.serve(ids("m", upTo(64)), "a:1", -1)
	h.serve(text("m", strings.Repeat("x", 64)), "a:1", -1)
	a := h.endpoint("a:1")
	h.producer().CacheLost(a.Ordinal, a.Generation+1, true) // another instance: nothing to do with this one
	h.producer().CacheLost(7, a.Generation, true)
	h.expect("signs of others", ids("m", upTo(64)), map[string]int{"a:1": 64, "b:1": 32})
	h.producer().CacheLost(a.Ordinal, a.Generation, false)
	h.expect("asleep, all ranks", ids("m", upTo(64)), map[string]int{"a:1": 0, "b:1": 32})
	h.expect("asleep, what was sent", text("m", strings.Repeat("x", 64)), map[string]int{"a:1": 0, "b:1": 0})
	if n := h.site.at("a:1").restarted; n != 0 {
		t.Errorf("the feed of a sleeping engine was restarted %d times", n)
	}
	h.site.at("a:1").hear(t, payloads["K01"])
	h.expect("awake", ids("m", upTo(64)), map[string]int{"a:1": 16, "b:1": 32})
	h.producer().CacheLost(a.Ordinal, a.Generation, true)
	h.expect("restarted", ids("m", upTo(64)), map[string]int{"a:1": 0, "b:1": 32})
	if n := h.site.at("a:1").restarted; n != 1 {
		t.Errorf("the feed was restarted %d times, want once", n)
	}
}

// An engine's list of models tells adapters that no event has named from names of the base model.
func TestC28_ModelsAsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.endpoints("a:1")
		h.site.at("a:1").live()
		h.site.at("a:1").say(t, store(16, upTo(16), 1))
		is := func(when string, want map[string]int) {
			t.Helper()
			for model, tokens := range want {
				h.expect(when+": "+model, ids(model, upTo(16)), map[string]int{"a:1": tokens})
			}
		}
		time.Sleep(time.Minute)
		is("not listed yet", map[string]int{"qwen": 16, "qwen-alias": 16, "sql": 16})
		h.site.mu.Lock()
		h.site.models["a:1"] = `{"object":"list","data":[{"id":"qwen","parent":null},{"id":"qwen-alias"},{"id":"sql","parent":"qwen"}]}`
		h.site.mu.Unlock()
		time.Sleep(2 * time.Minute) // it is asked again within one
		is("listed", map[string]int{"qwen": 16, "qwen-alias": 16, "sql": 0, "loaded-later": 0})
		ev := store(16, upTo(16), 9)
		ev.LoRA = []byte("loaded-later")
		h.site.at("a:1").say(t, ev)
		is("named in an event", map[string]int{"qwen": 16, "sql": 0, "loaded-later": 16})
	})
}

func TestReload(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	h.site.at("a:1").live()
	h.site.at("a:1").say(t, store(16, upTo(64), 1))
	running := h.send(ids("m", upTo(128)), "a:1")
	hub := h.hub()
	for name, change := range map[string]func(*Parameters){
		"nothing": nil, "speculation": func(p *Parameters) { p.SpeculativeIndexing = false },
		"default size": func(p *Parameters) { p.BlockSizeTokens = 64 }, "reach": func(p *Parameters) { p.MaxPrefixTokens = 100_000 },
		"the same tiers": func(p *Parameters) { p.Tiers = map[string]float64{"GPU": 1} },
	} {
		h.reload(change)
		if h.hub() != hub || h.site.starts != 1 {
			t.Errorf("%s: the index starts anew", name)
		}
		h.expect(name, ids("m", upTo(64)), map[string]int{"a:1": 64})
	}
	running.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{CachedTokens: 64}}, h.now()) // of a closed scheduler
	for name, change := range map[string]func(*Parameters){
		"seed": func(p *Parameters) { p.HashSeed = "s" }, "tiers": func(p *Parameters) { p.Tiers["cpu"] = 0.5 },
		"other tier": func(p *Parameters) { p.OtherTier = 0.1 }, "bound": func(p *Parameters) { p.MaxBlocksPerEndpoint = 5000 },
		"ports": func(p *Parameters) { p.KVEvents.Port = 6000 },
	} {
		before, feed := h.hub(), h.site.at("a:1")
		h.reload(change)
		if h.hub() == before {
			t.Errorf("%s: the index is kept", name)
		}
		if !feed.closed || before.store.Sizes().Chains != 0 {
			t.Errorf("%s: the old index is not freed", name)
		}
		h.expect(name, ids("m", upTo(64)), map[string]int{"a:1": 0})
		h.site.at("a:1").live()
		h.site.at("a:1").say(t, store(16, upTo(64), 1))
		h.expect(name+", heard again", ids("m", upTo(64)), map[string]int{"a:1": 64})
	}
	// Scrapes see the one that serves.
	if n := h.metric("sluice_kv_index_blocks"); n != 4 {
		t.Errorf("%v blocks in the metrics", n)
	}
}

// Where engines connect by themselves, an index that starts anew listens at the same address as the one before.
func TestReloadWithListener(t *testing.T) {
	bind := func(p *Parameters) { p.KVEvents.Bind = "127.0.0.1:0" }
	h := newHarness(t, bind)
	h.endpoints("a:1")
	first := h.hub().listener
	if first == nil || first.acceptor() == nil {
		t.Fatal("nobody listens")
	}
	h.reload(func(p *Parameters) { bind(p); p.OtherTier = 0.1 })
	if l := h.hub().listener; l != first || l.users != 1 {
		t.Errorf("another listener, or %d users of the same", l.users)
	}
	h.reload(bind)
	h.reload(nil)
	if h.hub().listener.acceptor() != nil || first.users != 0 {
		t.Error("somebody still listens")
	}
	select {
	case <-time.After(10 * time.Second):
		t.Error("the socket is open")
	case <-closed(first.Addr().String()):
	}
}

// An address that cannot be listened on is tried again, and then the endpoints that are there may connect.
func TestListensLater(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(p *Parameters) { p.KVEvents.Bind = taken.Addr().String() })
	h.endpoints("a:1", "b:1")
	first := h.site.at("a:1")
	h.hub().listenAgain()
	if h.hub().listener != nil || h.site.at("a:1") != first {
		t.Error("it listens where somebody else does, or the endpoint is followed anew")
	}
	taken.Close()
	h.hub().listenAgain()
	if h.hub().listener == nil {
		t.Fatal("it does not listen")
	}
	if again := h.site.at("a:1"); again == first {
		t.Error("the endpoint is not followed anew")
	}
	h.site.at("a:1").live()
	h.site.at("a:1").say(t, store(16, upTo(16), 1))
	h.expect("after that", ids("m", upTo(16)), map[string]int{"a:1": 16, "b:1": 0})
	again := h.site.at("a:1")
	h.hub().listenAgain()
	if h.site.at("a:1") != again {
		t.Error("followed anew for nothing")
	}
}

// closed is done once nobody listens at an address.
func closed(address string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				return
			}
			_ = c.Close()
			time.Sleep(time.Millisecond)
		}
	}()
	return done
}

// Readiness waits for the engines' replays, and not for ever.
func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.endpoints("a:1", "b:1", "c:1")
		go func() {
			time.Sleep(3 * time.Second)
			close(h.site.at("a:1").ready)
			time.Sleep(3 * time.Second)
			close(h.site.at("c:1").ready)
		}()
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if late := h.producer().Warm(ctx); late == 0 || time.Since(begin) != 10*time.Second {
			t.Errorf("%d late after %v, want some after 10 s: b is dead", late, time.Since(begin))
		}
		begin = time.Now()
		h.endpoints("d:1", "a:1")
		close(h.site.at("d:1").ready)
		if late := h.producer().Warm(t.Context()); late != 0 || time.Since(begin) != 0 {
			t.Errorf("%d late after %v, want none", late, time.Since(begin))
		}
	})
}

// Whatever changes about where an endpoint publishes, it is followed anew; whatever else changes, it is not.
func TestSnapshotChanges(t *testing.T) {
	h := newHarness(t, nil)
	spec := scheduling.EndpointSpec{Address: "a:1"}
	h.pool.Update([]scheduling.EndpointSpec{spec})
	first := h.site.at("a:1")
	first.live()
	first.say(t, store(16, upTo(64), 1))
	spec.Labels, spec.State = map[string]string{"x": "y"}, scheduling.EndpointDraining
	h.pool.Update([]scheduling.EndpointSpec{spec})
	spec.State = scheduling.EndpointReady
	h.pool.Update([]scheduling.EndpointSpec{spec})
	if h.site.starts != 1 {
		t.Error("followed anew because of a label")
	}
	h.expect("labels and states changed", ids("m", upTo(64)), map[string]int{"a:1": 64})
	running := h.send(ids("m", upTo(128)), "a:1")
	spec.KVEvents.Port = 6000
	h.pool.Update([]scheduling.EndpointSpec{spec})
	if h.site.starts != 2 {
		t.Error("not followed anew although it publishes elsewhere")
	}
	h.expect("nothing heard there yet", ids("m", upTo(64)), map[string]int{"a:1": 0})
	eventually(t, "the old one is freed", func() bool { return h.hub().store.Sizes().Chains == 0 })
	h.end(running, 0)
	if h.hub().stats.blocks.Load() != 0 {
		t.Error("blocks are left")
	}
	eventually(t, "the number of the source is free", func() bool { return h.sourcesInUse() == 1 })
}

// The bound on orphans is what the configuration says, and a changed one holds from the reload on.
func TestOrphansAreBoundedAsConfigured(t *testing.T) {
	park := func(n int) func(*Parameters) { return func(p *Parameters) { p.MaxParkedBlocks = n } }
	h := newHarness(t, park(100))
	h.endpoints("a:1")
	say := func(blocks int) {
		for i := range blocks {
			h.site.at("a:1").rank(0).Apply(&wire.Batch{Events: []wire.Event{after(uint64(1_000_000+i), store(16, from(17, 32), uint64(10+i)))}})
		}
	}
	parked := func(want float64, dropped float64) {
		t.Helper()
		if got := h.metric("sluice_kv_index_parked_blocks"); got != want {
			t.Errorf("%v blocks are parked, want %v", got, want)
		}
		if got := h.metric("sluice_kv_event_blocks_total orphan_dropped"); got != dropped {
			t.Errorf("%v blocks were dropped, want %v", got, dropped)
		}
	}
	say(100)
	parked(100, 0)
	say(101)
	parked(100, 1)
	h.reload(park(3))
	say(5)
	parked(3, 2)
}
