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

func (c *cold) flush() {
	for i := 0; i < len(c.buffer); i += 8 {
		c.buffer[i]++
		c.sum += c.buffer[i]
	}
}

// lookupRow times look-ups whose part of the index is in no cache of the processor: before each one a large buffer is
// walked, then another prompt is looked up that has nothing in common with it, and the prompt's tokens are read, as
// whoever has just received them has. The clock's own cost is in the figures.
func lookupRow(w io.Writer, p *pool, o options) error {
	c, q := newCold(), &precise.Query{}
	var whole, hash, compare []time.Duration
	for i := range o.samples {
		prompt := p.prompts[i%len(p.prompts)]
		p.freeze(c, q, prompt)
		start := time.Now()
		p.index.Hash(q, blockSize, prompt)
		p.index.Match(q)
		whole = append(whole, time.Since(start))
		p.freeze(c, q, prompt)
		start = time.Now()
		p.index.Hash(q, blockSize, prompt)
		hash = append(hash, time.Since(start))
		p.freeze(c, q, prompt)
		p.index.Hash(q, blockSize, prompt)
		start = time.Now()
		p.index.Match(q)
		compare = append(compare, time.Since(start))
		if err := p.check(q, i%len(p.prompts)); err != nil {
			return err
		}
	}
	allocs := allocations(1000, func() {
		p.index.Hash(q, blockSize, p.prompts[0])
		p.index.Match(q)
	})
	_, err := fmt.Fprintf(w, "index op=lookup holders=%d holes=%v ns=%d hash_ns=%d compare_ns=%d allocs=%g\n",
		len(p.sinks), p.withHoles, report.Quantile(whole, 0.5).Nanoseconds(), report.Quantile(hash, 0.5).Nanoseconds(),
		report.Quantile(compare, 0.5).Nanoseconds(), allocs)
	return err
}

// freeze takes the index out of the processor's caches, but for what any look-up touches.
func (p *pool) freeze(c *cold, q *precise.Query, prompt []uint32) {
	c.flush()
	p.index.Hash(q, blockSize, p.other)
	p.index.Match(q)
	for i := 0; i < len(prompt); i += 16 {
		c.sum += uint64(prompt[i])
	}
}

// check makes sure that a look-up found what it should: the engine that has all of a prompt, but for holes.
func (p *pool) check(q *precise.Query, prompt int) error {
	if p.withHoles {
		return nil
	}
	if got := q.Matches[prompt%len(p.sinks)].Blocks; got != promptBlocks {
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
		len(p.sinks), p.withHoles, report.Summarize(kept).Median, report.Summarize(alone).Median,
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
			p.sinks[0].Apply(c.store)
			p.sinks[0].Apply(c.remove)
			blocks.Add(2 * promptBlocks)
		}
	}
}

// memoryRow is the memory of 64 engines that share prompts, as the index counts it and as the heap does.
func memoryRow(w io.Writer, holes bool) error {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := newPool(mixedHolders, 0, holes)
	for p.held < 2_000_000 {
		p.share(p.tokens(promptBlocks))
	}
	p.prompts = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	blocks, tables := p.index.Bytes(p.sinks)
	heap := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	_, err := fmt.Fprintf(w, "index op=memory holders=%d holes=%v bytes_per_holder_block=%.1f heap_per_holder_block=%.1f holder_blocks=%d\n",
		len(p.sinks), holes, float64(blocks+tables)/float64(p.held), float64(heap)/float64(p.held), p.held)
	runtime.KeepAlive(p)
	return err
}
