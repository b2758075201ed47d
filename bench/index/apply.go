package main

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise"
)

// captures are the recorded streams of a real engine that are applied.
var captures = []string{"kv_sha256_b32", "kv_evict_lora_b32"}

const (
	applyRounds = 9
	applyPasses = 40 // over a capture, a round
)

// applyRows applies the messages of captures from their bytes on, again and again: at the end of each pass removals of
// all that is left follow, so that every pass begins with an empty cache.
func applyRows(w io.Writer) error {
	for _, name := range captures {
		payloads, blocks, err := passOf(name)
		if err != nil {
			return err
		}
		_, sink := precise.NewIndex(blockhash.SeedOf("bench")).Open()
		var d wire.Decoder
		pass := func() {
			for _, payload := range payloads {
				if b, err := d.Decode(payload); err == nil { // passOf has decoded all of them
					sink.Apply(b)
				}
			}
		}
		pass()
		var rates []float64
		for range applyRounds {
			start := time.Now()
			for range applyPasses {
				pass()
			}
			rates = append(rates, float64(applyPasses*blocks)/time.Since(start).Seconds())
		}
		allocs := allocations(100, pass) / float64(blocks)
		if _, err := fmt.Fprintf(w, "index op=apply capture=%s blocks_per_s=%.0f allocs=%.4f\n",
			name, report.Summarize(rates).Median, allocs); err != nil {
			return err
		}
	}
	return nil
}

// passOf is a capture's payloads with the removals of what is left at its end, and the number of blocks in them all.
func passOf(name string) (payloads [][]byte, blocks int, err error) {
	var frames []kvtest.Frame
	testing.Benchmark(func(b *testing.B) { frames = kvtest.Captures(b, name) })
	type key struct {
		medium string
		group  int
		name   uint64
	}
	left := map[key]int{}
	var d wire.Decoder
	for _, f := range frames {
		b, err := d.Decode(f.Payload)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		for _, e := range b.Events {
			if e.Kind == wire.Cleared {
				clear(left)
			}
			for _, h := range e.Hashes {
				blocks++
				if k := (key{e.Medium, e.Group, h}); e.Kind == wire.Stored {
					left[k]++
				} else if left[k]--; left[k] <= 0 {
					delete(left, k)
				}
			}
		}
		payloads = append(payloads, f.Payload)
	}
	for k, n := range left {
		e := wire.Event{Kind: wire.Removed, Hashes: []uint64{k.name}, Medium: k.medium, Group: k.group, HasGroup: true}
		for range n {
			payloads = append(payloads, wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{e}}))
			blocks++
		}
	}
	return payloads, blocks, nil
}
