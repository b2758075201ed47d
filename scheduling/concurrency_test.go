package scheduling_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// leastRequests picks the endpoint with the fewest requests in flight, by a ledger in small.
func leastRequests(tb testing.TB) *scheduling.Scheduler {
	tb.Helper()
	types := append(append(scorer.Types(), picker.Types()...), counterType)
	return mustBuild(tb, types, schedtest.Config(nil, "active-request-scorer", "max-score-picker"))
}

// TestC21_SimultaneousPicksSeeOneAnother: 48 picks at once over 8 idle endpoints are exactly 6 each, because a pick is
// charged before the next one is made.
func TestC21_SimultaneousPicksSeeOneAnother(t *testing.T) {
	s := leastRequests(t)
	snapshot := pool(8).Snapshot()
	start := make(chan struct{})
	flights := make([]*scheduling.Flight, 48)
	var wg sync.WaitGroup
	for i := range flights {
		wg.Go(func() {
			<-start
			c := s.Begin(snapshot, &scheduling.Request{ID: uint64(i)}, 0)
			defer s.End(c)
			s.Produce(t.Context(), c)
			flights[i], _ = s.Commit(c)
		})
	}
	close(start)
	wg.Wait()
	perEndpoint := make([]int, 8)
	for i, f := range flights {
		if f == nil {
			t.Fatalf("request %d was not placed", i)
		}
		perEndpoint[f.Endpoint.Ordinal]++
	}
	for e, n := range perEndpoint {
		if n != 6 {
			t.Errorf("endpoint %d has %d requests: %v", e, n, perEndpoint)
		}
	}
	for _, f := range flights {
		f.Done(scheduling.Outcome{}, 0)
	}
	if ledger, _ := s.Plugin("counter").(*counter); ledger.inFlight() != 0 {
		t.Errorf("%d still in flight", ledger.inFlight())
	}
}

// TestRequestsBesideSnapshots runs whole requests in parallel while endpoints come, go and return as new instances. The
// race detector watches; in the end nothing may be left in flight.
func TestRequestsBesideSnapshots(t *testing.T) {
	s := leastRequests(t)
	p := pool(6)
	stop := p.Watch(s.SnapshotChanged)
	defer stop()
	var workers, updater sync.WaitGroup
	finished := make(chan struct{})
	updater.Go(func() { churn(p, finished) })
	for w := range 8 {
		workers.Go(func() {
			for i := range 300 {
				if err := oneRequest(t, s, p, uint64(w*1000+i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	close(finished)
	updater.Wait()
	if ledger, _ := s.Plugin("counter").(*counter); ledger.inFlight() != 0 {
		t.Errorf("%d still in flight", ledger.inFlight())
	}
}

// churn changes the pool's endpoints until it is told to stop. One endpoint always stays.
func churn(p *scheduling.Pool, finished <-chan struct{}) {
	for round := 0; ; round++ {
		select {
		case <-finished:
			return
		default:
		}
		specs := []scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}}
		for i := 2; i < 3+round%9; i++ {
			specs = append(specs, scheduling.EndpointSpec{
				Address: fmt.Sprintf("10.0.0.%d:8000", i), UID: fmt.Sprint(round % 3),
				State: scheduling.EndpointState((round + i) % 3),
			})
		}
		p.Update(specs)
	}
}

// oneRequest takes one request from its beginning to one of the ends that it may have.
func oneRequest(t *testing.T, s *scheduling.Scheduler, p *scheduling.Pool, id uint64) error {
	snapshot := p.Snapshot()
	c := s.Begin(snapshot, &scheduling.Request{ID: id}, time.Duration(id))
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	s.End(c)
	if err != nil {
		return err
	}
	if !snapshot.Holds(f.Endpoint.Ordinal, f.Endpoint.Generation) || f.Endpoint.State != scheduling.EndpointReady {
		return fmt.Errorf("request %d was placed on %s, which its snapshot does not offer", id, f.Endpoint.Address)
	}
	if id%3 == 0 {
		f.Served(p.Snapshot().ByAddress("10.0.0.1:8000"), f.PickedAt)
	}
	if id%2 == 0 {
		f.FirstToken(time.Duration(id))
	}
	f.Done(scheduling.Outcome{Reason: scheduling.EndReason(id % 4)}, time.Duration(id))
	return nil
}
