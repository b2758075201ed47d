package cursor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// owner carries out a cursor's steps the way a feed does, and writes down what it was told.
type owner struct {
	*Cursor
	now     time.Time
	bound   int       // messages held at most; 0: no bound
	held    []Message // in order
	applied []Message // of this generation
	forgot  []Cause
	from    *uint64 // what the replay that runs was asked for
	asks    int
	kept    int             // messages applied with a copy
	judging func(m Message) // called before every Live
}

var epoch = time.Unix(1_800_000_000, 0)

func newOwner(c Config) *owner {
	return &owner{Cursor: New(c, epoch), now: epoch, judging: func(Message) {}}
}

// do carries out what input makes the cursor say, and notes the change of state.
func (o *owner) do(input func() Step, m *Message) string {
	before := o.State()
	s := input()
	o.note(before)
	said := o.carryOut(s, m)
	if after := o.State(); after != before {
		said = append(said, fmt.Sprintf("→%s(%s)", after, o.Reason()))
	}
	return strings.Join(said, " ")
}

func (o *owner) note(before State) {
	if after := o.State(); after != before {
		moves[fmt.Sprintf("%s -%s→ %s", before, o.Reason(), after)] = true
	}
}

func (o *owner) carryOut(s Step, m *Message) (said []string) {
	if s.Forget != 0 {
		o.applied, o.forgot = nil, append(o.forgot, s.Forget)
		said = append(said, fmt.Sprintf("forget(%s)", s.Forget))
	}
	if s.Held == HeldDrop {
		o.held = nil
	}
	switch s.Verdict {
	case Apply:
		o.applied = append(o.applied, *m)
		said = append(said, fmt.Sprintf("apply %d", m.Seq))
		if s.Keep {
			o.kept++
			said = append(said, o.hold(*m)...)
		}
	case Ignore:
		said = append(said, "ignore")
	case Hold:
		said = append(append(said, "hold"), o.hold(*m)...)
	}
	switch s.Ask {
	case AskReplay:
		o.from, o.asks = &s.From, o.asks+1
		said = append(said, fmt.Sprintf("ask %d", s.From))
	case AskStop:
		o.from = nil
	}
	if s.Held == HeldRelease {
		held := o.held
		o.held = nil
		for i := range held {
			before := o.State()
			o.judging(held[i])
			step := o.Cursor.Live(o.now, held[i])
			o.note(before)
			said = append(said, o.carryOut(step, &held[i])...)
		}
	}
	return said
}

func (o *owner) hold(m Message) []string {
	if o.bound > 0 && len(o.held) == o.bound {
		return append([]string{"overflow"}, o.carryOut(o.Overflowed(), nil)...)
	}
	o.held = append(o.held, m)
	return nil
}

func (o *owner) connect() string {
	return o.do(func() Step { return o.Connected(o.now) }, nil)
}

func (o *owner) disconnect() string {
	return o.do(func() Step { return o.Disconnected(o.now) }, nil)
}

func (o *owner) hear(m Message) string {
	o.judging(m)
	return o.do(func() Step { return o.Live(o.now, m) }, &m)
}

func (o *owner) reply(m Message) string {
	if o.from == nil {
		return "no replay"
	}
	return o.do(func() Step { return o.Replayed(o.now, m) }, &m)
}

func (o *owner) end() string {
	o.from = nil
	return o.do(func() Step { return o.ReplayEnded(o.now) }, nil)
}

func (o *owner) fail() string {
	o.from = nil
	return o.do(func() Step { return o.ReplayFailed(o.now) }, nil)
}

func (o *owner) sign() string {
	return o.do(func() Step { return o.Restarted(o.now) }, nil)
}

func (o *owner) can(can bool) string {
	return o.do(func() Step { return o.CanReplay(can) }, nil)
}

// sleep passes time, calling Tick whenever Next says so.
func (o *owner) sleep(d time.Duration) string {
	var said []string
	end := o.now.Add(d)
	for !o.now.Equal(end) {
		next := o.Next()
		if next.IsZero() || next.After(end) {
			next = end
		}
		if next.Before(o.now) {
			next = o.now
		}
		o.now = next
		if s := o.do(func() Step { return o.Tick(o.now) }, nil); s != "" {
			said = append(said, s)
		}
	}
	return strings.Join(said, " ")
}

// msg is a message of a process: the same number of two processes has different bytes.
func msg(process int, seq uint64) Message {
	return Message{Seq: seq, Print: uint64(process)<<32 | seq}
}

func clearing(process int, seq uint64) Message {
	m := msg(process, seq)
	m.Clears = true
	return m
}

// seqs are the numbers applied since the last forgetting.
func (o *owner) seqs() []uint64 {
	list := []uint64{}
	for _, m := range o.applied {
		list = append(list, m.Seq)
	}
	return list
}

// expect runs inputs and compares what each makes the owner do.
func expect(t *testing.T, got ...string) {
	t.Helper()
	for i := 0; i < len(got); i += 2 {
		if diff := cmp.Diff(got[i+1], got[i]); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i/2, diff)
		}
	}
}
