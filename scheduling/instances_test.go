package scheduling

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// counts is a table of counters for tests.
type counts struct{ Instances[atomic.Int64] }

func place(letter byte, uid string) EndpointSpec {
	return EndpointSpec{UID: uid, Address: "10.0.0." + string('1'+letter-'a') + ":8000"}
}

func TestInstancesKeepToTheNewestSnapshot(t *testing.T) {
	pool := NewPool()
	first := pool.Update([]EndpointSpec{place('a', "U1"), place('b', "")})
	second := pool.Update([]EndpointSpec{place('a', "U2"), place('b', "")})
	u1, u2 := first.Endpoints[0], second.Endpoints[0]

	table := &counts{}
	table.Follow(second)
	held := table.Find(0, u2.Generation)
	if held == nil {
		t.Fatal("no counter for an endpoint of the snapshot")
	}
	table.Follow(first) // late
	if table.Find(0, u2.Generation) != held || table.Find(0, u1.Generation) != nil {
		t.Error("an older snapshot changed the table")
	}
	detached := table.Take(u1)
	if detached == held || table.Find(0, u1.Generation) != nil || table.Find(0, u2.Generation) != held {
		t.Error("a charge for an instance that has gone took the place of its successor")
	}

	gone := pool.Update([]EndpointSpec{place('b', "")})
	table.Follow(gone)
	if table.Find(0, u2.Generation) != nil {
		t.Error("the counter of an endpoint that went is still in the table")
	}
	if table.Take(u2); table.Find(0, u2.Generation) != nil {
		t.Error("a charge for an endpoint that went made it come back")
	}
}

func TestInstancesAheadOfTheSnapshot(t *testing.T) {
	pool := NewPool()
	first := pool.Update([]EndpointSpec{place('a', "U1")})
	table := &counts{}
	table.Follow(first)
	second := pool.Update([]EndpointSpec{place('a', "U2"), place('b', "")})
	early, other := table.Take(second.Endpoints[0]), table.Take(second.Endpoints[1])
	table.Follow(first) // told once more, before the second
	for i, want := range []*Instance[atomic.Int64]{early, other} {
		if got := table.Find(i, second.Endpoints[i].Generation); got != want {
			t.Errorf("endpoint %d: a counter charged ahead of its snapshot was dropped", i)
		}
	}
	table.Follow(second)
	for i, want := range []*Instance[atomic.Int64]{early, other} {
		if got := table.Find(i, second.Endpoints[i].Generation); got != want {
			t.Errorf("endpoint %d: its snapshot replaced the counter", i)
		}
	}
	if old := table.Take(first.Endpoints[0]); old == early {
		t.Error("two instances share a counter")
	}
	third := pool.Update([]EndpointSpec{place('a', "U3"), place('b', "")})
	fourth := pool.Update([]EndpointSpec{place('a', "U4"), place('b', "")})
	newest := table.Take(fourth.Endpoints[0])
	table.Take(third.Endpoints[0])
	if table.Find(0, fourth.Endpoints[0].Generation) != newest {
		t.Error("of two instances ahead of the snapshot the older took the newer one's place")
	}
}

// TestInstancesAreBoundedByTheSnapshot: coming and going leaves nothing behind.
func TestInstancesAreBoundedByTheSnapshot(t *testing.T) {
	pool, table := NewPool(), &counts{}
	for i := range 1000 {
		s := pool.Update([]EndpointSpec{place('a'+byte(i%8), "")})
		table.Follow(s)
		for _, e := range s.Endpoints {
			if e != nil {
				table.Take(e)
			}
		}
		if n := len(table.All()); n > 2 {
			t.Fatalf("%d places for one endpoint after %d changes", n, i)
		}
	}
	table.Follow(pool.Update(nil))
	if n := len(table.All()); n != 0 {
		t.Errorf("%d counters without an endpoint", n)
	}
}

func TestTakeIsOneInstanceForAll(t *testing.T) {
	snapshot := NewPool().Update([]EndpointSpec{place('a', ""), place('b', ""), place('c', "")})
	table := &counts{}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 100 {
				table.Take(snapshot.Endpoints[i%3]).Value.Add(1)
			}
		})
		if i == 32 {
			table.Follow(snapshot)
		}
	}
	wg.Wait()
	var sum int64
	for i, e := range snapshot.Endpoints {
		sum += table.Find(i, e.Generation).Value.Load()
	}
	if sum != 6400 {
		t.Errorf("%d of 6400 charges are in the table", sum)
	}
}

// TestShownInstancesHaveAnAddressEach: a pick that is ahead of its snapshot adds the one that takes another's place.
func TestShownInstancesHaveAnAddressEach(t *testing.T) {
	pool := NewPool()
	table := &counts{}
	table.Follow(pool.Update([]EndpointSpec{place('a', ""), place('b', "U1"), place('c', "")}))
	moved := pool.Update([]EndpointSpec{place('b', "U2"), place('c', "")}).Endpoints[0]
	table.Take(moved)
	shown := func() (got []string) {
		for i, in := range table.Shown() {
			if in != table.All()[i] {
				t.Errorf("%s is shown at %d", in.Endpoint.Address, i)
			}
			got = append(got, in.Endpoint.Address+in.Endpoint.UID)
		}
		return got
	}
	want := []string{place('b', "").Address + "U2", place('c', "").Address}
	if got := shown(); !slices.Equal(got, want) {
		t.Errorf("shown are %v, want %v", got, want)
	}
	for range table.Shown() {
		break
	}
	table.Follow(pool.Snapshot())
	if got := shown(); !slices.Equal(got, want) {
		t.Errorf("then %v, want %v", got, want)
	}
}
