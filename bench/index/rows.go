package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/cache/precise"
)

// cold walks a buffer that is larger than any cache, so that what follows finds nothing in one.
type cold struct {
	buffer []uint64
	sum    uint64
}

func newCold() *cold { return &cold{buffer: make([]uint64, 96<<20/8)} }

// receive reads a prompt's tokens, as their decoder has written them just before they are looked up.
func (c *cold) receive(prompt []uint32) {
	for i := 0; i < len(prompt); i += 16 {
		c.sum += uint64(prompt[i])
	}
}

func (c *cold) flush() {
	for i := 0; i < len(c.buffer); i += 8 {
		c.buffer[i]++
		c.sum += c.buffer[i]
	}
}

// lookupRow times look-ups of prompts in random order, each of which was not looked at for as long as all others take: its
// place in the index is in no cache, but its tokens are, as they are with whoever has just received them. Beside it stand
// the same with the tokens in no cache either, and on an index of which nothing at all is in the processor's caches (see
// freeze). The clock's own cost is in all of them.
func lookupRow(w io.Writer, p *pool, o options) error {
	q := &precise.Query{}
	c := newCold()
	var whole, hash, compare, unread, frozen []time.Duration
	order := p.r.Perm(len(p.prompts))
	for _, i := range order {
		c.receive(p.prompts[i])
		start := time.Now()
		p.index.Hash(q, blockSize, p.prompts[i])
		p.index.Match(q)
		whole = append(whole, time.Since(start))
		if err := p.check(q, i); err != nil {
			return err
		}
	}
	for _, i := range order {
		c.receive(p.prompts[i])
		start := time.Now()
		p.index.Hash(q, blockSize, p.prompts[i])
		between := time.Now()
		p.index.Match(q)
		hash, compare = append(hash, between.Sub(start)), append(compare, time.Since(between))
	}
	for _, i := range order {
		start := time.Now()
		p.index.Hash(q, blockSize, p.prompts[i])
		p.index.Match(q)
		unread = append(unread, time.Since(start))
	}
	for _, i := range order[:min(len(order), o.samples)] {
		p.freeze(c, q, p.prompts[i])
		start := time.Now()
		p.index.Hash(q, blockSize, p.prompts[i])
		p.index.Match(q)
		frozen = append(frozen, time.Since(start))
	}
	allocs := allocations(1000, func() {
		p.index.Hash(q, blockSize, p.prompts[0])
		p.index.Match(q)
	})
	median := func(d []time.Duration) int64 { return report.Quantile(d, 0.5).Nanoseconds() }
	_, err := fmt.Fprintf(w, "index op=lookup holders=%d holes=%v ns=%d hash_ns=%d compare_ns=%d unread_ns=%d flushed_ns=%d allocs=%g\n",
		len(p.engines), p.withHoles, median(whole), median(hash), median(compare), median(unread), median(frozen), allocs)
	return err
}

// freeze takes the index out of the processor's caches: a buffer that is larger than all of them is walked. What any
// look-up touches comes back with one of another prompt, and the tokens with whoever has just received them.
func (p *pool) freeze(c *cold, q *precise.Query, prompt []uint32) {
	c.flush()
	p.index.Hash(q, blockSize, p.other)
	p.index.Match(q)
	c.receive(prompt)
}

// check makes sure that a look-up found what it should: the engine that has all of a prompt.
func (p *pool) check(q *precise.Query, prompt int) error {
	if got := q.Matches[prompt%len(p.engines)].Blocks; got != promptBlocks {
		return fmt.Errorf("prompt %d: found %d of %d blocks", prompt, got, promptBlocks)
	}
	return nil
}

// allocations is how many allocations a call makes.
func allocations(calls int, f func()) float64 {
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}

const (
	mixedHolders = 64
	mixedRounds  = 5
	mixedTime    = 400 * time.Millisecond
)

// mixedRow compares how many look-ups a goroutine makes alone with how many it makes beside one that applies events at
// full speed, in turn.
func mixedRow(w io.Writer, p *pool) error {
	if runtime.GOMAXPROCS(0) < 2 {
		return errors.New("op=mixed needs two processors")
	}
	q := &precise.Query{}
	lookups := func() float64 {
		n, start := 0, time.Now()
		for time.Since(start) < mixedTime {
			for range 16 {
				p.index.Hash(q, blockSize, p.prompts[n%len(p.prompts)])
				p.index.Match(q)
				n++
			}
		}
		return float64(n) / time.Since(start).Seconds()
	}
	var kept, alone, beside, applied []float64
	for range mixedRounds {
		a := lookups()
		stop := make(chan struct{})
		var blocks atomic.Int64
		var group sync.WaitGroup
		group.Go(func() { p.churn(stop, &blocks) })
		start := time.Now()
		b := lookups()
		applied = append(applied, float64(blocks.Load())/time.Since(start).Seconds())
		close(stop)
		group.Wait()
		alone, beside, kept = append(alone, a), append(beside, b), append(kept, b/a)
	}
	_, err := fmt.Fprintf(w, "index op=mixed holders=%d holes=%v kept=%.2f lookups_per_s=%.0f lookups_per_s_beside=%.0f blocks_per_s=%.0f\n",
		len(p.engines), p.withHoles, report.Summarize(kept).Median, report.Summarize(alone).Median,
		report.Summarize(beside).Median, report.Summarize(applied).Median)
	return err
}

// churn stores prompts on one engine and removes them again, until it is stopped.
func (p *pool) churn(stop <-chan struct{}, blocks *atomic.Int64) {
	churned := p.churned()
	for {
		for _, c := range churned {
			select {
			case <-stop:
				return
			default:
			}
			p.engines[0].Apply(c.store)
			p.engines[0].Apply(c.remove)
			blocks.Add(2 * promptBlocks)
		}
	}
}

// memoryPrompts makes the two million pairs of a block and a holder that memory is counted over.
const memoryPrompts = 320

// memoryRow is the memory of 64 engines that share prompts, as the index counts it and as the heap does.
func memoryRow(w io.Writer, holes bool) error {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := newPool(mixedHolders, memoryPrompts, 0, holes)
	p.prompts = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	blocks, tables := p.index.Bytes(p.sinks())
	heap := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	_, err := fmt.Fprintf(w, "index op=memory holders=%d holes=%v bytes_per_holder_block=%.1f heap_per_holder_block=%.1f holder_blocks=%d\n",
		len(p.engines), holes, float64(blocks+tables)/float64(p.held), float64(heap)/float64(p.held), p.held)
	runtime.KeepAlive(p)
	return err
}
