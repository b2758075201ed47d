package blockhash

import (
	"slices"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

// FuzzAppendText splits any text at any two places, with any block size: the split must not show, and a prefix's hashes
// must be a prefix of the whole's.
func FuzzAppendText(f *testing.F) {
	f.Add([]byte("hello, this is a prompt that spans more than one block of text, by a bit"), uint16(3), uint16(40), uint8(4), uint8(8))
	f.Add([]byte{}, uint16(0), uint16(0), uint8(0), uint8(0))
	f.Add(make([]byte, 1000), uint16(128), uint16(129), uint8(33), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, cut1, cut2 uint16, block, runs uint8) {
		l := NewLayout(int(block)+1, int(runs)+1, 4096)
		a, b := int(cut1)%(len(text)+1), int(cut2)%(len(text)+1)
		a, b = min(a, b), max(a, b)
		want := AppendText(nil, 1, text, []scheduling.Span{{Start: 0, End: len(text)}}, l)
		got := AppendText(nil, 1, text, []scheduling.Span{{Start: 0, End: a}, {Start: a, End: b}, {Start: b, End: len(text)}}, l)
		if !slices.Equal(got, want) {
			t.Fatalf("split at %d and %d: %v, whole: %v", a, b, got, want)
		}
		prefix := AppendText(nil, 1, text, []scheduling.Span{{Start: 0, End: b}}, l)
		if len(prefix) > len(want) || !slices.Equal(prefix, want[:len(prefix)]) {
			t.Fatalf("prefix of %d bytes: %v, whole: %v", b, prefix, want)
		}
		if n := len(want); n > l.MaxRuns() || l.Blocks(n)*l.BlockBytes() > len(text) {
			t.Fatalf("%d hashes of %d bytes", n, len(text))
		}
	})
}
