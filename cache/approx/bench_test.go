package approx

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluice-epp/sluice/scheduling"
)

// cpu reports the process's CPU time per operation: on a machine that others use too it is what repeats.
func cpu(b *testing.B) (stop func()) {
	start := cpuTime(b)
	return func() { b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op") }
}

func cpuTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func manyEndpoints(h *harness, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)
	}
	h.endpoints(names...)
	return names
}

// warm fills an index the way a chat workload does: every endpoint holds the system prompt of 32 blocks and conversations
// of its own; one conversation of 256 blocks is returned, of which its endpoint holds 250.
func warm(h *harness, names []string) *scheduling.Request {
	system := words(1, 32*64)
	for i, name := range names {
		for j := range 8 {
			h.serve(text("m", system+words(uint64(1000+i*8+j), 100*64)), name)
		}
	}
	conversation := system + words(7, 224*64)
	h.serve(text("m", conversation[:250*64]), names[len(names)/2])
	return text("m", conversation)
}

// BenchmarkProduce is a whole look-up of 256 blocks: hashing 16 KiB of text, looking it up and publishing match info for
// every endpoint. warm: see above; cold: nothing is held; staircase: every endpoint holds another length, the worst case.
func BenchmarkProduce(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		for _, state := range []string{"warm", "cold", "staircase"} {
			b.Run(fmt.Sprintf("endpoints=%d/%s", n, state), func(b *testing.B) {
				h := newHarness(b, nil, nil)
				names := manyEndpoints(h, n)
				r := text("m", words(9, 256*64))
				switch state {
				case "warm":
					r = warm(h, names)
				case "staircase":
					for i, name := range names {
						h.serve(text("m", string(r.Body[:(i%256+1)*64])), name)
					}
				}
				p := h.producer()
				c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
				h.scheduler.Produce(b.Context(), c)
				b.ReportAllocs()
				defer cpu(b)()
				for b.Loop() {
					if err := p.Produce(b.Context(), c); err != nil {
						b.Fatal(err)
					}
					blocks, _ := p.blocks.In(c).Get()
					p.giveBack(blocks.prompt)
				}
			})
		}
	}
}

// BenchmarkLookup is the look-up alone, beside the plain structure: one locked LRU per endpoint, each walked from the head.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		h := newHarness(b, nil, nil)
		names := manyEndpoints(h, n)
		r := warm(h, names)
		c := h.begin(r)
		p := h.producer()
		blocks, _ := p.blocks.In(c).Get()
		x, pr := p.index.Load(), blocks.prompt
		column := p.info.In(c)
		sum := 0
		b.Run(fmt.Sprintf("endpoints=%d/inverted", n), func(b *testing.B) {
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				x.lookup(c, pr, column)
			}
		})
		b.Run(fmt.Sprintf("endpoints=%d/lru_each", n), func(b *testing.B) {
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				for _, in := range x.members.Load().byOrdinal {
					in.mu.Lock()
					runs := 0
					for runs < len(pr.hashes) && in.lru.Contains(pr.hashes[runs]) {
						runs++
					}
					in.mu.Unlock()
					sum += runs
				}
			}
		})
		if best := h.read(c)[names[n/2]]; best.MatchBlocks != 250 {
			b.Fatalf("found %+v, want 250 blocks (walk: %d runs)", best, sum)
		}
	}
}

// BenchmarkParallelProduce is Produce from all cores at once while picks are recorded.
func BenchmarkParallelProduce(b *testing.B) {
	h := newHarness(b, nil, nil)
	names := manyEndpoints(h, 64)
	r := warm(h, names)
	b.ReportAllocs()
	b.ResetTimer()
	defer cpu(b)()
	b.RunParallel(func(pb *testing.PB) {
		mine := *r
		for pb.Next() {
			mine.ID = h.id.Add(1)
			c := h.scheduler.Begin(h.pool.Snapshot(), &mine, 0)
			h.scheduler.Produce(b.Context(), c)
			f, err := h.scheduler.Commit(c)
			if err != nil {
				b.Fatal(err)
			}
			h.scheduler.End(c)
			f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 0)
		}
	})
}

// BenchmarkRecord is what a pick costs in the index: a prompt that the endpoint holds already, and one that is new to it
// and pushes out as many blocks.
func BenchmarkRecord(b *testing.B) {
	for _, blocks := range []int{256, 4096} {
		for _, state := range []string{"held", "new"} {
			b.Run(fmt.Sprintf("blocks=%d/%s", blocks, state), func(b *testing.B) {
				h := newHarness(b, nil, nil)
				manyEndpoints(h, 8)
				p := h.producer()
				x := p.index.Load()
				x.adopt(h.pool.Snapshot())
				in := x.members.Load().byOrdinal[3]
				var pr prompt
				pr.hash(x, p.seed, text("m", words(1, blocks*64)), scheduling.TokenizedPrompt{})
				x.record(in, pr.hashes, 1)
				b.ReportAllocs()
				defer cpu(b)()
				for b.Loop() {
					if state == "new" {
						for i := range pr.hashes {
							pr.hashes[i] = scheduling.Mix64(pr.hashes[i])
						}
					}
					x.record(in, pr.hashes, 1)
				}
			})
		}
	}
}

// BenchmarkLRU is the floor of a record: the LRU itself.
func BenchmarkLRU(b *testing.B) {
	lru, err := simplelru.NewLRU[uint64, mark](defaultCapacity, nil)
	if err != nil {
		b.Fatal(err)
	}
	key := uint64(0)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		key++
		lru.Add(scheduling.Mix64(key), mark{})
	}
}
