package cursor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is the naive model: processes that publish, a connection that carries and loses messages, a replay that knows
// the last ones. It knows the truth; the cursor only what reaches it.
type world struct {
	*owner
	kind    kind
	first   uint64 // number of every process's first message
	process *process
	flight  []Message // on the connection, not heard yet
	last    *Message  // heard last on this connection
	replies []Message // of the replay that runs, once served
	served  bool
	up      bool // connected

	// What makes the truth unknowable.
	blind    bool // a new process went on at the very number that was expected, and nothing told
	restarts int  // processes started after the first
	lossy    bool // a replay lost replies, or is too short, or there is none: completeness is not to be had
	quiet    bool // nothing ever happened that could justify forgetting
	unsigned bool // no sign was given of the last restart
}

type process struct {
	id  int
	log []Message
}

// kind is what stays the same in one run.
type kind struct {
	replay bool
	buffer int  // messages that a replay knows
	loses  bool // the connection loses messages
	drops  bool // replays lose replies
	fails  bool // replays fail
}

func newWorld(t *rapid.T) *world {
	k := kind{
		replay: rapid.Bool().Draw(t, "replay"), buffer: 1000,
		loses: rapid.Bool().Draw(t, "loses"), drops: rapid.IntRange(0, 3).Draw(t, "drops") == 0,
		fails: rapid.Bool().Draw(t, "fails"),
	}
	if rapid.IntRange(0, 3).Draw(t, "short") == 0 {
		k.buffer = rapid.IntRange(1, 6).Draw(t, "buffer")
	}
	w := &world{
		owner: newOwner(Config{CanReplay: k.replay, MaxAttempts: 2, KeepFor: time.Minute}),
		kind:  k, first: uint64(rapid.IntRange(0, 1).Draw(t, "first")), process: &process{id: 1},
		lossy: !k.replay || k.drops || k.buffer < 1000, quiet: k.buffer == 1000,
	}
	w.judging = w.watch
	w.bound = rapid.IntRange(3, 12).Draw(t, "bound")
	return w
}

func (w *world) next() uint64 { return w.first + uint64(len(w.process.log)) }

// publish is a scheduler step of the engine; lost says that the connection loses its message.
func (w *world) publish(clears, lost bool) {
	m := msg(w.process.id, w.next())
	m.Clears = clears
	w.process.log = append(w.process.log, m)
	switch {
	case w.up && !lost:
		w.flight = append(w.flight, m)
	case w.up || !w.kind.replay:
		w.quiet = false
	}
}

// deliver makes the cursor hear the oldest message on the connection.
func (w *world) deliver() {
	m := w.flight[0]
	w.flight = w.flight[1:]
	w.last = &m
	w.hear(m)
}

// watch notes when the cursor is about to be deceived: nothing on the wire tells the two processes apart.
func (w *world) watch(m Message) {
	known := w.knows()
	if known == 0 || known == int(m.Print>>32) || w.mode != idle {
		return
	}
	if last, _ := w.Last(); w.unproven && m.Seq == last+1 {
		w.blind = true
	}
}

// knows is the process that what is applied comes from; 0: nothing is.
func (w *world) knows() int {
	if len(w.applied) == 0 {
		return 0
	}
	return int(w.applied[len(w.applied)-1].Print >> 32)
}

func (w *world) drop() {
	w.up, w.flight, w.last = false, nil, nil
	w.disconnect()
	w.settle()
}

// settle notices that the owner has no replay running any more, or a new one.
func (w *world) settle() {
	w.served, w.replies = false, nil
}

// serve is the engine answering a replay request with what it has at that moment.
func (w *world) serve(t *rapid.T) {
	w.served = true
	log := w.process.log
	log = log[max(0, len(log)-w.kind.buffer):]
	i := slices.IndexFunc(log, func(m Message) bool { return m.Seq >= *w.from })
	if i < 0 {
		i = len(log)
	}
	w.replies = slices.Clone(log[i:])
	if w.kind.drops && len(w.replies) > 2 && rapid.Bool().Draw(t, "drop replies") {
		at := rapid.IntRange(0, len(w.replies)-1).Draw(t, "at")
		w.quiet = false
		w.replies = slices.Delete(w.replies, at, min(at+2, len(w.replies)))
	}
}

// answer passes one reply, or the end.
func (w *world) answer() {
	asks := w.asks
	if len(w.replies) == 0 {
		w.settle()
		w.end()
		return
	}
	m := w.replies[0]
	w.replies = w.replies[1:]
	w.reply(m)
	if w.asks != asks || w.from == nil {
		w.settle()
	}
}

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"publish": func(t *rapid.T) {
			w.publish(rapid.IntRange(0, 15).Draw(t, "clears") == 0, w.kind.loses && rapid.IntRange(0, 4).Draw(t, "lost") == 0)
		},
		"deliver": func(t *rapid.T) {
			if len(w.flight) == 0 {
				t.Skip()
			}
			w.restarting(w.deliver)
		},
		"resend": func(t *rapid.T) {
			if w.last == nil {
				t.Skip()
			}
			w.restarting(func() { w.hear(*w.last) })
		},
		"connect": func(t *rapid.T) {
			if w.up {
				t.Skip()
			}
			w.up = true
			w.restarting(func() { w.connect() })
		},
		"disconnect": func(t *rapid.T) {
			if !w.up {
				t.Skip()
			}
			if !w.kind.replay {
				w.quiet = false
			}
			w.drop()
		},
		"restart": func(t *rapid.T) {
			if w.up {
				w.drop()
			}
			w.start()
		},
		"sign": func(t *rapid.T) {
			if !w.unsigned {
				t.Skip()
			}
			w.unsigned = false
			w.restarting(func() { w.sign() })
			w.blind = false
		},
		"serve": func(t *rapid.T) {
			if w.from == nil || w.served {
				t.Skip()
			}
			w.serve(t)
		},
		"answer": func(t *rapid.T) {
			if !w.served {
				t.Skip()
			}
			w.answer()
		},
		"fail": func(t *rapid.T) {
			if w.from == nil || !w.kind.fails {
				t.Skip()
			}
			if !w.kind.replay {
				t.Fatal("a replay without replay")
			}
			w.quiet = false
			w.settle()
			w.fail()
		},
		"wait": func(t *rapid.T) {
			w.restarting(func() { w.sleep(time.Duration(rapid.IntRange(1, 9000).Draw(t, "ms")) * time.Millisecond) })
		},
		"": w.check,
	}
}

// start is a new process.
func (w *world) start() {
	w.process = &process{id: w.process.id + 1}
	w.restarts++
	w.unsigned, w.quiet = true, false
}

// restarting runs an input that may begin another replay.
func (w *world) restarting(input func()) {
	asks, had := w.asks, w.from != nil
	input()
	if w.asks != asks || had && w.from == nil {
		w.settle()
	}
}

// check is what holds at every moment.
func (w *world) check(t *rapid.T) {
	if len(w.forgot) > 0 && w.blind && w.knows() == w.process.id {
		w.blind = slices.ContainsFunc(w.applied, func(m Message) bool { return int(m.Print>>32) != w.process.id })
	}
	for i := 1; i < len(w.applied); i++ {
		a, b := w.applied[i-1], w.applied[i]
		if b.Seq <= a.Seq {
			t.Fatalf("out of order or twice: %v", w.seqs())
		}
		if a.Print>>32 != b.Print>>32 && !w.blind {
			t.Fatalf("%d of process %d follows on %d of process %d", b.Seq, b.Print>>32, a.Seq, a.Print>>32)
		}
	}
	if len(w.held) > w.bound {
		t.Fatalf("%d messages are held, at most %d may be", len(w.held), w.bound)
	}
	if w.State() == Live && !w.blind {
		w.checkComplete(t)
	}
	if w.quiet && len(w.forgot) > 0 {
		t.Fatalf("forgot %v for nothing", w.forgot)
	}
	if w.kind.replay != w.canReplay || !w.kind.replay && w.asks > 0 {
		t.Fatalf("replay %t, asked %d times", w.kind.replay, w.asks)
	}
}

// checkComplete holds a live source to its word: everything up to the last message applied was, or what was not came
// before a clear.
func (w *world) checkComplete(t *rapid.T) {
	if len(w.applied) == 0 || w.knows() != w.process.id {
		return
	}
	have := make(map[uint64]bool)
	for _, m := range w.applied {
		have[m.Seq] = true
	}
	last, _ := w.Last()
	for seq := last; seq >= w.first; seq-- {
		if !have[seq] && !(seq == 0 && !w.zeroBased) { // a publisher that may begin at 1
			t.Fatalf("live, and %d is missing: %v", seq, w.seqs())
		}
		if have[seq] && w.process.log[seq-w.first].Clears || seq == 0 {
			return
		}
	}
}

// calm lets everything work from now on, until nothing is left to do.
func (w *world) calm(t *rapid.T) {
	w.kind.drops, w.kind.fails = false, false
	if !w.up {
		w.up = true
		w.connect()
	}
	for range 3 { // a few messages more, so that what was lost last shows
		w.publish(false, false)
	}
	for round := 0; round < 2000; round++ {
		switch {
		case w.from != nil && !w.served:
			w.serve(t)
		case w.served:
			w.answer()
		case len(w.flight) > 0:
			w.restarting(w.deliver)
		case !w.retryAt.IsZero():
			w.restarting(func() { w.sleep(w.retryAt.Sub(w.now)) })
		default:
			return
		}
		w.check(t)
	}
	t.Fatal("it never comes to rest")
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(w.actions())
		w.calm(t)
		if w.blind {
			return
		}
		if w.knows() != w.process.id {
			t.Fatalf("at rest with process %d, the engine is process %d", w.knows(), w.process.id)
		}
		if last, _ := w.Last(); last != w.next()-1 {
			t.Fatalf("at rest at %d, the engine is at %d", last, w.next()-1)
		}
		if w.State() != Live && w.State() != Degraded || !w.Settled() {
			t.Fatalf("at rest in state %s, settled %t", w.State(), w.Settled())
		}
		if w.lossy {
			return
		}
		if w.State() != Live || len(w.applied) < len(w.process.log) && !w.sinceClear() {
			t.Fatalf("replay works: state %s (%s), applied %v of %d", w.State(), w.Reason(), w.seqs(), len(w.process.log))
		}
	})
}

// sinceClear reports whether everything since the last clear was applied.
func (w *world) sinceClear() bool {
	n := 0
	for i := len(w.process.log) - 1; i >= 0; i-- {
		n++
		if w.process.log[i].Clears {
			return len(w.applied) >= n
		}
	}
	return false
}
