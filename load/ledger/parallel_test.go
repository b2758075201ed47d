package ledger

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestParallel has streams, changes of the endpoints, reloads and a reader at work at the same time: nothing is ever
// below zero, and all ends at zero. The race detector looks on.
func TestParallel(t *testing.T) {
	b := newBench(t, "default", "addEstimatedOutputTokens: true")
	b.update(spec('a', ""), spec('b', ""), spec('c', ""))
	b.input(1000)
	stop := make(chan struct{})
	var background, streams sync.WaitGroup
	scheduler, ledger := b.scheduler, b.ledger
	background.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b.pool.Update([]scheduling.EndpointSpec{spec('a', ""), spec('b', fmt.Sprint(i)), spec('c', "")})
			scheduler.SnapshotChanged(b.pool.Snapshot())
		}
	})
	background.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for l := range ledger.Loads() {
				if l.Requests < 0 || l.Tokens < 0 || l.Decoding < 0 {
					t.Errorf("%s: %+v", l.Address, l.InFlightLoad)
					return
				}
			}
		}
	})
	for worker := range 8 {
		streams.Go(func() {
			for i := range 300 {
				stream(t, b.pool, scheduler, uint64(worker*1000+i))
			}
		})
	}
	streams.Wait()
	close(stop)
	background.Wait()
	for l := range ledger.Loads() {
		if l.InFlightLoad != (scheduling.InFlightLoad{}) {
			t.Errorf("%s ends at %+v", l.Address, l.InFlightLoad)
		}
	}
	var released uint64
	for r := range endReasons {
		released += ledger.Released(scheduling.EndReason(r))
	}
	if released != 8*300 {
		t.Errorf("%d releases of %d charges", released, 8*300)
	}
}

// stream is one request's whole life; what happens in it depends on its id.
func stream(t *testing.T, pool *scheduling.Pool, s *scheduling.Scheduler, id uint64) {
	c := s.Begin(pool.Snapshot(), &scheduling.Request{ID: id, Model: string('a' + byte(id%3))}, 0)
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	s.End(c)
	if err != nil {
		t.Error(err)
		return
	}
	if id%2 == 0 {
		f.FirstToken(time.Millisecond)
	}
	if id%5 == 0 {
		if e := pool.Snapshot().ByAddress(spec('b', "").Address); e != nil {
			f.Served(e, f.PickedAt)
		}
	}
	f.Done(scheduling.Outcome{Reason: scheduling.EndReason(id % uint64(endReasons))}, time.Second)
}

func TestWarmRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b := newBench(t, "default", "addEstimatedOutputTokens: true")
	b.update(spec('a', ""), spec('b', ""))
	b.input(1000)
	b.matched(0, 10, 62)
	snapshot, ctx := b.pool.Snapshot(), t.Context()
	request := &scheduling.Request{ID: 1, Model: "a", Choices: 1}
	if allocs := testing.AllocsPerRun(200, func() {
		c := b.scheduler.Begin(snapshot, request, 0)
		b.scheduler.Produce(ctx, c)
		f, _ := b.scheduler.Commit(c)
		b.scheduler.End(c)
		f.FirstToken(1)
		f.Served(snapshot.Endpoints[1], f.PickedAt)
		f.Done(scheduling.Outcome{}, 2)
	}); allocs != 0 {
		t.Errorf("%v allocations a request, want 0", allocs)
	}
}
