package decisionlog

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// waitingCycle is a decision that can be told again and again, under another id each time, and its flight.
func (b *bench) waitingCycle(t testing.TB) (*scheduling.Cycle, *scheduling.Flight) {
	t.Helper()
	c := b.scheduler.Begin(b.pool.Snapshot(), &scheduling.Request{
		Model: "m", Choices: 1, Headers: []scheduling.Header{{Name: requestIDHeader, Value: []byte("6f1e7a52-7f0e-4d0c-9f6c-3f2f1f0c9a11")}},
	}, 0)
	b.scheduler.Produce(t.Context(), c)
	f, err := b.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, f
}

// discard frees what waits for the writer where a decision does.
func (l *Log) discard(id uint64) {
	for e := l.shards[id%shardCount].take(); e != nil; {
		next := e.next
		l.free(e)
		l.queued.Add(-1)
		e = next
	}
}

// TestRecordingAllocatesNothing: once warm, a decision in the sample costs no memory of its own from pick to writer.
func TestRecordingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, endpoints := range []int{8, 512} {
		b := newBench(t, endpoints)
		l, _, err := prepare(b.options(t, func(o *Options) {
			o.MaxPendingBytes, o.Hashing = 1<<30, Hashing{Most: 64, BlockTokens: 16, Seed: blockhash.SeedOf("test")}
		}))
		if err != nil {
			t.Fatal(err)
		}
		c, f := b.waitingCycle(t)
		c.Request.Tokens = make([]uint32, 900)
		one := func() {
			c.Request.ID++
			f.ID = c.Request.ID
			l.Picked(c, f, 0)
			l.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, time.Millisecond, time.Second)
			l.discard(f.ID)
		}
		for range 10 {
			one()
		}
		if n := testing.AllocsPerRun(1000, one); n > 0 {
			t.Errorf("%d endpoints: %v allocations a decision", endpoints, n)
		}
		if l.held.Load() != 0 || l.pending.Load() != 0 || l.queued.Load() != 0 {
			t.Errorf("%d bytes, %d pending, %d queued are left", l.held.Load(), l.pending.Load(), l.queued.Load())
		}
	}
}

// BenchmarkObserver is what the decision log adds to a request: its pick and its end. The writer does not run.
func BenchmarkObserver(b *testing.B) {
	for _, endpoints := range []int{8, 64, 512} {
		for _, ratio := range []float64{0, 0.01, 1} {
			b.Run(fmt.Sprintf("endpoints=%d/sample=%v", endpoints, ratio), func(b *testing.B) {
				bench := newBench(b, endpoints)
				l, _, err := prepare(bench.options(b, func(o *Options) { o.SampleRatio = ratio }))
				if err != nil {
					b.Fatal(err)
				}
				c, f := bench.waitingCycle(b)
				b.ReportAllocs()
				for b.Loop() {
					c.Request.ID++
					f.ID = c.Request.ID
					l.Picked(c, f, 0)
					l.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, time.Millisecond, time.Second)
					if l.queued.Load() > 0 {
						l.discard(f.ID)
					}
				}
			})
		}
	}
}

// BenchmarkRow is what the writer does for a row: the record and its bytes.
func BenchmarkRow(b *testing.B) {
	for _, format := range []Format{JSONLines, Parquet} {
		for _, endpoints := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", format, endpoints), func(b *testing.B) {
				bench := newBench(b, endpoints)
				l, w, err := prepare(bench.options(b, func(o *Options) { o.Format, o.MaxFileBytes, o.MaxPendingBytes = format, 1<<30, 1<<30 }))
				if err != nil {
					b.Fatal(err)
				}
				cycles := make([]*scheduling.Cycle, min(2048, 1<<15/endpoints)) // that differ, as decisions do
				flights := make([]*scheduling.Flight, len(cycles))
				random := rand.New(rand.NewPCG(1, 2))
				for i := range cycles {
					for j := range bench.table.Endpoints {
						e := &bench.table.Endpoints[j]
						e.Load = &scheduling.InFlightLoad{Tokens: random.Int64N(200_000), Requests: random.Int64N(40), Decoding: random.Int64N(30)}
						e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(random.IntN(500), 500, 16))
					}
					cycles[i], flights[i] = bench.waitingCycle(b)
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					c, f := cycles[n%len(cycles)], flights[n%len(cycles)]
					c.Request.ID = uint64(n)
					f.ID = c.Request.ID
					l.Picked(c, f, 0)
					l.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, time.Millisecond, time.Second)
					w.writeQueued()
					n++
				}
				w.finish()
				b.ReportMetric(float64(l.stats.bytes.Load())/float64(n), "bytes/row")
			})
		}
	}
}

// BenchmarkObserverParallel is the same as BenchmarkObserver from many goroutines, with a writer that frees what it gets.
func BenchmarkObserverParallel(b *testing.B) {
	bench := newBench(b, 8)
	l, err := Open(bench.options(b, func(o *Options) { o.Folder, o.MaxPendingBytes = filepath.Join(b.TempDir(), "log"), 1<<30 }))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c, f := bench.waitingCycle(b)
		for pb.Next() {
			c.Request.ID = bench.next.Add(1)
			f.ID = c.Request.ID
			l.Picked(c, f, 0)
			l.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, time.Millisecond, time.Second)
		}
	})
}

// BenchmarkHashing is what hashes of the prompt add to a pick: 16 KiB of text in pieces of chat, or 4,096 tokens.
func BenchmarkHashing(b *testing.B) {
	for _, tc := range []struct {
		name         string
		most, tokens int
	}{{"none", 0, 0}, {"text", 1024, 0}, {"tokens", 1024, 4096}} {
		b.Run(tc.name, func(b *testing.B) {
			bench := newBench(b, 8)
			l, _, err := prepare(bench.options(b, func(o *Options) {
				o.Hashing = Hashing{Most: tc.most, BlockTokens: 64, Seed: blockhash.SeedOf("bench")}
			}))
			if err != nil {
				b.Fatal(err)
			}
			c, f := bench.waitingCycle(b)
			c.Request.Tokens = make([]uint32, tc.tokens)
			c.Request.Body = make([]byte, 16<<10)
			for at := 0; at < len(c.Request.Body); at += 512 {
				c.Request.Prompt = append(c.Request.Prompt, scheduling.Span{Start: at, End: at + 512})
			}
			b.ReportAllocs()
			for b.Loop() {
				c.Request.ID++
				f.ID = c.Request.ID
				l.Picked(c, f, 0)
				l.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, time.Millisecond, time.Second)
				l.discard(f.ID)
			}
		})
	}
}

func tableOf(endpoints int) *schedtest.Table {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, endpoints)}
	for i := range table.Endpoints {
		table.Endpoints[i].Load = &scheduling.InFlightLoad{Tokens: int64(i)}
		table.Endpoints[i].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(i%10, 10, 16))
	}
	return table
}
