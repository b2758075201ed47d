//go:build linux

package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/lab"
)

const (
	// envDuration is how long faults last, such as "10m".
	envDuration = "SLUICE_CHAOS"
	// envSeed repeats a run.
	envSeed = "SLUICE_CHAOS_SEED"

	shortRun = 20 * time.Second
	// clientsAtATime are enough that hundreds of streams are open and every one of them waits for others.
	clientsAtATime = 200
	// thinking is how long a client may wait before its next request.
	thinking      = 4 * time.Second
	progressEvery = 10 * time.Second
)

// setting reads how long the run lasts, and its seed.
func setting(t *testing.T) (lasts time.Duration, seed uint64) {
	t.Helper()
	lasts, seed = shortRun, uint64(time.Now().UnixNano())
	var err error
	if v := os.Getenv(envDuration); v != "" {
		if lasts, err = time.ParseDuration(v); err != nil || lasts < shortRun {
			t.Fatalf("%s: must be a duration of at least %s, got %q", envDuration, shortRun, v)
		}
	}
	if v := os.Getenv(envSeed); v != "" {
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	return lasts, seed
}

func TestChaos(t *testing.T) {
	lasts, seed := setting(t)
	say := t.Logf
	if os.Getenv(envDuration) != "" { // somebody watches
		say = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	say("chaos: %s=%d %s=%s", envSeed, seed, envDuration, lasts)
	s := newStage(t, say)
	s.lift()
	for _, e := range s.engines {
		s.predicted(t, e, conversation(e.index, 0))
	}
	s.settled()
	before, err := s.look()
	if err != nil {
		t.Fatal(err)
	}
	say("chaos: before: %+v", before)

	a := newAccount()
	r := s.rage(a, seed, lasts)
	say("chaos: faults are over: %s", a)
	s.lift()
	s.settled()
	s.ledgerIsExact(t)
	compared := s.indexIsExact(t, 6)
	s.settled()
	after := s.nothingIsLeft(t, before)
	say("chaos: after: %+v", after)
	flat(t, before, after, r.memory)
	v := s.conclude(t, a)
	say("chaos: excused by the death of engines: %v", v.causes)
	result := "held"
	if t.Failed() {
		result = "broken"
	}
	say("chaos seed=%d seconds=%d requests=%d aborted=%d excused=%d bodies_compared=%d answers_compared=%d unverified=%d "+
		"predictions_compared=%d faults=%d %s invariants=%s", seed, int(lasts.Seconds()), len(a.sent), a.broken, v.excused, v.bodies, v.answers,
		v.unknown, compared, r.faults, r.byKind(), result)
}

// raged is what has happened.
type raged struct {
	count  map[kind]int
	faults int
	memory []int // bytes that the present Sluice had, every progressEvery
}

func (r raged) byKind() (text string) {
	for i, k := range slices.Sorted(maps.Keys(r.count)) {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprintf("%s=%d", k, r.count[k])
	}
	return text
}

// rage lets clients and faults loose, and returns when both have ended.
func (s *stage) rage(a *account, seed uint64, lasts time.Duration) (r raged) {
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	var group sync.WaitGroup
	c := newClients(s.envoy.Addr)
	defer c.close()
	for i := range clientsAtATime {
		g := &drawing{random: rand.New(rand.NewPCG(seed, uint64(i))), name: fmt.Sprint(i)}
		group.Go(func() {
			pause(ctx, time.Duration(i)*10*time.Millisecond) // not all at once
			for ctx.Err() == nil {
				d := g.next()
				a.opens(1)
				a.add(d, c.send(s.t.Context(), d)) // what has begun goes on to its end
				a.opens(-1)
				pause(ctx, time.Duration(g.random.Int64N(int64(thinking))))
			}
		})
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.memory = s.watch(ctx, a)
	}()
	pause(ctx, 2*time.Second)
	r.count = s.play(ctx, newPlan(seed, lasts, len(s.engines)))
	for _, n := range r.count {
		r.faults += n
	}
	stop()
	group.Wait()
	<-watched
	return r
}

// watch says how far things are, and returns the memory of the Sluice that serves last.
func (s *stage) watch(ctx context.Context, a *account) (memory []int) {
	var last *process
	for began := time.Now(); ; {
		stood := standstill(ctx, progressEvery)
		if ctx.Err() != nil {
			return memory
		}
		if stood > time.Second {
			s.say("chaos: the machine stood still for %s: what follows may be its doing", stood)
		}
		_, p := s.present()
		if p != last {
			last, memory = p, nil
		}
		u, err := usageOf(p.pid)
		if err != nil {
			s.oddity("%s: %v", p.name, err)
			continue
		}
		memory = append(memory, u.rss)
		s.say("chaos: %3.0fs: %s; %s: %s", time.Since(began).Seconds(), a, p.name, u)
	}
}

// standstill waits, and tells by how much a short wait took too long at worst.
func standstill(ctx context.Context, d time.Duration) (worst time.Duration) {
	const step = 100 * time.Millisecond
	for until := time.Now().Add(d); time.Now().Before(until) && ctx.Err() == nil; {
		began := time.Now()
		pause(ctx, step)
		worst = max(worst, time.Since(began)-step)
	}
	return worst
}

// flat checks that Sluice's memory does not grow: not much above what it was with nothing to do, and in a long run not
// between its first third and its last.
func flat(t *testing.T, before, after state, memory []int) {
	t.Helper()
	const room = 160 << 20 // what hundreds of streams need at a time, with the race detector's shadow
	if after.sluice.rss > before.sluice.rss+room {
		t.Errorf("Sluice has %d MiB, %d MiB before the faults", after.sluice.rss>>20, before.sluice.rss>>20)
	}
	third := len(memory) / 3
	if third < 2 {
		return
	}
	first, last := slices.Max(memory[:third]), slices.Max(memory[len(memory)-third:])
	if last > first+first/5+16<<20 {
		t.Errorf("Sluice's memory grows from %d MiB to %d MiB: %v", first>>20, last>>20, memory)
	}
}

// conclude ends the processes and judges every request.
func (s *stage) conclude(t *testing.T, a *account) verdict {
	t.Helper()
	for _, p := range s.all {
		if p.dead() && p.exit != nil {
			t.Errorf("%s died: %v; its log ends:\n%s", p.name, p.exit, tail(p.log, 4000))
		}
	}
	_, p := s.present()
	if err := p.finish(patience); err != nil {
		t.Errorf("the last Sluice: %v; its log ends:\n%s", err, tail(p.log, 4000))
	}
	for _, e := range s.engines {
		if err := e.now().finish(patience); err != nil {
			t.Errorf("%s: %v", e.args.Name, err)
		}
	}
	for _, p := range s.all {
		for _, c := range complaints(p.log) {
			t.Errorf("%s wrote %s", p.name, c)
		}
	}
	for _, all := range [][]string{s.strange, s.wrong} {
		for _, what := range all {
			t.Error(what)
		}
	}
	s.envoy.Admin(t, "POST", "/reopen_logs") // what it still holds is written
	var ev evidence
	lab.Wait(t, "Envoy's access log", func() bool {
		var err error
		ev, err = s.gather()
		return err == nil && len(ev.hops) >= a.heard()
	})
	v := a.judge(s, ev)
	for i, what := range v.violations {
		if i == 20 {
			t.Errorf("… and %d more", len(v.violations)-i)
			break
		}
		t.Error(what)
	}
	if v.bodies == 0 || v.answers == 0 {
		t.Errorf("nothing was compared: %+v", v)
	}
	return v
}

// heard is how many requests Envoy must have noted: those that were answered.
func (a *account) heard() (n int) {
	for _, r := range a.sent {
		if r.status != 0 {
			n++
		}
	}
	return n
}
