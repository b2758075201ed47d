package decisions

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// bench makes decisions over some endpoints.
type bench struct {
	table     *schedtest.Table
	scheduler *scheduling.Scheduler
	pool      *scheduling.Pool
	ring      *Ring
	id        uint64
}

var wall = time.Unix(1_700_000_000, 0)

func newBench(t testing.TB, endpoints, room int) *bench {
	t.Helper()
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, endpoints)}
	for i := range table.Endpoints {
		table.Endpoints[i].Load = &scheduling.InFlightLoad{Tokens: int64(i)}
		table.Endpoints[i].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(i%10, 10, 16))
	}
	s := table.Build(t, append(scorer.Types(), picker.Types()...), nil, "prefix-cache-scorer", "token-load-scorer", "max-score-picker")
	s.SetConfigHash("hash")
	return &bench{table: table, scheduler: s, pool: table.Pool(), ring: NewRing(Options{MaxBytes: room, Now: func() time.Time { return wall }})}
}

// decide makes a decision and returns its record, made in place.
func (b *bench) decide(t testing.TB, requestID string) *decisionv1.Decision {
	t.Helper()
	b.id++
	r := &scheduling.Request{ID: b.id, Model: "m", Choices: 1}
	if requestID != "" {
		r.Headers = []scheduling.Header{{Name: requestIDHeader, Value: []byte(requestID)}}
	}
	c := b.scheduler.Begin(b.pool.Snapshot(), r, 0)
	b.scheduler.Produce(t.Context(), c)
	f, err := b.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Picked(c, nil, 0)
	d := record.Of(b.scheduler, c, record.Meta{ClientRequestID: requestID, UnixNano: wall.UnixNano(), ConfigHash: "hash"})
	b.scheduler.End(c)
	b.ring.Ended(f, scheduling.Outcome{Status: 200, PromptTokens: []uint32{1}}, time.Millisecond, time.Second)
	f.Done(scheduling.Outcome{Status: 200}, time.Second)
	return d
}

func TestDecisionsAreFound(t *testing.T) {
	t.Parallel()
	b := newBench(t, 5, 1<<20)
	var all []*decisionv1.Decision
	for i := range 30 {
		all = append(all, b.decide(t, fmt.Sprintf("request-%d", i/3)))
	}
	e, ok := b.ring.Get(all[7].GetId())
	o := e.Decision.GetOutcome()
	e.Decision.Outcome = nil
	if diff := cmp.Diff(all[7], e.Decision, protocmp.Transform()); !ok || diff != "" {
		t.Errorf("%v: %s", ok, diff)
	}
	if e.Scheduler != b.scheduler || o.GetStatus() != 200 || o.GetTotalMs() != 1000 || o.GetServedBy() != "" {
		t.Errorf("%+v", o)
	}
	for _, tc := range []struct {
		requestID string
		limit     int
		want      []uint64
		left      int
	}{{"request-4", 10, []uint64{15, 14, 13}, 0}, {"request-4", 2, []uint64{15, 14}, 1}, {"", 2, []uint64{30, 29}, 28}, {"nobody", 1, nil, 0}} {
		found, left := b.ring.Find(tc.requestID, tc.limit)
		var ids []uint64
		for _, e := range found {
			ids = append(ids, e.Decision.GetId())
		}
		if diff := cmp.Diff(tc.want, ids); diff != "" || left != tc.left {
			t.Errorf("%q: %d left, %s", tc.requestID, left, diff)
		}
	}
	for asked, want := range map[string][]string{
		"request-22": {"request-2"}, "request-": {"request-0", "request-1", "request-2", "request-3", "request-4"},
		"requets-7": {"request-7"}, "another": nil, "": nil,
	} {
		if diff := cmp.Diff(want, b.ring.Near(asked), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("near %q: %s", asked, diff)
		}
	}
}

// TestRoomIsBounded: the newest decisions are kept, as many as there is room for, whatever the number of endpoints.
func TestRoomIsBounded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ endpoints, room, made, least, most int }{
		{5, 1 << 30, MaxDecisions + 100, MaxDecisions, MaxDecisions}, {500, 4 << 20, 200, 40, 100}, {500, 1, 50, minDecisions, minDecisions},
	} {
		b := newBench(t, tc.endpoints, tc.room)
		for range tc.made {
			b.decide(t, "")
		}
		n, room, bytes := b.ring.Size()
		if n != room || n < tc.least || n > tc.most || n > minDecisions && bytes > tc.room {
			t.Errorf("%d endpoints, %d bytes: %d decisions of %d, %d bytes", tc.endpoints, tc.room, n, room, bytes)
		}
		found, _ := b.ring.Find("", n)
		for i, e := range found {
			if want := b.id - uint64(i); e.Decision.GetId() != want {
				t.Fatalf("decision %d is %d, want %d", i, e.Decision.GetId(), want)
			}
		}
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	for range 5 {
		b.decide(t, "")
	}
	b.id += 3 // of requests without a decision
	b.decide(t, "")
	for _, tc := range []struct {
		enough int
		want   []uint64
	}{{3, []uint64{9, 5, 4}}, {100, []uint64{9, 5, 4, 3, 2, 1}}} {
		var got []uint64
		b.ring.Newest(func(d Brief) bool {
			got = append(got, d.ID)
			if !d.Ended || d.Ending.Status != 200 || !d.At.Equal(wall) {
				t.Errorf("%+v", d)
			}
			return len(got) < tc.enough
		})
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Error(diff)
		}
	}
	NewRing(Options{Now: time.Now}).Newest(func(Brief) bool { t.Error("there is one"); return true })
}

func TestOlderDecisionsGiveWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1)
	for range minDecisions + 3 {
		b.decide(t, "")
	}
	if _, ok := b.ring.Get(3); ok {
		t.Error("3 is there")
	}
	if _, ok := b.ring.Get(4); !ok {
		t.Error("4 is not there")
	}
	b.id = 2 // one that took long
	b.decide(t, "")
	if _, ok := b.ring.Get(3); ok {
		t.Error("an old decision took the place of a newer one")
	}
}

func TestWatchersAreTold(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, 1<<20)
	w := b.ring.Watch()
	for range watched + 10 {
		b.decide(t, "")
	}
	for want := range uint64(watched) {
		if got := <-w.IDs(); got != want+1 {
			t.Fatalf("told of %d, want %d", got, want+1)
		}
	}
	if n := w.Missed(); n != 10 {
		t.Errorf("%d missed, want 10", n)
	}
	if n := w.Missed(); n != 0 {
		t.Errorf("%d missed since", n)
	}
	w.Close()
	w.Close()
	b.decide(t, "")
	if n := len(w.IDs()); n != 0 || b.ring.watching.Load() != 0 {
		t.Errorf("told of %d after the end", n)
	}
}

// TestRingIsSharedBySeveral is for the race detector: decisions, endings, readers and changes of size at once.
func TestRingIsSharedBySeveral(t *testing.T) {
	t.Parallel()
	small, large := newBench(t, 3, 1<<18), newBench(t, 300, 1<<18)
	large.ring = small.ring
	var all sync.WaitGroup
	for i, b := range []*bench{small, large} {
		all.Go(func() {
			mine := *b
			mine.id = uint64(i) * 1_000_000
			for range 300 {
				mine.decide(t, "id")
			}
		})
	}
	all.Go(func() {
		for range 100 {
			small.ring.Find("id", 5)
			small.ring.Size()
		}
	})
	all.Wait()
}

func BenchmarkPicked(b *testing.B) {
	for _, endpoints := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			bench := newBench(b, endpoints, 32<<20)
			r := &scheduling.Request{Model: "m", Choices: 1}
			c := bench.scheduler.Begin(bench.pool.Snapshot(), r, 0)
			bench.scheduler.Produce(b.Context(), c)
			bench.scheduler.Preview(c)
			b.ReportAllocs()
			for b.Loop() {
				r.ID++
				bench.ring.Picked(c, nil, 0)
			}
			_, room, bytes := bench.ring.Size()
			b.ReportMetric(float64(bytes)/float64(room), "bytes/decision")
		})
	}
}
