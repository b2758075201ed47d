package cursor

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	var got []string
	for _, s := range States() {
		got = append(got, s.String())
	}
	for c := range NumCauses {
		got = append(got, c.String())
	}
	for r := range NumReasons {
		got = append(got, r.String())
	}
	for _, name := range got {
		if name == "" || name == "unknown" {
			t.Errorf("a name is missing: %v", got)
		}
	}
	if got := State(99).String() + Cause(99).String() + Reason(99).String(); got != "unknownunknownunknown" {
		t.Errorf("names out of range: %q", got)
	}
	want := []State{Initial, Replaying, Live, Degraded, Silent}
	if diff := cmp.Diff(want, States()); diff != "" {
		t.Error(diff)
	}
}

func TestSilence(t *testing.T) {
	t.Run("without replay", func(t *testing.T) {
		o := newOwner(Config{SilentAfter: time.Minute})
		expect(t,
			o.connect(), "",
			o.sleep(time.Minute-1), "",
			o.sleep(1), "→silent(silence)",
			o.disconnect(), "",
			o.connect(), "",
			o.sleep(time.Hour), "",
			o.hear(msg(1, 0)), "apply 0 →live(first)",
			o.sleep(time.Hour), "", // an idle engine says nothing
		)
	})
	t.Run("never connected", func(t *testing.T) {
		o := newOwner(Config{SilentAfter: time.Minute})
		expect(t, o.sleep(time.Minute), "→silent(silence)")
		if o.Settled() {
			t.Error("settled without ever having been connected")
		}
	})
	t.Run("nothing to replay", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		expect(t,
			o.connect(), "ask 0 →replaying(connected)",
			o.sleep(time.Hour), "", // the replay's owner bounds it
			o.end(), "→silent(silence)",
		)
		if !o.Settled() {
			t.Error("not settled")
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		o := newOwner(Config{SilentAfter: time.Minute})
		o.connect()
		o.hear(msg(1, 0))
		expect(t,
			o.sleep(time.Hour), "",
			o.sign(), "forget(restart) →initial(restart)",
			o.sleep(time.Minute-1), "",
			o.sleep(1), "→silent(silence)",
		)
	})
}

func TestSignInEveryState(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(o *owner)
		want  string
	}{
		"initial": {func(o *owner) {
			o.connect()
			o.fail()
		}, "ask 0 →replaying(restart)"},
		"silent": {func(o *owner) {
			o.connect()
			o.end()
		}, "ask 0 →replaying(restart)"},
		"silent, asked again in vain": {func(o *owner) {
			o.connect()
			o.end()
			o.disconnect()
			o.connect()
			o.fail()
		}, "ask 0 →replaying(restart)"},
		"replaying": {func(o *owner) {
			o.connect()
			o.reply(msg(1, 0))
		}, "forget(restart) ask 0"},
		"live": {func(o *owner) {
			o.connect()
			o.reply(msg(1, 0))
			o.end()
		}, "forget(restart) ask 0 →replaying(restart)"},
		"degraded": {func(o *owner) {
			o.connect()
			o.reply(msg(1, 3))
			o.end()
		}, "forget(restart) ask 0 →replaying(restart)"},
		"disconnected": {func(o *owner) {
			o.connect()
			o.reply(msg(1, 0))
			o.end()
			o.disconnect()
		}, "forget(restart) →initial(restart)"},
		"degraded, the retry is due": {func(o *owner) {
			o.connect()
			o.reply(msg(1, 0))
			o.fail()
		}, "forget(restart) ask 0 →replaying(restart)"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(Config{CanReplay: true, MaxAttempts: 1})
			c.begin(o)
			expect(t,
				o.sign(), c.want,
				o.do(func() Step { return o.Tick(o.now.Add(time.Hour)) }, nil), map[bool]string{true: "→silent(silence)"}[name == "disconnected"],
			)
		})
	}
}

func TestUnreadable(t *testing.T) {
	bad := msg(1, 1)
	bad.Unreadable = true
	t.Run("live", func(t *testing.T) {
		o := newOwner(Config{})
		o.connect()
		o.hear(msg(1, 0))
		expect(t,
			o.hear(bad), "apply 1 →degraded(unreadable)",
			o.hear(msg(1, 2)), "apply 2",
			o.hear(clearing(1, 3)), "apply 3 →live(cleared)",
		)
	})
	t.Run("replayed", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 0))
		o.reply(bad)
		expect(t,
			o.end(), "→degraded(unreadable)",
			o.sleep(time.Hour), "", // the same bytes would come
		)
	})
}

func TestOverflow(t *testing.T) {
	t.Run("another replay follows", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.bound = 2
		o.connect()
		expect(t,
			o.hear(msg(1, 3)), "hold",
			o.hear(msg(1, 4)), "hold",
			o.hear(msg(1, 5)), "hold overflow",
			o.hear(msg(1, 6)), "hold",
			o.reply(msg(1, 0)), "apply 0",
			o.reply(msg(1, 1)), "apply 1",
			o.end(), "ask 2",
		)
		if o.Settled() || len(o.held) != 1 {
			t.Errorf("settled %t, %d held", o.Settled(), len(o.held))
		}
		for seq := uint64(2); seq < 6; seq++ {
			o.reply(msg(1, seq))
		}
		expect(t, o.end(), "apply 6 →live(replayed)")
	})
	t.Run("of a replay that brings nothing", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.bound = 1
		o.connect()
		o.hear(msg(1, 0))
		o.hear(msg(1, 1))
		expect(t,
			o.end(), "→silent(silence)",
			o.hear(msg(1, 2)), "hold ask 0 →replaying(gap)", // they may be there now
			o.end(), "apply 2 →degraded(late_start)", // but once only
		)
	})
	t.Run("of what is kept", func(t *testing.T) {
		o := newOwner(Config{})
		o.bound = 2
		o.connect()
		expect(t,
			o.hear(msg(1, 0)), "apply 0 →live(first)",
			o.hear(msg(1, 1)), "apply 1",
			o.hear(msg(1, 2)), "apply 2 overflow",
			o.hear(msg(1, 3)), "apply 3",
			o.sign(), "forget(restart) →initial(restart)",
		)
		if o.kept != 3 {
			t.Errorf("kept %d, want 3", o.kept)
		}
	})
}

func TestCanReplayLater(t *testing.T) {
	t.Run("nothing known", func(t *testing.T) {
		o := newOwner(Config{})
		o.connect()
		expect(t,
			o.can(true), "ask 0 →replaying(connected)",
			o.can(true), "",
			o.reply(msg(1, 0)), "apply 0",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("not connected", func(t *testing.T) {
		o := newOwner(Config{})
		expect(t,
			o.can(true), "",
			o.connect(), "ask 0 →replaying(connected)",
		)
	})
	t.Run("holes", func(t *testing.T) {
		o := newOwner(Config{})
		o.connect()
		o.hear(msg(1, 57))
		expect(t,
			o.can(true), "ask 0",
			o.reply(msg(1, 0)), "forget(rebuild) apply 0 →replaying(rebuild)",
		)
	})
	t.Run("nothing missing", func(t *testing.T) {
		o := newOwner(Config{})
		o.connect()
		o.hear(msg(1, 0))
		expect(t, o.can(true), "")
		if len(o.held) != 0 {
			t.Errorf("%d messages are still kept", len(o.held))
		}
	})
	t.Run("unproven", func(t *testing.T) {
		o := newOwner(Config{})
		o.connect()
		o.hear(msg(1, 0))
		o.disconnect()
		o.connect()
		expect(t,
			o.can(true), "ask 0 →replaying(reconnected)",
			o.reply(msg(1, 0)), "ignore",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("no longer", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 0))
		expect(t,
			o.hear(msg(1, 2)), "hold",
			o.can(false), "apply 2 →degraded(replay_failed)",
		)
		if o.from != nil || !o.Settled() {
			t.Errorf("replay still runs: %t, settled %t", o.from != nil, o.Settled())
		}
	})
}

// A replay that broke off behind the last message leaves it open whether there is more.
func TestBrokenOffReplay(t *testing.T) {
	begin := func() *owner {
		o := newOwner(Config{CanReplay: true, MaxAttempts: 1})
		o.connect()
		o.reply(msg(1, 0))
		expect(t, o.fail(), "→degraded(replay_failed)")
		return o
	}
	t.Run("the next one shows that there is not", func(t *testing.T) {
		expect(t, begin().hear(msg(1, 1)), "apply 1 →live(continued)")
	})
	t.Run("asked again", func(t *testing.T) {
		o := begin()
		expect(t,
			o.sleep(5*time.Second), "ask 1 →replaying(gap)",
			o.reply(msg(1, 1)), "apply 1",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("asked again, nothing more", func(t *testing.T) {
		o := begin()
		expect(t,
			o.sleep(5*time.Second), "ask 1 →replaying(gap)",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("gone meanwhile", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "",
			o.sleep(time.Hour), "", // nobody to ask
			o.connect(), "ask 0 →replaying(reconnected)",
		)
	})
}

func TestSnapshot(t *testing.T) {
	take := func(o *owner, next uint64) string {
		return o.do(func() Step { return o.Snapshotted(o.now, next) }, nil)
	}
	t.Run("first", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		expect(t,
			o.hear(msg(1, 99)), "hold",
			o.hear(msg(1, 100)), "hold",
			take(o, 100), "ignore apply 100 →live(snapshot)",
			o.hear(msg(1, 101)), "apply 101",
		)
		if !o.Settled() || o.from != nil {
			t.Errorf("settled %t, replay runs %t", o.Settled(), o.from != nil)
		}
	})
	t.Run("in place of what is known", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true, MaxAttempts: 1})
		o.connect()
		o.reply(msg(1, 0))
		o.hear(msg(1, 5))
		o.fail()
		expect(t,
			o.sleep(5*time.Second), "ask 0",
			take(o, 9), "forget(snapshot) →live(snapshot)",
			o.hear(msg(1, 9)), "apply 9",
		)
	})
	t.Run("whose last number cannot be checked", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		take(o, 100)
		o.disconnect()
		expect(t,
			o.connect(), "ask 99 →replaying(reconnected)",
			o.reply(msg(1, 99)), "forget(replay_differs) ignore ask 0",
		)
	})
	t.Run("of an engine that has said nothing", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		expect(t,
			take(o, 0), "→initial(snapshot)",
			o.hear(msg(1, 0)), "apply 0 →live(first)",
		)
	})
}

// What a replay covered is ignored even where its fingerprint is no longer kept.
func TestMoreCoveredThanPrintsAreKept(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	o.connect()
	const n = 3 * printsKept
	for seq := range uint64(n) {
		o.hear(msg(1, seq))
	}
	for seq := range uint64(n) {
		o.reply(msg(1, seq))
	}
	if got := o.end(); strings.Contains(got, "forget") || strings.Contains(got, "apply") || strings.Count(got, "ignore") != n {
		t.Errorf("got %.200s", got)
	}
	expect(t, o.hear(msg(1, n)), "apply 768")
}

func TestPrintsKeepTheLast(t *testing.T) {
	var p prints
	for seq := range uint64(printsKept + 1) {
		p.put(seq, seq+7)
	}
	for _, c := range []struct {
		seq  uint64
		kept bool
	}{{0, false}, {1, true}, {printsKept, true}, {printsKept + 1, false}} {
		if print, ok := p.get(c.seq); ok != c.kept || ok && print != c.seq+7 {
			t.Errorf("%d: got %d, %t", c.seq, print, ok)
		}
	}
	p.clear()
	if _, ok := p.get(printsKept); ok {
		t.Error("something is left")
	}
}

// A second connection may be noticed before the end of the first.
func TestConnectedTwice(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	o.connect()
	o.hear(msg(1, 0))
	expect(t, o.connect(), "ask 0")
	if len(o.held) != 0 {
		t.Errorf("%d messages of the old connection are held", len(o.held))
	}
}

// What was held of a connection that is gone may be another process's.
func TestHeldGoesWithTheConnection(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	o.connect()
	o.hear(msg(1, 1))
	o.disconnect()
	o.connect()
	o.reply(msg(2, 0))
	expect(t, o.end(), "→live(replayed)")
	if len(o.seqs()) != 1 {
		t.Errorf("applied %v", o.applied)
	}
}

func TestInputsOutOfPlace(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	expect(t,
		o.end(), "",
		o.fail(), "",
		o.do(func() Step { return o.Replayed(o.now, msg(1, 0)) }, &Message{}), "ignore",
		o.disconnect(), "",
		o.sign(), "",
		o.connect(), "ask 0 →replaying(connected)",
	)
	if _, ok := o.Last(); ok {
		t.Error("something was applied")
	}
}

func TestNothingIsAllocated(t *testing.T) {
	c := New(Config{}, epoch)
	c.Connected(epoch)
	seq := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		if s := c.Live(epoch, msg(1, seq)); s.Verdict != Apply {
			t.Fatal(s)
		}
		seq++
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
