package precise

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// alarmCase is something that an operator has to look at, which is a gauge while it lasts.
type alarmCase struct {
	kind    string
	off     bool // nothing is wrong
	config  CacheConfig
	change  func(*Parameters)
	events  func(h *harness, a *stubFeed)
	healing func(h *harness, a *stubFeed) // nil: it is not looked at
}

// rings checks that the gauge is there once the events have come, and gone once they are healed.
func (al alarmCase) rings(t *testing.T) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHarnessWith(t, al.config, al.change)
		h.endpoints("a:1")
		a := h.site.at("a:1")
		if al.events != nil {
			al.events(h, a)
		}
		is := func(when string, on bool) {
			t.Helper()
			time.Sleep(silentFor + 2*watchEvery)
			if got := h.metric("sluice_kv_alarms " + al.kind); (got == 1) != on {
				t.Errorf("%s: %v", when, got)
			}
		}
		is("begun", !al.off)
		if al.healing != nil {
			al.healing(h, a)
			is("over", false)
		}
	})
}

func TestAlarms(t *testing.T) {
	for name, al := range map[string]alarmCase{
		"silent": {kind: "silent", events: func(h *harness, _ *stubFeed) {
			for range silentAnswers {
				h.serve(ids("m", upTo(100)), "a:1", 0)
			}
		}, healing: func(_ *harness, a *stubFeed) { a.live() }},
		"nothing to say": {kind: "silent", off: true},
		"never predicted": {kind: "unpredicted", events: func(h *harness, a *stubFeed) {
			a.live()
			for i := range unpredictedRow {
				h.serve(ids("m", from(1000*i+1, 1000*i+100)), "a:1", 48)
			}
		}, healing: func(h *harness, a *stubFeed) {
			a.say(t, store(16, upTo(64), 1))
			h.serve(ids("m", upTo(100)), "a:1", 64)
		}},
	} {
		t.Run(name, al.rings)
	}
}

// An engine that starts again has nothing to say until it is asked something, whatever it answered in its last life.
func TestC03_SilenceCountsFromTheRestart(t *testing.T) {
	restarted := func(answers int) func(*harness, *stubFeed) {
		return func(h *harness, a *stubFeed) {
			a.live()
			for range 2 * silentAnswers {
				h.serve(ids("m", upTo(100)), "a:1", 0)
			}
			time.Sleep(silentFor + 2*watchEvery)
			a.rank(0).State(cursor.Silent)
			for range answers {
				h.serve(ids("m", upTo(100)), "a:1", 0)
			}
		}
	}
	t.Run("idle since", alarmCase{kind: "silent", off: true, events: restarted(0)}.rings)
	t.Run("too few answers", alarmCase{kind: "silent", off: true, events: restarted(silentAnswers - 1)}.rings)
	t.Run("answers since", alarmCase{kind: "silent", events: restarted(silentAnswers)}.rings)
	t.Run("not for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarnessWith(t, nil, nil)
			h.endpoints("a:1")
			restarted(silentAnswers)(h, h.site.at("a:1"))
			time.Sleep(silentFor - 2*watchEvery)
			if got := h.metric("sluice_kv_alarms silent"); got != 0 {
				t.Errorf("after %v: %v", silentFor-2*watchEvery, got)
			}
		})
	})
}

// One of two ranks says nothing.
func TestC23_ASilentRankIsAnAlarm(t *testing.T) {
	alarmCase{kind: "silent", events: func(h *harness, a *stubFeed) {
		a.live()
		a.rank(0).Apply(&wire.Batch{Events: []wire.Event{store(16, upTo(64), 1)}})
		a.rank(1).State(cursor.Initial)
		for range 2 * silentAnswers {
			h.serve(ids("m", upTo(100)), "a:1", 64)
		}
	}, healing: func(_ *harness, a *stubFeed) { a.rank(1).State(cursor.Live) }}.rings(t)
}

func TestC14_GroupsOfOtherSizesAreAnAlarm(t *testing.T) {
	alarmCase{kind: "block_size", events: func(_ *harness, a *stubFeed) {
		a.say(t, store(16, upTo(64), 1), inGroup(1, "mla_attention", store(64, upTo(64), 11)))
	}, healing: func(_ *harness, a *stubFeed) { a.say(t, cleared, store(16, upTo(64), 1)) }}.rings(t)
}

func TestC02_NothingAppliesIsAnAlarm(t *testing.T) {
	payloads := kvtest.Payloads(t)
	alarmCase{kind: "unapplied", events: func(_ *harness, a *stubFeed) {
		for range unappliedBlocks {
			a.hear(t, payloads["K09"])
		}
	}, healing: func(_ *harness, a *stubFeed) { a.hear(t, payloads["K01"]) }}.rings(t)
}

// Events of 16 tokens a block beside a configuration or metrics that say another size.
func TestC39_OtherSizesThanTheEventsAreAnAlarm(t *testing.T) {
	payloads := kvtest.Payloads(t)
	hear := func(_ *harness, a *stubFeed) { a.hear(t, payloads["K01"]) }
	for name, al := range map[string]alarmCase{
		"configured 64": {
			kind: "block_size", change: func(p *Parameters) { p.BlockSizeTokens = 64 }, events: hear,
			healing: func(h *harness, _ *stubFeed) { h.reload(func(p *Parameters) { p.BlockSizeTokens = 16 }) },
		},
		"metrics say 32": {kind: "block_size", config: fixedSize(32), events: hear},
		"nothing configured, events of 32": {kind: "block_size", off: true, events: func(_ *harness, a *stubFeed) {
			a.say(t, store(32, upTo(32), 1))
		}},
	} {
		t.Run(name, al.rings)
	}
}
