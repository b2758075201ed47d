package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// known returns a scheduler with an engine-metrics-producer over n endpoints that have all been read.
func known(tb testing.TB, n int) (*scheduling.Scheduler, *scheduling.Snapshot) {
	tb.Helper()
	store := NewStore(Options{Now: func() time.Duration { return 0 }})
	cfg := schedtest.Config([]scheduling.Spec{{Name: TypeName, Type: TypeName}}, schedtest.First.Type)
	s, err := scheduling.Build(append(store.Types(), schedtest.First), cfg, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	specs := make([]scheduling.EndpointSpec, n)
	for i := range specs {
		specs[i].Address = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
	}
	pool := scheduling.NewPool()
	snapshot := pool.Update(specs)
	for _, r := range store.follow(snapshot) { // nothing is scraped: the plugin does not know the snapshot
		r.last.Store(&Reading{Load: scheduling.EngineMetrics{Known: allLoad, Waiting: 1}})
	}
	return s, snapshot
}

func TestProduceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s, snapshot := known(t, 64)
	c := s.Begin(snapshot, &scheduling.Request{ID: 1}, time.Second)
	defer s.End(c)
	if n := testing.AllocsPerRun(100, func() { s.Produce(t.Context(), c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if m, ok := scheduling.ColumnOf[scheduling.EngineMetrics](c).Get(63); !ok || m.Waiting != 1 || m.AgeMs != 1000 {
		t.Errorf("%+v, %v", m, ok)
	}
}

func BenchmarkProduce(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			s, snapshot := known(b, n)
			c := s.Begin(snapshot, &scheduling.Request{ID: 1}, time.Second)
			defer s.End(c)
			b.ReportAllocs()
			for b.Loop() {
				s.Produce(b.Context(), c)
			}
		})
	}
}
