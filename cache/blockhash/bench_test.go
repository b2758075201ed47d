package blockhash

import (
	"hash/maphash"
	"testing"
	"unsafe"

	"github.com/sluice-epp/sluice/scheduling"
)

// 4,096 tokens are 256 blocks of 16, 64 bytes each. The comparison that picked the hash: BenchmarkMaphash chains the
// standard library's hash over the same blocks (its seeds cannot be configured, so it could serve one process only).

func BenchmarkAppendTokens(b *testing.B) {
	l := NewLayout(16, 2048, 131072)
	tokens, dst := make([]uint32, 4096), make([]uint64, 0, 2048)
	seed := NewSeed()
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendTokens(dst[:0], NewRoot(seed, Tokens, "model", ""), tokens, l)
	}
}

func BenchmarkAppendText(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"16KiB", 16 << 10}, {"256KiB", 256 << 10}} {
		for _, split := range []int{0, 100} {
			name := size.name + "/one_span"
			if split > 0 {
				name = size.name + "/spans_of_100"
			}
			b.Run(name, func(b *testing.B) {
				l := NewLayout(16, 2048, 131072)
				body, dst := make([]byte, size.bytes), make([]uint64, 0, 2048)
				spans := []scheduling.Span{{Start: 0, End: len(body)}}
				if split > 0 {
					spans = spans[:0]
					for at := 0; at < len(body); at += split {
						spans = append(spans, scheduling.Span{Start: at, End: min(at+split, len(body))})
					}
				}
				seed := NewSeed()
				b.SetBytes(int64(size.bytes))
				b.ReportAllocs()
				for b.Loop() {
					dst = AppendText(dst[:0], NewRoot(seed, Text, "model", ""), body, spans, l)
				}
			})
		}
	}
}

func BenchmarkMaphash(b *testing.B) {
	tokens := make([]uint32, 4096)
	dst := make([]uint64, 0, 256)
	seed := maphash.MakeSeed()
	var block [72]byte
	b.ReportAllocs()
	for b.Loop() {
		dst = dst[:0]
		h := uint64(1)
		for at := 0; at < len(tokens); at += 16 {
			*(*uint64)(unsafe.Pointer(&block[0])) = h
			copy(block[8:], unsafe.Slice((*byte)(unsafe.Pointer(&tokens[at])), 64))
			h = maphash.Bytes(seed, block[:])
			dst = append(dst, h)
		}
	}
}
