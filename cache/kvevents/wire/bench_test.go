package wire

import (
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

// BenchmarkDecode reads captured traffic; blocks/s counts the hashes of stores and removes, ns/event the events.
func BenchmarkDecode(b *testing.B) {
	for _, name := range kvtest.Names {
		b.Run(name, func(b *testing.B) {
			frames := kvtest.Captures(b, name)
			var d Decoder
			var events, blocks, tokens, size int
			for _, f := range frames {
				batch, err := d.Decode(f.Payload)
				if err != nil {
					b.Fatal(err)
				}
				events += len(batch.Events)
				for _, e := range batch.Events {
					blocks += len(e.Hashes)
					tokens += len(e.Tokens)
				}
				size += len(f.Payload)
			}
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				for _, f := range frames {
					if _, err := d.Decode(f.Payload); err != nil {
						b.Fatal(err)
					}
				}
			}
			ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(ns/float64(events), "ns/event")
			b.ReportMetric(ns/float64(blocks), "ns/block")
			b.ReportMetric(ns/float64(max(1, tokens)), "ns/token")
			b.ReportMetric(float64(blocks)/ns*1e9, "blocks/s")
		})
	}
}

// BenchmarkDecodeStore reads one store of one block of 32 tokens.
func BenchmarkDecodeStore(b *testing.B) {
	for _, name := range []string{"kv_evict_lora_b32", "v0.23.0_kv_sha256_b32"} {
		b.Run(name, func(b *testing.B) {
			var d Decoder
			var payload []byte
			for _, f := range kvtest.Captures(b, name) {
				if batch, err := d.Decode(f.Payload); err == nil && len(batch.Events) == 1 && len(batch.Events[0].Tokens) == 32 {
					payload = f.Payload
				}
			}
			if payload == nil {
				b.Fatal("no such frame")
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				if _, err := d.Decode(payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
