package shadow

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a table of endpoints, decided about by several profiles.
type bench struct {
	table *schedtest.Table
	pool  *scheduling.Pool
	a     *scheduling.Scheduler
	hold  chan struct{} // what holding-scorer waits for
}

var usual = []string{"prefix-cache-scorer", "token-load-scorer", "max-score-picker"}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{table: &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 8)}}
	for i := range b.table.Endpoints {
		b.table.Endpoints[i].Load = &scheduling.InFlightLoad{Tokens: int64(i * 1000)}
		b.table.Endpoints[i].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(i, 10, 16))
	}
	b.pool, b.a = b.table.Pool(), b.scheduler(t, usual...)
	return b
}

func (b *bench) scheduler(t testing.TB, profile ...string) *scheduling.Scheduler {
	t.Helper()
	types := slices.Concat(scorer.Types(), picker.Types(), []scheduling.PluginType{faulty, {Type: "holding-scorer", New: func(*scheduling.Builder) (any, error) { return holds{b}, nil }}})
	return b.table.Build(t, types, []scheduling.Spec{{Name: schedtest.EarlyType, Type: schedtest.EarlyType}, {Name: schedtest.LateType, Type: schedtest.LateType}}, profile...)
}

// faulty is a scorer that panics.
var faulty = scheduling.PluginType{Type: "faulty-scorer", New: func(*scheduling.Builder) (any, error) { return panics{}, nil }}

type panics struct{}

func (panics) Score(*scheduling.Cycle, scheduling.Set, []float64) {
	panic("of the second configuration")
}

// holds is a scorer that waits.
type holds struct{ b *bench }

func (h holds) Score(*scheduling.Cycle, scheduling.Set, []float64) { <-h.b.hold }

func (b *bench) second(t testing.TB, profile ...string) *Second {
	t.Helper()
	bridge, err := scheduling.NewBridge(b.a, b.scheduler(t, profile...))
	if err != nil {
		t.Fatal(err)
	}
	return &Second{Bridge: bridge, SampleRatio: 1}
}

// decide has n requests decided about, each told to the shadow, and returns the picks.
func (b *bench) decide(t testing.TB, s *Shadow, n int) (picks []int) {
	t.Helper()
	for i := range n {
		for j := range b.table.Endpoints {
			b.table.Endpoints[j].Load.Tokens = int64((i*7919 + j*104729) % 50_000)
		}
		c := b.a.Begin(b.pool.Snapshot(), &scheduling.Request{ID: uint64(i + 1), Model: "m", Choices: 1}, 0)
		b.a.Produce(t.Context(), c)
		f, err := b.a.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		if s != nil {
			s.Picked(c, f, 0)
			s.Ended(f, scheduling.Outcome{}, 0, 0)
		}
		picks = append(picks, c.Picks[0])
		f.Done(scheduling.Outcome{}, 0)
		b.a.End(c)
	}
	return picks
}

func newShadow(t testing.TB) *Shadow {
	t.Helper()
	s, err := New(Options{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// value is a metric's value as a scrape sees it.
func (s *Shadow) value(t *testing.T, name, label string) float64 {
	t.Helper()
	reg, ok := s.options.Registerer.(*prometheus.Registry)
	if !ok {
		t.Fatal("no registry")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %q", name, label)
	return 0
}

// inPieces decides so that the queue never is full, and waits until all is compared.
func (b *bench) inPieces(t *testing.T, s *Shadow, pieces int) (picks []int) {
	t.Helper()
	for range pieces {
		picks = append(picks, b.decide(t, s, queueLength/2)...)
		settle()
	}
	return picks
}

func (s *stats) total() (n int64) {
	for i := range s.compared {
		n += s.compared[i].Load()
	}
	return n
}

// settle lets what can be compared be compared.
func settle() {
	time.Sleep(2 * lookEvery)
	synctest.Wait()
}

// TestAgreement: the same configuration always agrees, draws included; another one sometimes; and nothing of that changes a pick.
func TestAgreement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		alone := b.inPieces(t, nil, 4)
		s := newShadow(t)
		if err := s.Use(b.second(t, usual...)); err != nil {
			t.Fatal(err)
		}
		if got := b.inPieces(t, s, 4); !slices.Equal(got, alone) {
			t.Error("the picks are others beside a shadow")
		}
		if n := s.value(t, "sluice_shadow_decisions_total", "agreed"); n != 2*queueLength || s.value(t, "sluice_shadow_agreement_ratio", "") != 1 {
			t.Errorf("%v agreed, ratio %v", n, s.value(t, "sluice_shadow_agreement_ratio", ""))
		}
		if err := s.Use(b.second(t, "token-load-scorer", "max-score-picker")); err != nil {
			t.Fatal(err)
		}
		if got := b.inPieces(t, s, 3); !slices.Equal(got, alone[:3*queueLength/2]) {
			t.Error("the picks are others beside another configuration's shadow")
		}
		const all = 3 * queueLength / 2 // of the second pair alone
		scored, drawn := s.value(t, "sluice_shadow_decisions_total", "scorer"), s.value(t, "sluice_shadow_decisions_total", "draw")
		if ratio := s.value(t, "sluice_shadow_agreement_ratio", ""); scored < 50 || math.Abs(ratio-(1-(scored+drawn)/all)) > 1e-9 {
			t.Errorf("%v by a scorer, %v drawn, ratio %v", scored, drawn, ratio)
		}
		if err := s.Use(nil); err != nil {
			t.Fatal(err)
		}
		b.inPieces(t, s, 1)
		if n := s.stats.total(); n != 7*queueLength/2 {
			t.Errorf("%d compared, after the end", n)
		}
	})
}

// TestPanicsStayInTheShadow: a second configuration that panics costs its own figures and nothing else.
func TestPanicsStayInTheShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		alone := b.decide(t, nil, 100)
		s := newShadow(t)
		if err := s.Use(b.second(t, "faulty-scorer", "max-score-picker")); err != nil {
			t.Fatal(err)
		}
		if got := b.decide(t, s, 100); !slices.Equal(got, alone) {
			t.Error("the picks are others")
		}
		settle()
		if n := s.value(t, "sluice_shadow_dropped_total", "panic"); n != 100 || s.stats.total() != 0 {
			t.Errorf("%v panics, %d compared", n, s.stats.total())
		}
		if err := s.Use(b.second(t, usual...)); err != nil {
			t.Fatal(err)
		}
		b.decide(t, s, 100)
		settle()
		if s.stats.total() != 100 {
			t.Errorf("%d compared, after the panics", s.stats.total())
		}
	})
}

// TestFullQueue: what comes faster than it is compared is left out, and counted, and no pick waits.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := newShadow(t)
		b.hold = make(chan struct{}) // nothing is compared
		if err := s.Use(b.second(t, "holding-scorer", "max-score-picker")); err != nil {
			t.Fatal(err)
		}
		b.decide(t, s, 1) // it is taken out of the queue, and held
		settle()
		b.decide(t, s, 3*queueLength)
		settle()
		full := s.value(t, "sluice_shadow_dropped_total", "full")
		if full != 2*queueLength || s.value(t, "sluice_shadow_queue_length", "") != queueLength {
			t.Errorf("%v are left out, %v wait", full, s.value(t, "sluice_shadow_queue_length", ""))
		}
		close(b.hold)
		settle()
		if s.stats.total()+int64(full) != 3*queueLength+1 {
			t.Errorf("%d compared, %v left out", s.stats.total(), full)
		}
	})
}

// TestChangeOfTheSecond: what waits for a configuration that has gone is left out; the one gone is closed, once.
func TestChangeOfTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := newShadow(t)
		closed := 0
		b.hold = make(chan struct{})
		first := b.second(t, "holding-scorer", "max-score-picker")
		first.Close = func() error { closed++; return errors.New("as it ends") }
		if err := s.Use(first); err != nil {
			t.Fatal(err)
		}
		next := b.second(t, usual...)
		b.decide(t, s, 10)
		settle()
		result := make(chan error, 1)
		go func() { result <- s.Use(next) }()
		close(b.hold)
		if err := <-result; err == nil || closed != 1 {
			t.Errorf("%v, closed %d times", err, closed)
		}
		settle()
		if n := s.stats.total() + s.stats.dropped[droppedReload].Load(); n != 10 {
			t.Errorf("%d of 10", n)
		}
		b.a = b.scheduler(t, usual...) // a configuration that the bridge is not from
		b.decide(t, s, 5)
		settle()
		if n := s.stats.total() + s.stats.dropped[droppedReload].Load(); n != 10 || closed != 1 {
			t.Errorf("%d after a reload, closed %d times", n, closed)
		}
	})
}

// TestSampleOfTheShadow follows from the decisions' seeds.
func TestSampleOfTheShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := newShadow(t)
		for _, tc := range []struct{ ratio, least, most float64 }{{0, 0, 0}, {0.25, 60, 200}, {1, 512, 512}} {
			second := b.second(t, usual...)
			second.SampleRatio = tc.ratio
			if err := s.Use(second); err != nil {
				t.Fatal(err)
			}
			before := s.stats.total()
			for i := range 4 {
				b.inPiecesFrom(t, s, i)
			}
			if n := float64(s.stats.total() - before); n < tc.least || n > tc.most {
				t.Errorf("ratio %v: %v of 512", tc.ratio, n)
			}
		}
	})
}

// inPiecesFrom decides about requests with ids of their own.
func (b *bench) inPiecesFrom(t *testing.T, s *Shadow, piece int) {
	t.Helper()
	for i := range queueLength / 2 {
		c := b.a.Begin(b.pool.Snapshot(), &scheduling.Request{ID: uint64(1000*piece + i + 1), Choices: 1}, 0)
		b.a.Produce(t.Context(), c)
		b.a.Preview(c)
		s.Picked(c, nil, 0)
		b.a.End(c)
	}
	settle()
}

// TestRecentAgreement: the share follows what happens now.
func TestRecentAgreement(t *testing.T) {
	var s stats
	s.begin()
	for range 5 * recent {
		s.count(explain.Unchanged)
	}
	for range 5 * recent {
		s.count(explain.ByScorer)
	}
	if got := fmt.Sprintf("%.2f", math.Float64frombits(s.agreement.Load())); got != "0.01" {
		t.Errorf("%s after as many disagreements", got)
	}
}

// TestNoSeriesWithoutAShadow: what compares nothing has no metrics.
func TestNoSeriesWithoutAShadow(t *testing.T) {
	b, s := newBench(t), newShadow(t)
	reg, ok := s.options.Registerer.(*prometheus.Registry)
	if !ok {
		t.Fatal("no registry")
	}
	for _, second := range []*Second{nil, b.second(t, usual...), nil} {
		if err := s.Use(second); err != nil {
			t.Fatal(err)
		}
		if families, err := reg.Gather(); err != nil || (len(families) > 0) != (second != nil) {
			t.Errorf("%d families, %v; configured: %t", len(families), err, second != nil)
		}
	}
}

// TestBridgeNames what a configuration lacks.
func TestBridgeNamesWhatIsMissing(t *testing.T) {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 2)}
	types := slices.Concat(scorer.Types(), picker.Types())
	a := table.Build(t, types, nil, "token-load-scorer", "max-score-picker")
	b := table.Build(t, types, nil, "queue-scorer", "prefix-cache-scorer", "token-load-scorer", "max-score-picker")
	_, err := scheduling.NewBridge(a, b)
	if err == nil || !strings.Contains(err.Error(), `EngineMetrics of "table-early": nothing produces it here; declare table-early among the plugins`) ||
		!strings.Contains(err.Error(), `PrefixCacheMatchInfo of "table-early"`) || strings.Contains(err.Error(), "InFlightLoad") {
		t.Errorf("%v", err)
	}
	if _, err := scheduling.NewBridge(b, a); err != nil {
		t.Error(err)
	}
}

// BenchmarkPicked is what a shadow adds to a pick: the copy of a decision, and its place in the queue. The comparison is beside it.
func BenchmarkPicked(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("shadow=%v", with), func(b *testing.B) {
			bench := newBench(b)
			s := newShadow(b)
			if with {
				if err := s.Use(bench.second(b, usual...)); err != nil {
					b.Fatal(err)
				}
			}
			c := bench.a.Begin(bench.pool.Snapshot(), &scheduling.Request{ID: 1, Model: "m", Choices: 1}, 0)
			bench.a.Produce(b.Context(), c)
			bench.a.Preview(c)
			b.ReportAllocs()
			for b.Loop() {
				s.Picked(c, nil, 0)
			}
			b.ReportMetric(float64(s.stats.total())/float64(b.N), "compared/op")
		})
	}
}

// BenchmarkCompare is what the comparison of a decision takes, beside picks.
func BenchmarkCompare(b *testing.B) {
	bench := newBench(b)
	second := bench.second(b, usual...)
	c := bench.a.Begin(bench.pool.Snapshot(), &scheduling.Request{ID: 1, Model: "m", Choices: 1}, 0)
	bench.a.Produce(b.Context(), c)
	bench.a.Preview(c)
	s := &Shadow{}
	b.ReportAllocs()
	for b.Loop() {
		s.compare(waiting{cycle: bench.a.Keep(c), with: &pairing{Second: *second}})
	}
}
