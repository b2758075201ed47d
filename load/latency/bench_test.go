package latency

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// busyPool is a plugin that has learnt from 4,000 requests on so many endpoints, whose cycle is ready to be filled.
func busyPool(tb testing.TB, endpoints int) (*world, *scheduling.Cycle) {
	w := newWorld(tb, "", endpoints)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range endpoints {
		load := &w.table.Endpoints[i]
		load.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(random.IntN(8000)))
		load.Metrics = &scheduling.EngineMetrics{
			Known:   scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage,
			Waiting: float64(random.IntN(4)), Running: float64(random.IntN(60)), KVUsage: random.Float64(), AgeMs: 20,
		}
	}
	w.table.Prompt = &scheduling.TokenizedPrompt{Count: 8000}
	for range 4000 {
		e := random.IntN(endpoints)
		f := w.pick(e)
		w.now += time.Duration((20 + random.Float64()*500) * float64(time.Millisecond))
		f.FirstToken(w.now)
		w.now += time.Second
		f.Done(good(8000, 0, 100), w.now)
	}
	if w.plugin.known.endpoints.All()[0].Value.class.known.Load().trial == nil {
		tb.Fatal("no forest has grown")
	}
	for i := range 4 * endpoints {
		f := w.pick(i % endpoints)
		if i%2 == 0 {
			f.FirstToken(w.now)
		}
	}
	c := w.begin(0)
	w.scheduler.Preview(c)
	return w, c
}

// BenchmarkPredict512 is a prediction for 512 endpoints, all with work of their own: the linear part for all, the forest for the
// best.
func BenchmarkPredict512(b *testing.B) { benchmarkPredict(b, 512) }

// BenchmarkPredict64 is the same for 64.
func BenchmarkPredict64(b *testing.B) { benchmarkPredict(b, 64) }

func benchmarkPredict(b *testing.B, endpoints int) {
	w, c := busyPool(b, endpoints)
	// The forest counts whether it has helped on these samples or not.
	for _, in := range w.plugin.known.endpoints.All() {
		m := *in.Value.class.known.Load()
		m.forest = m.trial
		in.Value.class.known.Store(&m)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.plugin.Fill(c)
	}
}

// BenchmarkLearn is what an answer teaches at once; forests grow beside it.
func BenchmarkLearn(b *testing.B) {
	w, _ := busyPool(b, 8)
	k := w.plugin.known
	f := flight{}
	k.mu.Lock()
	e := &k.endpoints.All()[0].Value
	c := w.begin(0)
	all := w.plugin.inputs(c)
	e.note(&f, w.now, all.of(0), nil)
	k.mu.Unlock()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		f.class.learnTTFT(&f, w.now, 100+float64(i%50), func(func()) {})
		f.class.residual.growing = nil
	}
}

// BenchmarkGrow is one forest over all the samples that are kept.
func BenchmarkGrow(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	z, y := make([]sight, kept), make([]float32, kept)
	for i := range z {
		for f := range z[i] {
			z[i][f] = random.Float32()
		}
		y[i] = z[i][3]*z[i][5] + random.Float32()/10
	}
	b.ReportAllocs()
	for b.Loop() {
		if grow(z, y, 1) == nil {
			b.Fatal("nothing grew")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/growSeldom, "ns/sample")
}

func address(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1) }
