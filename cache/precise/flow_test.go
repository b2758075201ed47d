package precise

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/scheduling"
)

var ok200 = scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}

// A pick counts as present until the engine's events say so, for 2 s at most.
func TestSpeculation(t *testing.T) {
	newOne := func(t *testing.T) *harness {
		h := newHarness(t, nil)
		h.endpoints("a:1", "b:1")
		h.site.at("a:1").live()
		h.site.at("b:1").live()
		return h
	}
	prompt := ids("m", upTo(100))
	t.Run("counts, and ends", func(t *testing.T) {
		h := newOne(t)
		f := h.send(prompt, "a:1")
		h.expect("picked", prompt, map[string]int{"a:1": 96, "b:1": 0})
		h.expect("a longer one", ids("m", upTo(200)), map[string]int{"a:1": 96, "b:1": 0})
		f.Done(ok200, h.now())
		h.advance(defaultTTL - 1)
		h.expect("just before the end", prompt, map[string]int{"a:1": 96, "b:1": 0})
		h.advance(1)
		h.expect("2 s without an event", prompt, map[string]int{"a:1": 0, "b:1": 0})
		if z := h.hub().store.Sizes(); z.Chains != 0 {
			t.Errorf("left: %+v", z)
		}
	})
	t.Run("confirmed", func(t *testing.T) {
		h := newOne(t)
		h.serve(prompt, "a:1", -1)
		h.site.at("a:1").say(t, store(16, upTo(64), 1))
		h.expect("partly confirmed", prompt, map[string]int{"a:1": 96, "b:1": 0})
		h.advance(defaultTTL)
		h.expect("what was confirmed", prompt, map[string]int{"a:1": 64, "b:1": 0})
		h.site.at("a:1").say(t, removed("gpu", 4, 3, 2, 1))
		h.expect("removed", prompt, map[string]int{"a:1": 0, "b:1": 0})
	})
	t.Run("extends what is there", func(t *testing.T) {
		h := newOne(t)
		h.site.at("a:1").say(t, store(16, upTo(48), 1))
		h.serve(prompt, "a:1", -1)
		h.expect("picked", prompt, map[string]int{"a:1": 96, "b:1": 0})
		if blocks, _ := h.source("a:1").routed.size(); blocks != 3 {
			t.Errorf("%d blocks are speculative, want the 3 that were not there", blocks)
		}
		h.advance(defaultTTL)
		h.expect("after it", prompt, map[string]int{"a:1": 48, "b:1": 0})
	})
	t.Run("from two picks", func(t *testing.T) {
		h := newOne(t)
		first := h.begin(ids("m", upTo(64)))
		second := h.begin(ids("m", upTo(64))) // both saw nothing
		for _, c := range []*scheduling.Cycle{first, second} {
			f, err := h.scheduler.Commit(c)
			if err != nil {
				t.Fatal(err)
			}
			h.scheduler.End(c)
			f.Done(ok200, h.now())
			h.advance(time.Second)
		}
		h.expect("both", prompt, map[string]int{"a:1": 0, "b:1": 0}) // both are of the time 0
		h.serve(prompt, "a:1", -1)
		h.advance(time.Second)
		h.serve(ids("m", upTo(160)), "a:1", -1)
		h.advance(time.Second)
		h.expect("the head of the second is the first's", ids("m", upTo(160)), map[string]int{"a:1": 0, "b:1": 0})
	})
	for name, o := range map[string]scheduling.Outcome{
		"refused":       {Status: 400, Usage: scheduling.UnknownUsage},
		"overloaded":    {Status: 503, Reason: scheduling.EndError, Usage: scheduling.UnknownUsage},
		"no connection": {Reason: scheduling.EndError, Usage: scheduling.UnknownUsage},
	} {
		t.Run("taken back when "+name, func(t *testing.T) {
			h := newOne(t)
			h.site.at("a:1").say(t, store(16, upTo(32), 1))
			h.send(prompt, "a:1").Done(o, h.now())
			h.expect(name, prompt, map[string]int{"a:1": 32, "b:1": 0})
			h.advance(defaultTTL)
			h.expect(name+", later", prompt, map[string]int{"a:1": 32, "b:1": 0})
		})
	}
	for name, o := range map[string]scheduling.Outcome{
		"client left":                  {Reason: scheduling.EndDisconnect, Usage: scheduling.UnknownUsage},
		"failed in the answer":         {Status: 200, Reason: scheduling.EndError, Usage: scheduling.UnknownUsage},
		"end not seen":                 {Reason: scheduling.EndUnseen, Usage: scheduling.UnknownUsage},
		"engine reports nothing of it": ok200,
	} {
		t.Run("stays when "+name, func(t *testing.T) {
			h := newOne(t)
			h.send(prompt, "a:1").Done(o, h.now())
			h.expect(name, prompt, map[string]int{"a:1": 96, "b:1": 0})
		})
	}
	t.Run("moves", func(t *testing.T) {
		h := newOne(t)
		h.site.at("b:1").say(t, store(16, upTo(32), 1))
		f := h.send(prompt, "a:1")
		f.Served(h.endpoint("b:1"), f.PickedAt)
		h.expect("moved", prompt, map[string]int{"a:1": 0, "b:1": 96})
		f.Done(ok200, h.now())
		h.advance(defaultTTL)
		h.expect("moved, later", prompt, map[string]int{"a:1": 0, "b:1": 32})
	})
	t.Run("off", func(t *testing.T) {
		h := newOne(t)
		h.reload(func(p *Parameters) { p.SpeculativeIndexing = false })
		h.serve(prompt, "a:1", -1)
		h.expect("off", prompt, map[string]int{"a:1": 0, "b:1": 0})
	})
	t.Run("not by a preview", func(t *testing.T) {
		h := newOne(t)
		c := h.begin(prompt)
		h.scheduler.Preview(c)
		h.scheduler.End(c)
		h.expect("previewed", prompt, map[string]int{"a:1": 0, "b:1": 0})
	})
}

// Of an engine whose events cannot be trusted, what was routed there counts until they can.
func TestRoutedWhileNotLive(t *testing.T) {
	prompt := ids("m", upTo(100))
	for _, state := range []cursor.State{cursor.Silent, cursor.Initial, cursor.Replaying, cursor.Degraded} {
		h := newHarness(t, nil)
		h.endpoints("a:1", "b:1")
		a := h.site.at("a:1")
		a.rank(0).State(state)
		a.say(t, store(16, upTo(32), 1))
		h.serve(prompt, "a:1", -1)
		h.advance(time.Hour)
		h.expect("routed an hour ago", prompt, map[string]int{"a:1": 96, "b:1": 0})
		a.say(t, removed("gpu", 2))
		h.expect("what its events say is gone", prompt, map[string]int{"a:1": 16, "b:1": 0})
		h.serve(prompt, "a:1", -1)
		h.expect("routed once more", prompt, map[string]int{"a:1": 96, "b:1": 0})
		a.say(t, store(16, upTo(48), 1))
		h.advance(defaultTTL)
		a.live()
		h.expect("live: what the events say", prompt, map[string]int{"a:1": 48, "b:1": 0})
		if blocks, _ := h.source("a:1").routed.size(); blocks != 0 {
			t.Errorf("%d routed blocks are left", blocks)
		}
	}
}

// While not live it is kept however often the same prompts come, and within bounds.
func TestRoutedIsBounded(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.MaxBlocksPerEndpoint = 200 })
	h.endpoints("a:1")
	h.site.at("a:1").rank(0).State(cursor.Degraded)
	for range 2000 {
		h.serve(ids("m", upTo(100)), "a:1", -1)
	}
	r := &h.source("a:1").routed
	if n := len(r.kept); n > 200 {
		t.Errorf("%d records of one prompt", n)
	}
	h.expect("kept", ids("m", upTo(100)), map[string]int{"a:1": 96})
	for i := range 500 {
		h.serve(ids("m", from(1000*i+1, 1000*i+160)), "a:1", -1)
	}
	if blocks, _ := r.size(); blocks > 200 || blocks < 150 {
		t.Errorf("%d routed blocks, want at most 200", blocks)
	}
	h.expect("the first is gone", ids("m", upTo(100)), map[string]int{"a:1": 0})
	h.expect("the last is there", ids("m", from(499_001, 499_160)), map[string]int{"a:1": 160})
	h.serve(ids("m", from(1, 16*300)), "a:1", -1) // more than there is room for at all
	h.site.at("a:1").live()
	checkStore(t, h.hub())
	if z := h.hub().store.Sizes(); z.Chains != 0 {
		t.Errorf("left: %+v", z)
	}
}

// A prompt whose tokens are not known goes to the approximate index, all the way.
func TestTextGoesToTheApproximateIndex(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1", "b:1")
	h.site.at("a:1").live()
	prompt := text("m", string(make([]byte, 640)))
	is := func(when string, a, b int) {
		t.Helper()
		want := infos{"a:1": scheduling.NewPrefixCacheMatchInfo(a, 10, 16), "b:1": scheduling.NewPrefixCacheMatchInfo(b, 10, 16)}
		if diff := cmp.Diff(want, h.look(prompt)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	f := h.send(prompt, "a:1")
	is("committed", 10, 0)
	f.Served(h.endpoint("b:1"), f.PickedAt)
	is("moved", 0, 10)
	f.Done(ok200, 0)
	is("done", 0, 10)
	h.send(prompt, "a:1").Done(scheduling.Outcome{Status: 503, Usage: scheduling.UnknownUsage}, 0)
	is("failed", 0, 10)
	f = h.send(prompt, "a:1")
	f.FirstToken(0)
	f.Done(scheduling.Outcome{Status: 500, Usage: scheduling.UnknownUsage}, 0)
	is("failed after the first token", 10, 10)
	checkStore(t, h.hub())
	if z := h.hub().store.Sizes(); z.Positions != 0 {
		t.Errorf("text is in the precise index: %+v", z)
	}
	a := h.endpoint("a:1")
	h.producer().CacheLost(a.Ordinal, a.Generation, true)
	is("restarted", 0, 10)
	if n := h.site.at("a:1").restarted; n != 1 {
		t.Errorf("the feed was told %d times", n)
	}
	h.endpoints("a:1", "b:1#2")
	is("b replaced", 0, 0)
	if n := h.metric("sluice_prefix_cache_approximate_requests_total"); n < 8 {
		t.Errorf("%v requests counted as approximate", n)
	}
	// Of several token prompts the first is looked up; text beside token ids makes the count an estimate.
	batch := ids("m", upTo(64))
	batch.TokenCount = 128
	h.site.at("a:1").say(t, store(16, upTo(64), 1))
	h.expect("a batch", batch, map[string]int{"a:1": 64, "b:1": 0})
	batch.PromptBytes = 100
	h.expect("text beside ids", batch, map[string]int{"a:1": 0, "b:1": 0})
}

func TestC05_InstanceReplacedUnderItsAddress(t *testing.T) {
	h := newHarness(t, nil)
	payloads := kvtest.Payloads(t)
	h.endpoints("a:1#1")
	old := h.site.at("a:1")
	old.live()
	old.hear(t, payloads["K01"])
	running := h.send(ids("m", upTo(100)), "a:1")
	h.expect("the first life", ids("m", upTo(100)), map[string]int{"a:1": 96})
	h.endpoints("a:1#2")
	h.expect("the second life", ids("m", upTo(100)), map[string]int{"a:1": 0})
	old.hear(t, payloads["K01"]) // still under way
	old.hear(t, payloads["K02"])
	eventually(t, "the old feed is closed", func() bool {
		old.mu.Lock()
		defer old.mu.Unlock()
		return old.closed
	})
	next := h.site.at("a:1")
	next.live()
	next.hear(t, payloads["K01"])
	second := h.send(ids("m", upTo(64)), "a:1")
	running.Served(h.endpoint("a:1"), running.PickedAt) // what began with the old one may still end at the new one
	running.Done(scheduling.Outcome{Status: 502, Usage: scheduling.Usage{CachedTokens: 0}}, h.now())
	h.expect("late ends of the first life", ids("m", upTo(100)), map[string]int{"a:1": 64})
	h.end(second, 16)
	h.advance(defaultTTL)
	h.expect("events of the second life", ids("m", upTo(100)), map[string]int{"a:1": 16})
	if next.closed {
		t.Error("the wrong feed is closed")
	}
}
