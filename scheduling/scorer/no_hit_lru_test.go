package scorer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

const noHitLRU = "no-hit-lru-scorer"

// coldPool is a scheduler with no-hit-lru-scorer alone, and a pool that it follows.
type coldPool struct {
	*scheduling.Scheduler
	table *schedtest.Table
	pool  *scheduling.Pool
	next  uint64
}

func newColdPool(tb testing.TB, endpoints int, parameters string) *coldPool {
	tb.Helper()
	p := &coldPool{table: &schedtest.Table{Endpoints: make([]schedtest.Endpoint, endpoints)}}
	p.Scheduler = p.build(tb, parameters, nil)
	p.pool = p.table.Pool()
	return p
}

func (p *coldPool) build(tb testing.TB, parameters string, previous *scheduling.Scheduler) *scheduling.Scheduler {
	tb.Helper()
	cfg := schedtest.Config([]scheduling.Spec{{Name: noHitLRU, Type: noHitLRU, Decode: schedtest.YAML(parameters)}}, noHitLRU, schedtest.First.Type)
	s, err := scheduling.Build(append(append(p.table.Types(), scorer.Types()...), schedtest.First), cfg, previous)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// send places a request on one endpoint, or where the scorer wants it where only is negative, and returns what it scored.
func (p *coldPool) send(tb testing.TB, only int) (scores []float64, f *scheduling.Flight) {
	tb.Helper()
	p.next++
	c := p.Begin(p.pool.Snapshot(), &scheduling.Request{ID: p.next}, 0)
	defer p.End(c)
	if only >= 0 {
		allowed := scheduling.NewSet(len(p.table.Endpoints))
		allowed.Add(only)
		c.Restrict(allowed)
	}
	p.Produce(tb.Context(), c)
	f, err := p.Commit(c)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.Clone(c.Scores[0].Raw), f
}

// scores are what a request would be scored now.
func (p *coldPool) scores(tb testing.TB) []float64 {
	tb.Helper()
	c := p.Begin(p.pool.Snapshot(), &scheduling.Request{ID: 1}, 0)
	defer p.End(c)
	p.Produce(tb.Context(), c)
	p.Preview(c)
	return slices.Clone(c.Scores[0].Raw)
}

func (p *coldPool) want(tb testing.TB, what string, want ...float64) {
	tb.Helper()
	if diff := cmp.Diff(want, p.scores(tb), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		tb.Errorf("%s: scores (-want +got):\n%s", what, diff)
	}
}

func end(f *scheduling.Flight) { f.Done(scheduling.Outcome{}, 0) }

func TestNoHitLRUPrefersTheLeastRecentlyUsed(t *testing.T) {
	p := newColdPool(t, 4, "")
	p.want(t, "nobody used", 1, 1, 1, 1)
	for _, e := range []int{2, 0, 2} {
		_, f := p.send(t, e)
		end(f)
	}
	p.want(t, "2, 0, 2", 1./3, 1, 0, 1)
	for _, e := range []int{1, 3} {
		_, f := p.send(t, e)
		end(f) // what is over was used all the same
	}
	p.want(t, "2, 0, 2, 1, 3", 1, 1./3, 2./3, 0)
	if _, f := p.send(t, -1); f.Endpoint.Ordinal != 0 {
		t.Errorf("the next goes to %d, not to who waited longest", f.Endpoint.Ordinal)
	}
	if _, f := p.send(t, -1); f.Endpoint.Ordinal != 2 {
		t.Errorf("then to %d", f.Endpoint.Ordinal)
	}
}

// One endpoint that holds a block makes the request none of the scorer's business, and not a use.
func TestNoHitLRUIsNeutralToHits(t *testing.T) {
	p := newColdPool(t, 3, "")
	_, f := p.send(t, 0)
	defer end(f)
	for name, tc := range map[string]struct {
		match scheduling.PrefixCacheMatchInfo
		cold  bool
	}{
		"a block":       {scheduling.NewPrefixCacheMatchInfo(1, 100, 16), false},
		"everything":    {scheduling.NewPrefixCacheMatchInfo(100, 100, 16), false},
		"nothing":       {scheduling.NewPrefixCacheMatchInfo(0, 100, 16), true},
		"no block size": {scheduling.NewPrefixCacheMatchInfo(5, 100, 0), true},
	} {
		p.table.Endpoints[2].Match = &tc.match
		if tc.cold {
			p.want(t, name, 0, 1, 1)
		} else {
			p.want(t, name, 0.5, 0.5, 0.5)
			_, f := p.send(t, -1)
			end(f)
		}
		p.table.Endpoints[2].Match = nil
		p.want(t, "after "+name, 0, 1, 1)
	}
}

// Only those that the request may go to count: the others neither rank nor make it warm.
func TestNoHitLRUWithinASubset(t *testing.T) {
	p := newColdPool(t, 3, "")
	for _, e := range []int{1, 0} {
		_, f := p.send(t, e)
		end(f)
	}
	p.table.Endpoints[2].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(9, 10, 16))
	c := p.Begin(p.pool.Snapshot(), &scheduling.Request{ID: 1}, 0)
	defer p.End(c)
	allowed := scheduling.NewSet(3)
	allowed.Add(0)
	allowed.Add(1)
	c.Restrict(allowed)
	p.Produce(t.Context(), c)
	p.Preview(c)
	if diff := cmp.Diff([]float64{0, 1, 0}, c.Scores[0].Raw); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
	if scores, f := p.send(t, 1); scores[1] != 1 {
		t.Errorf("alone it scores %v", scores[1])
	} else {
		end(f)
	}
}

// Where the proxy says that another endpoint served, that one was used as well.
func TestNoHitLRUFollowsMoves(t *testing.T) {
	p := newColdPool(t, 3, "")
	_, f := p.send(t, 0)
	f.Served(p.pool.Snapshot().Endpoints[2], f.PickedAt)
	defer end(f)
	p.want(t, "moved", 0.5, 1, 0)
	p.table.Endpoints[1].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(1, 10, 16))
	_, warm := p.send(t, -1)
	warm.Served(p.pool.Snapshot().Endpoints[1], warm.PickedAt)
	defer end(warm)
	p.table.Endpoints[1].Match = nil
	p.want(t, "a warm one moved", 0.5, 1, 0)
}

// What is remembered outlives a reload, in both directions: the old configuration's last picks count too.
func TestNoHitLRUOutlivesReloads(t *testing.T) {
	p := newColdPool(t, 3, "")
	_, f := p.send(t, 1)
	defer end(f)
	old := p.Scheduler
	p.Scheduler = p.build(t, "", old)
	p.want(t, "reloaded", 1, 0, 1)
	renewed := p.Scheduler
	p.Scheduler = old
	_, late := p.send(t, 2)
	defer end(late)
	p.Scheduler = renewed
	p.want(t, "picked by the old one", 1, 0.5, 0)
}

// Endpoints that go are forgotten, and what comes back under the same name is new.
func TestNoHitLRUForgetsWhoWent(t *testing.T) {
	p := newColdPool(t, 3, "")
	defer p.pool.Watch(p.SnapshotChanged)()
	var specs []scheduling.EndpointSpec
	for _, e := range p.pool.Snapshot().Endpoints {
		specs = append(specs, e.EndpointSpec)
	}
	for _, e := range []int{0, 1, 2} {
		_, f := p.send(t, e)
		end(f)
	}
	gone := p.pool.Snapshot().Endpoints[1]
	p.pool.Update([]scheduling.EndpointSpec{specs[0], specs[2]})
	_, f := p.send(t, 0)
	f.Served(gone, f.PickedAt) // a retry that came too late
	defer end(f)
	p.pool.Update(specs)
	p.want(t, "came back", 0, 1, 0.5)
}

// No more are remembered than lruSize, and never more than there are endpoints.
func TestNoHitLRUIsBounded(t *testing.T) {
	p := newColdPool(t, 4, "lruSize: 2")
	for _, e := range []int{0, 1, 2, 3} {
		_, f := p.send(t, e)
		end(f)
	}
	p.want(t, "two of four", 1, 1, 1./3, 0)

	p = newColdPool(t, 3, "")
	defer p.pool.Watch(p.SnapshotChanged)()
	for i := range 1000 { // every one is another instance
		p.pool.Update([]scheduling.EndpointSpec{{Address: fmt.Sprintf("10.1.%d.%d:1", i/250, i%250)}, {Address: "10.2.0.1:1"}})
		_, f := p.send(t, -1)
		end(f)
	}
	s, ok := p.Plugin(noHitLRU).(*scorer.NoHitLRU)
	if !ok || s.Remembered() > 2 || s.Remembered() == 0 {
		t.Errorf("%d are remembered", s.Remembered())
	}
}

// Simultaneous picks see one another: requests that come at once spread evenly.
func TestNoHitLRUSpreadsAHerd(t *testing.T) {
	const endpoints, requests = 8, 64
	p := newColdPool(t, endpoints, "")
	snapshot := p.pool.Snapshot()
	var wait sync.WaitGroup
	var mu sync.Mutex
	got := make([]int, endpoints)
	for i := range requests {
		wait.Go(func() {
			c := p.Begin(snapshot, &scheduling.Request{ID: uint64(i)}, 0)
			defer p.End(c)
			p.Produce(t.Context(), c)
			f, err := p.Commit(c)
			if err != nil {
				t.Error(err)
				return
			}
			p.SnapshotChanged(snapshot)
			mu.Lock()
			got[f.Endpoint.Ordinal]++
			mu.Unlock()
			f.Served(snapshot.Endpoints[f.Endpoint.Ordinal], f.PickedAt)
			end(f)
		})
	}
	wait.Wait()
	if slices.Min(got) != requests/endpoints || slices.Max(got) != requests/endpoints {
		t.Errorf("%v", got)
	}
}

// The ranks are those of a list in which whoever is used moves to the end.
func TestNoHitLRUAgreesWithAList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := newColdPool(t, 9, "")
	var list []int
	for range 300 {
		e := random.IntN(9)
		_, f := p.send(t, e)
		end(f)
		list = append(slices.DeleteFunc(list, func(x int) bool { return x == e }), e)
		want := slices.Repeat([]float64{1}, 9)
		for i, x := range list {
			want[x] = 1 - float64(9-len(list)+i)/8
		}
		p.want(t, fmt.Sprint(list), want...)
	}
}

func TestNoHitLRUParameters(t *testing.T) {
	for parameters, want := range map[string]bool{"lruSize: 1": true, "lruSize: 0": false, "lruSize: 65537": false, "prefixMatchInfoProducerName: table-late": false} {
		if err := buildError(noHitLRU, parameters); (err == nil) != want {
			t.Errorf("%s: %v", parameters, err)
		}
	}
}
