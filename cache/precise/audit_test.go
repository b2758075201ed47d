package precise

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// An engine recomputes the last token of a prompt that it has whole: what it should report is ⌊(tokens − 1) / size⌋ blocks
// at most, although the match counts all.
func TestAuditFollowsTheLastTokenRule(t *testing.T) {
	for _, tc := range []struct {
		tokens, held, predicted int
	}{
		{64, 64, 48}, {65, 64, 64}, {79, 64, 64}, {80, 64, 64}, {80, 80, 64}, {16, 16, 0}, {17, 16, 16}, {15, 0, 0}, {64, 32, 32},
	} {
		for _, off := range []int{-16, 0, 16} {
			reported := tc.predicted + off
			if reported < 0 || reported > tc.tokens {
				continue
			}
			h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing = false })
			h.endpoints("a:1")
			h.site.at("a:1").live()
			if tc.held > 0 {
				h.site.at("a:1").say(t, store(16, upTo(tc.held), 1))
			}
			h.serve(ids("m", []uint32{7, 7, 7}), "a:1", 1) // so that it is known to report
			h.serve(ids("m", upTo(tc.tokens)), "a:1", reported)
			want := audit.Counts{Answers: 2, Predicted: int64(tc.predicted), Reported: int64(reported + 1), Under: 1}
			switch {
			case off < 0:
				want.FalseHits, want.Over = 1, 16
			case off > 0:
				want.Misses, want.Under = 1, 17
			}
			if diff := cmp.Diff(want, h.producer().Audit().Of(h.endpoint("a:1"))); diff != "" {
				t.Errorf("%+v, reported %d (-want +got):\n%s", tc, reported, diff)
			}
		}
	}
}

// What nobody predicted, or reported, is not audited.
func TestAuditLeavesOut(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1", "b:1")
	h.site.at("a:1").live()
	h.serve(ids("m", upTo(64)), "a:1", -1)                                                                               // not reported
	h.send(ids("m", upTo(64)), "a:1").Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, 0)                      // not complete
	h.send(ids("m", upTo(64)), "a:1").Done(scheduling.Outcome{Status: 500, Usage: scheduling.Usage{CachedTokens: 0}}, 0) // failed
	batch := ids("m", upTo(64))
	batch.TokenCount = 128
	h.serve(batch, "a:1", 100) // several prompts: the engine counts them together
	several := ids("m", upTo(64))
	several.Choices = 2
	h.serve(several, "a:1", 100)
	if got := h.producer().Audit().Sum(); got != (audit.Counts{}) {
		t.Errorf("audited: %+v", got)
	}
	if got := h.producer().ApproximateAudit().Sum(); got != (audit.Counts{}) {
		t.Errorf("audited as of the approximate index: %+v", got)
	}
}

// Of a request that is retried elsewhere, what counts is what was known at the pick of the endpoint that served. Nothing is
// taken away there.
func TestAuditOfTheOneThatServed(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing = false })
	h.endpoints("a:1", "b:1")
	prompt := ids("m", upTo(100))
	for _, name := range []string{"a:1", "b:1"} {
		h.site.at(name).rank(0).State(cursor.Degraded)
		h.site.at(name).live()
	}
	h.site.at("a:1").say(t, store(16, upTo(32), 1))
	h.site.at("b:1").say(t, store(16, upTo(96), 1))
	f := h.send(prompt, "a:1")
	f.Served(h.endpoint("b:1"), f.PickedAt)
	h.end(f, 64)
	table := h.producer().Audit()
	want := audit.Counts{Answers: 1, FalseHits: 1, Predicted: 96, Reported: 64, Over: 32}
	if a, b := table.Of(h.endpoint("a:1")), table.Of(h.endpoint("b:1")); a != (audit.Counts{}) || b != want {
		t.Errorf("a: %+v, b: %+v; want nothing and %+v", a, b, want)
	}
	h.expect("nothing is doubted", prompt, map[string]int{"a:1": 32, "b:1": 96})
}

// A prompt that is not known by its tokens is audited as what the approximate index said of it, under a name of its own.
func TestAuditOfTheFallback(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	prompt := strings.Repeat("some text that is not looked up by tokens ", 20)
	for range 2 {
		h.serve(text("m", prompt), "a:1", 100)
	}
	precise, approximate := h.producer().Audit().Sum(), h.producer().ApproximateAudit().Sum()
	if precise != (audit.Counts{}) || approximate.Answers != 2 || approximate.Misses != 1 {
		t.Errorf("precise %+v, approximate %+v; want the latter to have two answers, the first one a miss", precise, approximate)
	}
	if n := h.metric("sluice_prefix_cache_predictions_total a:1 approximate under"); n != 1 {
		t.Errorf("%v misses shown", n)
	}
}

// What lies beyond maxPrefixTokens is nobody's prediction.
func TestAuditOfAPromptThatIsCapped(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing, p.MaxPrefixTokens = false, 64 })
	h.endpoints("a:1")
	h.site.at("a:1").live()
	h.site.at("a:1").say(t, store(16, upTo(96), 1))
	h.serve(ids("m", upTo(100)), "a:1", 96)
	want := audit.Counts{Answers: 1, Predicted: 64, Reported: 64}
	if got := h.producer().Audit().Sum(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The counts stay through reloads, those that empty the index too, and go with their endpoint.
func TestAuditOutlivesReloads(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1", "b:1")
	h.site.at("a:1").live()
	h.serve(ids("m", upTo(64)), "a:1", 32)
	h.reload(func(p *Parameters) { p.HashSeed = "another" })
	h.serve(ids("m", upTo(64)), "a:1", 32)
	if got := h.producer().Audit().Of(h.endpoint("a:1")).Answers; got != 2 {
		t.Errorf("%d answers after a reload, want 2", got)
	}
	if n := h.metric("sluice_prefix_cache_predictions_total a:1 precise under"); n < 1 {
		t.Errorf("%v misses shown", n)
	}
	gone := h.endpoint("a:1")
	h.endpoints("b:1")
	if got := h.producer().Audit().Of(gone); got != (audit.Counts{}) {
		t.Errorf("an endpoint that went has %+v", got)
	}
	if n := testutil.CollectAndCount(h.registry, "sluice_prefix_cache_predictions_total"); n != 0 {
		t.Errorf("%d series without an endpoint", n)
	}
}

// An answer below its prediction takes away what the engine turned out not to have, on a source that cannot be trusted at
// once, on a live one from the second time.
func TestContradictionThroughAnswers(t *testing.T) {
	for _, state := range []cursor.State{cursor.Live, cursor.Degraded} {
		h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing = false })
		h.endpoints("a:1")
		a := h.site.at("a:1")
		a.rank(0).State(state)
		a.say(t, store(16, upTo(96), 1))
		prompt := ids("m", upTo(100))
		if state == cursor.Live {
			h.serve(prompt, "a:1", 32)
			h.expect("the first time", prompt, map[string]int{"a:1": 96})
		}
		h.serve(prompt, "a:1", 32)
		h.expect(state.String()+": not believed any more", prompt, map[string]int{"a:1": 32})
		h.serve(prompt, "a:1", 32) // of which nothing more follows
		h.serve(prompt, "a:1", 96) // more than predicted takes nothing away, nor does it add
		want := 32
		if state == cursor.Degraded { // what is routed to an engine that is not live counts
			want = 96
		}
		h.expect(state.String()+": then", prompt, map[string]int{"a:1": want})
		a.say(t, store(16, upTo(64), 1))
		a.live()
		h.expect(state.String()+": stored again", prompt, map[string]int{"a:1": 64})
		if n := h.metric("sluice_kv_event_blocks_total doubted"); n != 4 {
			t.Errorf("%s: %v doubted, want 4", state, n)
		}
	}
}

// What was stored between the pick and the answer is spared, and a speculation that the answer belies ends.
func TestContradictionAndWhatCameMeanwhile(t *testing.T) {
	h := newHarness(t, nil)
	h.endpoints("a:1")
	a := h.site.at("a:1")
	a.rank(0).State(cursor.Degraded)
	a.live()
	prompt := ids("m", upTo(100))
	a.say(t, store(16, upTo(96), 1))
	f := h.send(prompt, "a:1")
	a.say(t, removed("gpu", 6, 5, 4, 3, 2, 1), store(16, upTo(96), 1)) // evicted before it ran, and computed anew
	h.end(f, 0)
	h.expect("there", prompt, map[string]int{"a:1": 96})

	other := ids("m", from(1001, 1100))
	h.serve(other, "a:1", 0) // nothing predicted, nothing reported
	h.expect("speculation", other, map[string]int{"a:1": 96})
	h.serve(other, "a:1", 16)
	h.expect("speculation belied", other, map[string]int{"a:1": 16})
}

// An engine that was asked to announce again what it reuses does not thereby have it twice.
func TestReportFullIsNoSecondCopy(t *testing.T) {
	repeat := store(16, upTo(64), 1)
	for name, tc := range map[string]struct {
		full, moved bool
		left        int
	}{
		"asked": {true, false, 0}, "asked, served elsewhere": {true, true, 0}, "not asked": {false, false, 64},
	} {
		h := newHarness(t, func(p *Parameters) { p.SpeculativeIndexing = false })
		h.endpoints("a:1", "b:1")
		a := h.site.at("a:1")
		a.live()
		a.say(t, repeat)
		r := ids("m", upTo(70))
		r.KVReportFull = tc.full
		var f *scheduling.Flight
		if tc.moved {
			f = h.send(r, "b:1")
			f.Served(h.endpoint("a:1"), f.PickedAt)
		} else {
			f = h.send(r, "a:1")
		}
		a.say(t, repeat)
		h.end(f, 64)
		for range 2 {
			h.expect(name, ids("m", upTo(70)), map[string]int{"a:1": 64, "b:1": 0})
		}
		a.say(t, removed("gpu", 4, 3, 2, 1))
		h.expect(name+": removed once", ids("m", upTo(70)), map[string]int{"a:1": tc.left, "b:1": 0})
		for _, address := range []string{"a:1", "b:1"} {
			if n := len(h.source(address).reports.hashes); n != 0 {
				t.Errorf("%s: %d hashes are still noted for %s", name, n, address)
			}
		}
		// From now on a store is a copy again.
		a.say(t, repeat, repeat, removed("gpu", 4, 3, 2, 1))
		h.expect(name+": a copy again", ids("m", upTo(70)), map[string]int{"a:1": 64, "b:1": 0})
	}
}

// What is noted for such requests has a bound.
func TestReportsAreBounded(t *testing.T) {
	s := newPool(t).open().source
	hashes := make([]uint64, maxReported/2+1)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	others := make([]uint64, len(hashes))
	for i := range others {
		others[i] = uint64(1<<32 + i)
	}
	first, second, third := s.report(hashes), s.report(others), s.report(others)
	if len(s.reports.hashes) > maxReported || first != len(hashes) || second >= len(others) {
		t.Errorf("%d hashes noted, of %d, %d and %d", len(s.reports.hashes), first, second, third)
	}
	s.endReport(hashes[:first])
	s.endReport(others[:second])
	s.endReport(others[:third])
	if len(s.reports.hashes) != 0 {
		t.Errorf("%d hashes are left", len(s.reports.hashes))
	}
}

type fixedSize int

func (s fixedSize) CacheConfig(int, uint64) (int, int, bool) { return int(s), 0, s > 0 }

// Block sizes of endpoints whose events have told none come from their metrics, then from the configuration; events win.
func TestBlockSizeOfEndpointsThatHaveNotSpoken(t *testing.T) {
	h := newHarnessWith(t, fixedSize(32), func(p *Parameters) { p.BlockSizeTokens = 64 })
	h.endpoints("a:1", "b:1")
	h.site.at("a:1").live()
	h.site.at("a:1").say(t, store(16, upTo(32), 1))
	got := h.look(ids("m", upTo(256)))
	if a, b := got["a:1"], got["b:1"]; a != scheduling.NewPrefixCacheMatchInfo(2, 16, 16) || b != scheduling.NewPrefixCacheMatchInfo(0, 8, 32) {
		t.Errorf("got %+v and %+v", a, b)
	}
	// Up to eight sizes are looked up at once, the most used first.
	names := []string{"a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1", "i:1"}
	h.endpoints(names...)
	want := map[string]int{}
	for i, size := range []int{16, 16, 4, 8, 64, 128, 256, 512, 1024} {
		f := h.site.at(names[i])
		f.live()
		f.rank(0).Forget(0)
		f.say(t, store(size, upTo(1024), 1))
		want[names[i]] = 1024
	}
	want["i:1"] = 0
	h.expect("nine engines", ids("m", upTo(1024)), want)
	// An engine with many ranks counts as one, whatever they say.
	liar := h.site.at("h:1")
	for rank := 1; rank < 40; rank++ {
		liar.rank(rank).Apply(&wire.Batch{Events: []wire.Event{store(1+rank%3, upTo(96), 1)}})
	}
	want["h:1"] = 96
	delete(want, "i:1")
	for name, n := range want {
		if got := h.look(ids("m", upTo(1024)))[name]; name < "c" && got.CachedBlockCount*got.BlockSizeTokens != n {
			t.Errorf("beside an engine with 40 ranks: %s has %+v", name, got)
		}
	}
	// An engine may tell its size before anybody knows that it is there.
	g := newHarness(t, nil)
	follow := g.hub().follow
	g.hub().follow = func(e *scheduling.Endpoint, c kvevents.Config, o kvevents.Options, open func(int) kvevents.Sink) Feed {
		open(0).Apply(&wire.Batch{Events: []wire.Event{store(128, upTo(128), 1)}})
		return follow(e, c, o, open)
	}
	g.endpoints("a:1")
	g.expect("at once", ids("m", upTo(128)), map[string]int{"a:1": 128})
}
