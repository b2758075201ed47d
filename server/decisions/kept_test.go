package decisions

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// A change of the number of endpoints changes how many decisions there is room for, and loses none of the newest.
func TestRoomFollowsThePool(t *testing.T) {
	t.Parallel()
	const room = 64 << 10
	b := newBench(t, 200, room)
	for range 100 {
		b.decide(t, "")
	}
	_, few, _ := b.ring.Size()
	small := newBench(t, 2, room)
	small.ring, small.id = b.ring, b.id
	small.decide(t, "")
	kept, many, _ := b.ring.Size()
	if many <= few || kept != few+1 {
		t.Fatalf("room for %d, then for %d of which %d are there", few, many, kept)
	}
	for i := range uint64(few + 1) {
		if _, ok := b.ring.Get(small.id - i); !ok {
			t.Errorf("decision %d is lost", small.id-i)
		}
	}
}

// Newest tells of every decision of a full ring.
func TestNewestOfAFullRing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	for range 3 * minDecisions {
		b.decide(t, "")
	}
	n := 0
	b.ring.Newest(func(Brief) bool { n++; return true })
	if n != minDecisions {
		t.Errorf("told of %d decisions, want %d", n, minDecisions)
	}
}

// An end is noted on its own decision, not on the one that has taken its place.
func TestEndOfADecisionThatWent(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	late := b.commit(t)
	for range minDecisions - 1 {
		b.decide(t, "")
	}
	newer := b.commit(t)
	b.ring.Ended(late, scheduling.Outcome{Status: 500}, 0, time.Second)
	e, ok := b.ring.Get(newer.ID)
	if !ok || newer.ID%minDecisions != late.ID%minDecisions || e.Decision.GetOutcome() != nil {
		t.Errorf("%v: %v", ok, e.Decision.GetOutcome())
	}
}

// commit makes a decision whose request goes on.
func (b *bench) commit(t *testing.T) *scheduling.Flight {
	t.Helper()
	b.id++
	c := b.scheduler.Begin(b.pool.Snapshot(), &scheduling.Request{ID: b.id, Model: "m", Choices: 1}, 0)
	b.scheduler.Produce(t.Context(), c)
	f, err := b.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Picked(c, f, 0)
	b.scheduler.End(c)
	t.Cleanup(func() { f.Done(scheduling.Outcome{Status: 200}, time.Second) })
	return f
}

// A client's id takes a bounded part of the room, and is found by the whole of it all the same.
func TestLongRequestIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1<<20)
	long := strings.Repeat("x", 60_000)
	b.decide(t, long)
	found, _ := b.ring.Find(long, 1)
	if len(found) != 1 || len(found[0].Decision.GetClientRequestId()) != maxRequestID {
		t.Fatalf("%d found", len(found))
	}
	if _, _, bytes := b.ring.Size(); bytes > 10_000 {
		t.Errorf("it takes %d bytes", bytes)
	}
}
