package cursor

import (
	"testing"
	"time"
)

// The field report C03 is an engine that restarts in place; without replay, as there.

func TestC03_a_BackwardsOnOneConnection(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.hear(msg(2, 0)), "forget(backwards) apply 0",
		o.hear(msg(2, 1)), "apply 1",
	)
}

func TestC03_a_EvenWithTheSameBytes(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.hear(msg(1, 0)), "forget(backwards) apply 0", // an engine that was asked the same after its restart
	)
}

func TestC03_b_GapAcrossConnections(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.disconnect(), "→degraded(disconnected)",
		o.connect(), "",
		o.hear(msg(2, 7)), "forget(reconnect) apply 7", // degraded still: seven are lost
	)
	if o.State() != Degraded {
		t.Errorf("state %s, want degraded: the history of the new process is unknown", o.State())
	}
}

func TestC03_c_Resent(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.hear(msg(1, 1)), "ignore",
		o.hear(msg(1, 2)), "apply 2",
	)
	if len(o.forgot) != 0 {
		t.Errorf("forgot %v", o.forgot)
	}
}

func TestC03_c_OtherBytes(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(2, 0)), "forget(backwards) apply 0",
	)
}

// The sign of the restart may come before the new connection, after it, or after its first message.
func TestC03_d_NextNumberOfANewProcess(t *testing.T) {
	begin := func() *owner {
		o := newOwner(Config{KeepFor: 10 * time.Second})
		o.connect()
		o.hear(msg(1, 0))
		o.hear(msg(1, 1))
		return o
	}
	t.Run("sign before the connection", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "→degraded(disconnected)",
			o.sign(), "forget(restart) →initial(restart)",
			o.connect(), "",
			o.hear(msg(2, 2)), "apply 2 →degraded(late_start)",
		)
	})
	t.Run("sign before the message", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "→degraded(disconnected)",
			o.connect(), "",
			o.sign(), "forget(restart) →initial(restart)",
			o.hear(msg(2, 2)), "apply 2 →degraded(late_start)",
		)
	})
	t.Run("sign after the message", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "→degraded(disconnected)",
			o.connect(), "",
			o.hear(msg(2, 2)), "apply 2 →live(continued)",
			o.hear(msg(2, 3)), "apply 3",
			o.sleep(9*time.Second), "",
			o.sign(), "forget(restart) apply 2 apply 3 →degraded(late_start)",
		)
	})
	t.Run("sign long after the message", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "→degraded(disconnected)",
			o.connect(), "",
			o.hear(msg(2, 2)), "apply 2 →live(continued)",
			o.sleep(10*time.Second), "",
			o.sign(), "forget(restart) →initial(restart)",
		)
	})
	t.Run("no sign: nothing tells", func(t *testing.T) {
		o := begin()
		expect(t,
			o.disconnect(), "→degraded(disconnected)",
			o.connect(), "",
			o.hear(msg(1, 2)), "apply 2 →live(continued)",
		)
	})
}

func TestC03_d_SignOfARestartThatWasSeen(t *testing.T) {
	o := newOwner(Config{})
	o.connect()
	o.hear(msg(1, 0))
	o.hear(msg(1, 1))
	o.disconnect()
	expect(t,
		o.connect(), "",
		o.hear(msg(2, 0)), "forget(reconnect) apply 0 →live(new_generation)",
		o.hear(msg(2, 1)), "apply 1",
		o.sleep(time.Second), "",
		o.sign(), "forget(restart) apply 0 apply 1",
	)
}

func TestC03_e_GapOnOneConnection(t *testing.T) {
	o := newOwner(Config{})
	expect(t,
		o.connect(), "",
		o.hear(msg(1, 0)), "apply 0 →live(first)",
		o.hear(msg(1, 1)), "apply 1",
		o.hear(msg(1, 7)), "apply 7 →degraded(gap_lost)",
		o.hear(msg(1, 8)), "apply 8",
	)
	if len(o.forgot) != 0 {
		t.Errorf("forgot %v: what is known stays", o.forgot)
	}
}

// Healing as far as the events can: everything cleared, or a new generation.
func TestC03_e_Heals(t *testing.T) {
	begin := func() *owner {
		o := newOwner(Config{})
		o.connect()
		o.hear(msg(1, 0))
		o.hear(msg(1, 7))
		return o
	}
	t.Run("clear", func(t *testing.T) {
		o := begin()
		expect(t,
			o.hear(clearing(1, 8)), "apply 8 →live(cleared)",
			o.hear(msg(1, 9)), "apply 9",
		)
	})
	t.Run("clear behind another gap", func(t *testing.T) {
		expect(t, begin().hear(clearing(1, 12)), "apply 12 →live(cleared)")
	})
	t.Run("new generation", func(t *testing.T) {
		expect(t, begin().hear(msg(2, 0)), "forget(backwards) apply 0 →live(new_generation)")
	})
}
