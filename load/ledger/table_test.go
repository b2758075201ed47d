package ledger

import (
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestTableKeepsToTheNewestSnapshot(t *testing.T) {
	pool := scheduling.NewPool()
	first := pool.Update([]scheduling.EndpointSpec{spec('a', "U1"), spec('b', "")})
	second := pool.Update([]scheduling.EndpointSpec{spec('a', "U2"), spec('b', "")})
	u1, u2 := first.Endpoints[0], second.Endpoints[0]

	table := newTable()
	table.follow(second)
	held := table.find(0, u2.Generation)
	if held == nil {
		t.Fatal("no counter for an endpoint of the snapshot")
	}
	table.follow(first) // late
	if table.find(0, u2.Generation) != held || table.find(0, u1.Generation) != nil {
		t.Error("an older snapshot changed the table")
	}
	detached := table.take(u1)
	if detached == held || table.find(0, u1.Generation) != nil || table.find(0, u2.Generation) != held {
		t.Error("a charge for an instance that has gone took the place of its successor")
	}

	gone := pool.Update([]scheduling.EndpointSpec{spec('b', "")})
	table.follow(gone)
	if table.find(0, u2.Generation) != nil {
		t.Error("the counter of an endpoint that went is still in the table")
	}
	if table.take(u2); table.find(0, u2.Generation) != nil {
		t.Error("a charge for an endpoint that went made it come back")
	}
}

func TestTableAheadOfTheSnapshot(t *testing.T) {
	pool := scheduling.NewPool()
	first := pool.Update([]scheduling.EndpointSpec{spec('a', "U1")})
	table := newTable()
	table.follow(first)
	second := pool.Update([]scheduling.EndpointSpec{spec('a', "U2"), spec('b', "")})
	early, other := table.take(second.Endpoints[0]), table.take(second.Endpoints[1])
	table.follow(first) // told once more, before the second
	for i, want := range []*counter{early, other} {
		if got := table.find(i, second.Endpoints[i].Generation); got != want {
			t.Errorf("endpoint %d: a counter charged ahead of its snapshot was dropped", i)
		}
	}
	table.follow(second)
	for i, want := range []*counter{early, other} {
		if got := table.find(i, second.Endpoints[i].Generation); got != want {
			t.Errorf("endpoint %d: its snapshot replaced the counter", i)
		}
	}
	if old := table.take(first.Endpoints[0]); old == early {
		t.Error("two instances share a counter")
	}
	third := pool.Update([]scheduling.EndpointSpec{spec('a', "U3"), spec('b', "")})
	fourth := pool.Update([]scheduling.EndpointSpec{spec('a', "U4"), spec('b', "")})
	newest := table.take(fourth.Endpoints[0])
	table.take(third.Endpoints[0])
	if table.find(0, fourth.Endpoints[0].Generation) != newest {
		t.Error("of two instances ahead of the snapshot the older took the newer one's place")
	}
}

// TestTableIsBoundedByTheSnapshot: coming and going leaves nothing behind.
func TestTableIsBoundedByTheSnapshot(t *testing.T) {
	pool, table := scheduling.NewPool(), newTable()
	for i := range 1000 {
		s := pool.Update([]scheduling.EndpointSpec{spec('a'+byte(i%8), "")})
		table.follow(s)
		for _, e := range s.Endpoints {
			if e != nil {
				table.take(e)
			}
		}
		if n := len(*table.counters.Load()); n > 2 {
			t.Fatalf("%d places for one endpoint after %d changes", n, i)
		}
	}
	table.follow(pool.Update(nil))
	if n := len(*table.counters.Load()); n != 0 {
		t.Errorf("%d counters without an endpoint", n)
	}
}

func TestTakeIsOneCounterForAll(t *testing.T) {
	snapshot := scheduling.NewPool().Update([]scheduling.EndpointSpec{spec('a', ""), spec('b', ""), spec('c', "")})
	table := newTable()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 100 {
				table.take(snapshot.Endpoints[i%3]).requests.Add(1)
			}
		})
		if i == 32 {
			table.follow(snapshot)
		}
	}
	wg.Wait()
	var sum int64
	for i, e := range snapshot.Endpoints {
		sum += table.find(i, e.Generation).requests.Load()
	}
	if sum != 6400 {
		t.Errorf("%d of 6400 charges are in the table", sum)
	}
}
