package precise

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// An engine's first event is about the first prompt that it computes. What was sent there meanwhile counts on, as it does for
// an engine that was heard before.
func TestRoutedOutlastsTheFirstEvent(t *testing.T) {
	computed, waiting, old := ids("m", upTo(64)), ids("m", from(501, 596)), ids("m", from(901, 996))
	states := []cursor.State{cursor.Silent, cursor.Initial, cursor.Replaying, cursor.Degraded}
	newOne := func(t *testing.T, state cursor.State) (*harness, *stubFeed) {
		h := newHarness(t, nil)
		h.endpoints("a:1", "b:1")
		a := h.site.at("a:1")
		a.rank(0).State(state)
		return h, a
	}
	wake := func(t *testing.T, a *stubFeed) {
		a.say(t, store(16, upTo(64), 1))
		a.live()
	}
	for _, state := range states {
		t.Run(state.String(), func(t *testing.T) {
			h, a := newOne(t, state)
			h.serve(old, "a:1", -1)
			h.advance(defaultTTL)
			h.send(computed, "a:1")
			h.advance(defaultTTL / 2)
			f := h.send(waiting, "a:1")
			wake(t, a)
			h.expect("what the event says", computed, map[string]int{"a:1": 64, "b:1": 0})
			h.expect("sent, and not computed yet", waiting, map[string]int{"a:1": 96, "b:1": 0})
			h.expect("a next turn", ids("m", from(501, 696)), map[string]int{"a:1": 96, "b:1": 0})
			h.expect("of before", old, map[string]int{"a:1": 0, "b:1": 0})
			h.advance(defaultTTL - 1)
			h.expect("just before the end", waiting, map[string]int{"a:1": 96, "b:1": 0})
			h.advance(1)
			h.expect("2 s without an event", waiting, map[string]int{"a:1": 0, "b:1": 0})
			h.expect("what the event says, later", computed, map[string]int{"a:1": 64, "b:1": 0})
			f.Done(ok200, h.now())
		})
	}
	for name, step := range map[string]struct {
		do   func(*testing.T, *harness, *stubFeed)
		want int
	}{
		"events say less": {func(t *testing.T, _ *harness, a *stubFeed) {
			a.say(t, store(16, from(501, 596), 11), removed("gpu", 16, 15))
		}, 64},
		"cleared": {func(t *testing.T, _ *harness, a *stubFeed) { a.say(t, cleared) }, 0},
		"another life of the engine": {func(_ *testing.T, _ *harness, a *stubFeed) {
			a.rank(0).Forget(cursor.CauseReplayDiffers)
		}, 0},
		"started anew in place": {func(_ *testing.T, h *harness, _ *stubFeed) {
			e := h.endpoint("a:1")
			h.producer().CacheLost(e.Ordinal, e.Generation, true)
		}, 0},
		"the past is read again": {func(_ *testing.T, _ *harness, a *stubFeed) {
			a.rank(0).Forget(cursor.CauseRebuild)
			a.rank(0).State(cursor.Replaying)
		}, 96},
		"a snapshot": {func(_ *testing.T, _ *harness, a *stubFeed) { a.rank(0).Forget(cursor.CauseSnapshot) }, 96},
	} {
		for when, wakes := range map[string][2]bool{"before": {true, false}, "after": {false, true}} {
			t.Run(name+", live "+when, func(t *testing.T) {
				h, a := newOne(t, cursor.Degraded)
				f := h.send(waiting, "a:1")
				if wakes[0] {
					wake(t, a)
				}
				step.do(t, h, a)
				if wakes[1] {
					wake(t, a)
				}
				h.expect(name, waiting, map[string]int{"a:1": step.want, "b:1": 0})
				f.Done(ok200, h.now())
				h.advance(defaultTTL)
				h.expect(name+", later", waiting, map[string]int{"a:1": map[bool]int{true: 64, false: 0}[step.want == 64], "b:1": 0})
			})
		}
	}
	t.Run("taken back", func(t *testing.T) {
		h, a := newOne(t, cursor.Initial)
		f := h.send(waiting, "a:1")
		wake(t, a)
		f.Done(scheduling.Outcome{Status: 503, Usage: scheduling.UnknownUsage}, h.now())
		h.expect("refused after the first event", waiting, map[string]int{"a:1": 0, "b:1": 0})
	})
	t.Run("without speculation", func(t *testing.T) {
		h, a := newOne(t, cursor.Initial)
		h.reload(func(p *Parameters) { p.SpeculativeIndexing = false })
		h.serve(waiting, "a:1", -1)
		h.expect("before", waiting, map[string]int{"a:1": 96, "b:1": 0})
		wake(t, a)
		h.expect("live", waiting, map[string]int{"a:1": 0, "b:1": 0})
	})
}

// What counts for an engine that becomes live is what its events say, and every prompt of the last 2 s, whatever came before.
func TestRoutedAgainstSets(t *testing.T) {
	type pick struct {
		tokens []uint32
		at     time.Duration
		share  share
	}
	const ttl = 20
	rapid.Check(t, func(t *rapid.T) {
		h := newTestHub()
		h.maxRouted = 40
		s := h.newSource()
		p := &pool{hub: h}
		prompts := [][]uint32{upTo(64), upTo(160), append(upTo(64), from(301, 364)...), from(401, 464), from(401, 416)}
		var picks []pick
		told := 0 // tokens of the second prompt
		now := time.Duration(0)
		step := func() {
			switch rapid.IntRange(0, 11).Draw(t, "action") {
			case 0:
				s.Forget(cursor.CauseRestart)
				picks, told = nil, 0
			case 1:
				s.Forget(cursor.CauseRebuild)
				told = 0
			case 2:
				s.State(rapid.SampledFrom([]cursor.State{cursor.Initial, cursor.Silent, cursor.Degraded, cursor.Replaying}).Draw(t, "state"))
			case 3:
				s.Apply(&wire.Batch{Events: []wire.Event{cleared, store(16, upTo(160)[:32], 1)}})
				picks, told = nil, 32
			case 4:
				if len(picks) > 0 {
					i := rapid.IntRange(0, len(picks)-1).Draw(t, "refused")
					s.routed.undo(picks[i].share)
					picks = append(picks[:i:i], picks[i+1:]...)
				}
			case 5, 6:
				now += time.Duration(rapid.IntRange(1, ttl).Draw(t, "time"))
				h.queue.expire(now, math.MaxInt)
			default:
				tokens := rapid.SampledFrom(prompts).Draw(t, "prompt")
				hashes := p.look(ask{tokens: tokens}).cuts[0].hashes
				share := s.routed.add(hashes, rapid.IntRange(0, len(hashes)).Draw(t, "cached"), 16, now+ttl)
				h.queue.push(share.record)
				picks = append(picks, pick{tokens, now, share})
				room := h.maxRouted
				for i := len(picks) - 1; i >= 0; i-- {
					if room -= len(picks[i].tokens) / 16; room < 0 { // the oldest go
						picks = picks[i+1:]
						break
					}
				}
			}
		}
		check := func(live bool) {
			t.Helper()
			for _, prompt := range prompts {
				want := min(told, same(prompt, prompts[1]))
				for _, q := range picks {
					if !live || q.at+ttl > now {
						want = max(want, same(prompt, q.tokens))
					}
				}
				f, _ := p.look(ask{tokens: prompt}).of(s, 16)
				if got := f.info.CachedBlockCount * 16; got != want {
					t.Fatalf("at %d, live %v: %d tokens of %v, want %d; %d picks", now, live, got, prompt, want, len(picks))
				}
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			step()
			check(false)
		}
		s.State(cursor.Live)
		for range 3 {
			check(true)
			now += time.Duration(rapid.IntRange(1, ttl).Draw(t, "time"))
			h.queue.expire(now, math.MaxInt)
		}
		now += ttl
		h.queue.expire(now, math.MaxInt)
		picks = nil
		check(true)
		if blocks, _ := s.routed.size(); blocks != 0 || s.routed.hashes != 0 || s.routed.any.Load() {
			t.Fatalf("%d blocks and %d hashes are left", blocks, s.routed.hashes)
		}
		if err := h.store.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// same is how many tokens two prompts begin with alike.
func same(a, b []uint32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
