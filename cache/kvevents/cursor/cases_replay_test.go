package cursor

import (
	"slices"
	"testing"
	"time"
)

// C03 with a replay socket: nothing is lost but what the engine lost itself.

func TestC03_a_WithReplay(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	expect(t,
		o.connect(), "ask 0 →replaying(connected)",
		o.end(), "→silent(silence)",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.hear(msg(2, 1)), "forget(backwards) hold ask 0 →replaying(new_generation)", // its 0 was lost
		o.reply(msg(2, 0)), "apply 0",
		o.reply(msg(2, 1)), "apply 1",
		o.end(), "ignore →live(replayed)",
	)
}

func TestC03_a_WithReplayAndHoles(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	o.connect()
	o.reply(msg(1, 5))
	expect(t,
		o.end(), "→degraded(late_start)",
		o.hear(msg(1, 6)), "apply 6",
		o.hear(msg(2, 0)), "forget(backwards) hold ask 0 →replaying(new_generation)",
	)
}

func TestC03_b_WithReplay(t *testing.T) {
	begin := func() *owner {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 0))
		o.reply(msg(1, 1))
		o.end()
		o.disconnect()
		return o
	}
	t.Run("the same process", func(t *testing.T) {
		o := begin()
		expect(t,
			o.connect(), "ask 1 →replaying(reconnected)", // the last one applied, inclusive
			o.hear(msg(1, 3)), "hold",
			o.reply(msg(1, 1)), "ignore",
			o.reply(msg(1, 2)), "apply 2",
			o.end(), "apply 3 →live(replayed)",
		)
		if len(o.forgot) != 0 {
			t.Errorf("forgot %v", o.forgot)
		}
	})
	t.Run("other bytes", func(t *testing.T) {
		o := begin()
		expect(t,
			o.connect(), "ask 1 →replaying(reconnected)",
			o.reply(msg(2, 1)), "forget(replay_differs) ignore ask 0",
			o.reply(msg(2, 0)), "apply 0",
			o.reply(msg(2, 1)), "apply 1",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("absent", func(t *testing.T) {
		o := begin()
		expect(t,
			o.connect(), "ask 1 →replaying(reconnected)",
			o.end(), "forget(replay_absent) ask 0",
			o.reply(msg(2, 0)), "apply 0",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("beginning later", func(t *testing.T) {
		o := begin()
		expect(t,
			o.connect(), "ask 1 →replaying(reconnected)",
			o.reply(msg(2, 4)), "forget(replay_absent) ignore ask 0",
			o.reply(msg(2, 4)), "apply 4",
			o.end(), "→degraded(late_start)",
		)
	})
	t.Run("beginning earlier than asked", func(t *testing.T) {
		o := begin()
		expect(t,
			o.connect(), "ask 1 →replaying(reconnected)",
			o.reply(msg(1, 0)), "ignore",
			o.reply(msg(1, 1)), "ignore",
			o.reply(msg(1, 2)), "apply 2",
			o.end(), "→live(replayed)",
		)
	})
	t.Run("failed, then as without replay", func(t *testing.T) {
		o := begin()
		o.connect()
		expect(t,
			o.hear(msg(1, 2)), "hold",
			o.fail(), "", o.sleep(250*time.Millisecond), "ask 1",
			o.fail(), "", o.sleep(250*time.Millisecond), "ask 1",
			o.fail(), "apply 2 →live(continued)",
		)
	})
	t.Run("failed, and another process", func(t *testing.T) {
		o := begin()
		o.connect()
		o.hear(msg(2, 0))
		o.fail()
		o.sleep(250 * time.Millisecond)
		o.fail()
		o.sleep(250 * time.Millisecond)
		expect(t, o.fail(), "forget(reconnect) apply 0 →live(new_generation)")
	})
}

func TestC03_d_WithReplay(t *testing.T) {
	o := newOwner(Config{CanReplay: true})
	o.connect()
	o.reply(msg(1, 0))
	o.end()
	o.disconnect()
	expect(t,
		o.connect(), "ask 0 →replaying(reconnected)",
		o.hear(msg(2, 1)), "hold",
		o.sign(), "forget(restart) ask 0",
		o.reply(msg(2, 0)), "apply 0",
		o.end(), "apply 1 →live(replayed)",
	)
}

func TestC03_e_WithReplay(t *testing.T) {
	begin := func(c Config) *owner {
		c.CanReplay = true
		o := newOwner(c)
		o.connect()
		o.reply(msg(1, 0))
		o.reply(msg(1, 1))
		o.end()
		return o
	}
	t.Run("filled", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 4)), "hold ask 2 →replaying(gap)",
			o.hear(msg(1, 5)), "hold",
			o.reply(msg(1, 2)), "apply 2",
			o.reply(msg(1, 3)), "apply 3",
			o.reply(msg(1, 4)), "apply 4",
			o.end(), "ignore apply 5 →live(replayed)",
		)
	})
	t.Run("not there any more", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 9)), "hold ask 2 →replaying(gap)",
			o.reply(msg(1, 8)), "apply 8",
			o.reply(msg(1, 9)), "apply 9",
			o.end(), "ignore →degraded(gap_lost)",
			o.sleep(time.Hour), "", // no retry brings it back
			o.hear(msg(1, 10)), "apply 10",
			o.hear(clearing(1, 11)), "apply 11 →live(cleared)",
		)
	})
	t.Run("not even asked twice", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 3)), "hold ask 2 →replaying(gap)",
			o.end(), "apply 3 →degraded(gap_lost)", // the engine never published 2
			o.hear(msg(1, 5)), "hold ask 4 →replaying(gap)",
			o.reply(msg(1, 4)), "apply 4",
			o.end(), "apply 5 →degraded(gap_lost)",
		)
	})
	t.Run("replies lost on the way are asked for again", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 6)), "hold ask 2 →replaying(gap)",
			o.reply(msg(1, 2)), "apply 2",
			o.reply(msg(1, 5)), "ignore ask 3",
			o.reply(msg(1, 3)), "apply 3",
			o.reply(msg(1, 4)), "apply 4",
			o.reply(msg(1, 5)), "apply 5",
			o.end(), "apply 6 →live(replayed)",
		)
	})
	t.Run("a hole in the replay itself", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 6)), "hold ask 2 →replaying(gap)",
			o.reply(msg(1, 2)), "apply 2",
			o.reply(msg(1, 5)), "ignore ask 3",
			o.reply(msg(1, 5)), "apply 5",
			o.end(), "apply 6 →degraded(gap_lost)",
		)
	})
	t.Run("replay of another process", func(t *testing.T) {
		o := begin(Config{})
		expect(t,
			o.hear(msg(1, 6)), "hold ask 2 →replaying(gap)",
			o.reply(msg(2, 1)), "forget(replay_differs) ignore ask 0",
		)
	})
}

// A replay that fails is tried again later, and then replaces what has holes.
func TestC03_e_RebuiltAfterAFailedReplay(t *testing.T) {
	begin := func() *owner {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 0))
		o.end()
		expect(t,
			o.hear(msg(1, 3)), "hold ask 1 →replaying(gap)",
			o.fail(), "",
			o.sleep(250*time.Millisecond), "ask 1",
			o.reply(msg(1, 1)), "apply 1", // progress: attempts begin anew
			o.fail(), "",
			o.sleep(250*time.Millisecond), "ask 2",
			o.fail(), "",
			o.sleep(250*time.Millisecond), "ask 2",
			o.fail(), "apply 3 →degraded(replay_failed)",
			o.hear(msg(1, 4)), "apply 4",
			o.hear(msg(1, 6)), "apply 6", // replay is broken: nothing is asked
			o.sleep(5*time.Second), "ask 0",
			o.hear(msg(1, 7)), "hold",
		)
		return o
	}
	t.Run("whole", func(t *testing.T) {
		o := begin()
		expect(t,
			o.reply(msg(1, 0)), "forget(rebuild) apply 0 →replaying(rebuild)",
			o.reply(msg(1, 1)), "apply 1",
			o.reply(msg(1, 2)), "apply 2",
		)
		for seq := range uint64(5) {
			o.reply(msg(1, seq+3))
		}
		expect(t, o.end(), "ignore →live(replayed)")
		if want := []uint64{0, 1, 2, 3, 4, 5, 6, 7}; !slices.Equal(o.seqs(), want) {
			t.Errorf("applied %v, want %v", o.seqs(), want)
		}
	})
	t.Run("no longer whole", func(t *testing.T) {
		o := begin()
		expect(t,
			o.reply(msg(1, 2)), "ignore apply 7", // degraded for good; what is known stays
			o.sleep(time.Hour), "",
		)
		if len(o.forgot) != 0 || o.State() != Degraded {
			t.Errorf("forgot %v, state %s", o.forgot, o.State())
		}
	})
	t.Run("failed again: the pauses grow", func(t *testing.T) {
		o := begin()
		var pauses []time.Duration
		for range 7 {
			for o.State() != Degraded || o.from != nil {
				o.fail()
				o.sleep(250 * time.Millisecond)
			}
			pauses = append(pauses, o.Next().Sub(o.now)+250*time.Millisecond)
			o.sleep(o.Next().Sub(o.now))
		}
		want := []time.Duration{10, 20, 40, 80, 120, 120, 120}
		for i := range want {
			if pauses[i] != want[i]*time.Second {
				t.Fatalf("pauses %v, want %v (s)", pauses, want)
			}
		}
		if len(o.forgot) != 0 {
			t.Errorf("forgot %v", o.forgot)
		}
	})
}

// C13 is a picker that is younger than the engine.
func TestC13_YoungerThanTheEngine(t *testing.T) {
	t.Run("without replay", func(t *testing.T) {
		o := newOwner(Config{})
		expect(t,
			o.connect(), "",
			o.hear(msg(1, 57)), "apply 57 →degraded(late_start)",
			o.hear(msg(1, 58)), "apply 58",
		)
	})
	t.Run("replay holds everything", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		expect(t, o.connect(), "ask 0 →replaying(connected)")
		if o.Settled() {
			t.Error("settled before the replay")
		}
		o.hear(msg(1, 57)) // while the replay runs
		for seq := range uint64(58) {
			o.reply(msg(1, seq))
		}
		expect(t,
			o.end(), "ignore →live(replayed)",
			o.hear(msg(1, 58)), "apply 58",
		)
		if len(o.seqs()) != 59 || !o.Settled() {
			t.Errorf("applied %d, settled %t", len(o.seqs()), o.Settled())
		}
	})
	t.Run("replay holds the last ones", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		for seq := uint64(30); seq <= 57; seq++ {
			o.reply(msg(1, seq))
		}
		expect(t,
			o.end(), "→degraded(late_start)",
			o.hear(msg(1, 58)), "apply 58",
			o.hear(clearing(1, 59)), "apply 59 →live(cleared)",
		)
	})
	t.Run("replay holds a clear", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 30))
		o.reply(clearing(1, 31))
		expect(t, o.end(), "→live(replayed)")
	})
	t.Run("replay fails", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.hear(msg(1, 57))
		o.fail()
		o.sleep(250 * time.Millisecond)
		o.fail()
		o.sleep(250 * time.Millisecond)
		if o.Settled() {
			t.Error("settled before the last attempt")
		}
		expect(t, o.fail(), "apply 57 →degraded(late_start)")
		if !o.Settled() {
			t.Error("not settled after the last attempt")
		}
		expect(t,
			o.sleep(5*time.Second), "ask 0",
			o.reply(msg(1, 0)), "forget(rebuild) apply 0 →replaying(rebuild)",
		)
	})
	t.Run("publisher that begins at 1", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 1))
		expect(t, o.end(), "→live(replayed)")
	})
	t.Run("publisher that is known to begin at 0", func(t *testing.T) {
		o := newOwner(Config{})
		expect(t,
			o.connect(), "",
			o.hear(msg(1, 0)), "apply 0 →live(first)",
			o.hear(msg(1, 1)), "apply 1",
			o.hear(msg(2, 1)), "forget(backwards) apply 1 →degraded(late_start)",
		)
	})
}

// A replay socket that is another process's than the publisher does not make the two chase each other.
func TestReplayOfAnotherProcess(t *testing.T) {
	t.Run("live messages differ", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		forgotten := 0
		for seq := range uint64(600) { // a minute of live messages
			o.hear(msg(1, seq))
			for o.from != nil {
				for n := range seq + 5 {
					o.reply(msg(2, n))
				}
				o.end()
			}
			o.sleep(100 * time.Millisecond)
			forgotten = len(o.forgot)
		}
		if o.asks > 80 || forgotten > 80 {
			t.Errorf("%d replays and %d generations in a minute", o.asks, forgotten)
		}
	})
	t.Run("no two replays are the same", func(t *testing.T) {
		o := newOwner(Config{CanReplay: true})
		o.connect()
		o.reply(msg(1, 0))
		o.end()
		o.disconnect()
		o.connect()
		for process := 2; o.from != nil; process++ {
			o.reply(msg(process, 0)) // other bytes than the one before
			if process > 100 {
				t.Fatal("it never ends")
			}
		}
		if !o.Settled() || o.State() == Replaying {
			t.Errorf("settled %t, %s", o.Settled(), o.State())
		}
		expect(t,
			o.hear(msg(1, 7)), "apply 7 →degraded(late_start)",
			o.sleep(5*time.Second), "ask 0",
		)
	})
}
