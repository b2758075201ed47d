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
		r.last.Store(&Reading{
			Load:     scheduling.EngineMetrics{Known: withLoRA, Waiting: 1, Adapters: 2, MaxAdapters: 4},
			Adapters: Adapters{Known: true, Running: []string{"sql", "chat"}, InUse: 2, Max: 4},
		})
	}
	return s, snapshot
}

func TestProduceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s, snapshot := known(t, 64)
	c := s.Begin(snapshot, &scheduling.Request{ID: 1, Model: "chat"}, time.Second)
	defer s.End(c)
	if n := testing.AllocsPerRun(100, func() { s.Produce(t.Context(), c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if m, ok := scheduling.ColumnOf[scheduling.EngineMetrics](c).Get(63); !ok || m.Waiting != 1 || m.AgeMs != 1000 {
		t.Errorf("%+v, %v", m, ok)
	}
}

// TestProduceTellsTheRequestsAdapter publishes, beside how many adapters an engine uses, what it does with the one that the
// request names.
func TestProduceTellsTheRequestsAdapter(t *testing.T) {
	s, snapshot := known(t, 4)
	store := s.Plugin(TypeName).(*Producer).poller.store
	lists := []*Adapters{
		{Known: true, Running: []string{"sql", "chat"}, Waiting: []string{"sql"}, InUse: 2, Max: 2},
		{Known: true, Running: []string{"chat"}, Waiting: []string{"sql"}, InUse: 2, Max: 4},
		{Known: true, Max: 1},
		nil,
	}
	for i, r := range *store.table.Load() {
		next := &Reading{Load: scheduling.EngineMetrics{Known: allLoad}}
		if a := lists[i]; a != nil {
			next.Adapters, next.Load.Known = *a, withLoRA
			next.Load.Adapters, next.Load.MaxAdapters = a.InUse, a.Max
		}
		r.last.Store(next)
	}
	use := func(running, waiting, free scheduling.AdapterUse) []scheduling.AdapterUse {
		return []scheduling.AdapterUse{running, waiting, free, scheduling.AdapterUnknown}
	}
	for model, want := range map[string][]scheduling.AdapterUse{
		"sql":  use(scheduling.AdapterRunning, scheduling.AdapterWaiting, scheduling.AdapterUnused),
		"chat": use(scheduling.AdapterRunning, scheduling.AdapterRunning, scheduling.AdapterUnused),
		"base": use(scheduling.AdapterUnused, scheduling.AdapterUnused, scheduling.AdapterUnused),
		"":     use(scheduling.AdapterUnknown, scheduling.AdapterUnknown, scheduling.AdapterUnknown),
	} {
		c := s.Begin(snapshot, &scheduling.Request{ID: 1, Model: model}, 0)
		s.Produce(t.Context(), c)
		for i := range want {
			m, ok := scheduling.ColumnOf[scheduling.EngineMetrics](c).Get(i)
			if !ok || m.Adapter != want[i] {
				t.Errorf("%q on endpoint %d: %+v, %v; want use %d", model, i, m, ok, want[i])
			}
			if a := lists[i]; a != nil && (m.Adapters != a.InUse || m.MaxAdapters != a.Max) {
				t.Errorf("endpoint %d: %d of %d adapters, want %d of %d", i, m.Adapters, m.MaxAdapters, a.InUse, a.Max)
			}
		}
		s.End(c)
	}
}

func BenchmarkProduce(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			s, snapshot := known(b, n)
			c := s.Begin(snapshot, &scheduling.Request{ID: 1, Model: "chat"}, time.Second)
			defer s.End(c)
			b.ReportAllocs()
			for b.Loop() {
				s.Produce(b.Context(), c)
			}
		})
	}
}
