package blockhash

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

func whole(body []byte) []scheduling.Span { return []scheduling.Span{{Start: 0, End: len(body)}} }

func textHashes(root Root, body string, l Layout) []uint64 {
	return AppendText(nil, root, []byte(body), whole([]byte(body)), l)
}

func TestSeed(t *testing.T) {
	if SeedOf("a") != SeedOf("a") {
		t.Error("one secret gives two seeds")
	}
	if SeedOf("a") == SeedOf("b") || NewSeed() == NewSeed() {
		t.Error("two secrets give one seed")
	}
	s := SeedOf("correct horse battery staple")
	if len(s.ID()) != 8 || s.ID() == SeedOf("correct horse battery stapler").ID() {
		t.Errorf("id %q: want 8 digits that tell seeds apart", s.ID())
	}
	key := fmt.Sprint(s.key)
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), s.String()} {
		if strings.Contains(shown, key) || strings.Contains(shown, fmt.Sprintf("%x", s.key)) || strings.Contains(shown, "horse") {
			t.Errorf("formatting shows the secret: %s", shown)
		}
		if !strings.Contains(shown, s.ID()) {
			t.Errorf("formatting as %q does not name the seed", shown)
		}
	}
}

// A configured secret must give the same hashes in every process and version that share it.
func TestHashesAreStable(t *testing.T) {
	l := NewLayout(16, 100, 1600)
	root := NewRoot(SeedOf("secret"), Text, "model", "salt")
	got := textHashes(root, strings.Repeat("0123456789abcdef", 8), l)
	want := []uint64{13954572981175646886, 3174298347325331056}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hashes (-want +got):\n%s", diff)
	}
	if got := SeedOf("secret").ID(); got != "f499e285" {
		t.Errorf("seed id %q", got)
	}
}

func TestRootsAreFramed(t *testing.T) {
	type key struct {
		seed        string
		kind        Kind
		model, salt string
	}
	keys := []key{
		{"s", Text, "ab", "c"}, {"s", Text, "a", "bc"}, {"s", Text, "abc", ""}, {"s", Text, "", "abc"}, {"s", Text, "", ""},
		{"s", Tokens, "ab", "c"}, {"z", Text, "ab", "c"}, {"", Text, "ab", "c"}, {"s", Text, "c", "ab"},
		{"s", Text, "ab\x00", "c"}, {"s", Text, "ab", "\x00c"}, {"s", Text, "adapter-a", ""}, {"s", Text, "adapter-b", ""},
		{"s", Text, "", strings.Repeat("x", 2000)}, {"s", Text, strings.Repeat("x", 2000), ""},
	}
	seen := map[Root]key{}
	for _, k := range keys {
		root := NewRoot(SeedOf(k.seed), k.kind, k.model, k.salt)
		if other, dup := seen[root]; dup {
			t.Errorf("%+v and %+v have one root", k, other)
		}
		seen[root] = k
	}
}

func TestRootsNeverMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`[ab\x00]{0,4}`)
		m1, s1, m2, s2 := part.Draw(t, "m1"), part.Draw(t, "s1"), part.Draw(t, "m2"), part.Draw(t, "s2")
		same := m1 == m2 && s1 == s2
		if (NewRoot(Seed{}, Text, m1, s1) == NewRoot(Seed{}, Text, m2, s2)) != same {
			t.Fatalf("(%q, %q) and (%q, %q)", m1, s1, m2, s2)
		}
	})
}

func TestOnlyWholeBlocks(t *testing.T) {
	l := NewLayout(16, 1000, 16000)
	for _, tc := range []struct{ bytes, want int }{{0, 0}, {1, 0}, {63, 0}, {64, 1}, {127, 1}, {128, 2}, {641, 10}} {
		if got := len(textHashes(1, strings.Repeat("x", tc.bytes), l)); got != tc.want {
			t.Errorf("%d bytes: %d blocks, want %d", tc.bytes, got, tc.want)
		}
		if got := len(AppendTokens(nil, 1, make([]uint32, tc.bytes/4), l)); got != tc.want {
			t.Errorf("%d tokens: %d blocks, want %d", tc.bytes/4, got, tc.want)
		}
	}
}

func TestAppendsToWhatIsThere(t *testing.T) {
	l := NewLayout(4, 10, 40)
	got := AppendTokens([]uint64{7}, 1, make([]uint32, 8), l)
	if len(got) != 3 || got[0] != 7 {
		t.Errorf("got %v", got)
	}
	body := []byte(strings.Repeat("y", 16))
	if got := AppendText(got, 1, body, whole(body), l); len(got) != 4 || got[0] != 7 {
		t.Errorf("got %v", got)
	}
}

// drawLayout draws layouts of all shapes: blocks shorter and longer than what is hashed at once, uniform or not.
func drawLayout(t *rapid.T) Layout {
	return NewLayout(rapid.IntRange(1, 50).Draw(t, "block"), rapid.IntRange(1, 40).Draw(t, "runs"),
		rapid.IntRange(50, 4000).Draw(t, "tokens"))
}

func TestPrefixProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 600).Draw(t, "tokens")
		more := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 200).Draw(t, "more")
		short, long := AppendTokens(nil, 5, tokens, l), AppendTokens(nil, 5, append(slices.Clip(tokens), more...), l)
		if len(long) < len(short) || !slices.Equal(long[:len(short)], short) {
			t.Fatalf("the hashes of a prompt are no prefix of its continuation's: %v, %v", short, long)
		}
	})
}

// A change in one block changes its hash and all later ones and no earlier one.
func TestChained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, 3), 1, 600).Draw(t, "tokens")
		at := rapid.IntRange(0, len(tokens)-1).Draw(t, "at")
		before := AppendTokens(nil, 5, tokens, l)
		tokens[at] += 1 << rapid.IntRange(0, 31).Draw(t, "bit")
		after := AppendTokens(nil, 5, tokens, l)
		for i := range before {
			touched := at < l.Blocks(i+1)*l.BlockTokens()
			if (before[i] != after[i]) != touched {
				t.Fatalf("token %d changed: hash %d changed is %v", at, i, before[i] != after[i])
			}
		}
	})
}

func TestSpansDoNotShow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		text := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "text")
		want := AppendText(nil, 9, text, whole(text), l)
		// Scatter the text over a body with junk between the pieces, with empty and impossible spans.
		var body []byte
		var spans []scheduling.Span
		for at := 0; at < len(text); {
			n := min(len(text)-at, rapid.SampledFrom([]int{1, 3, 63, 64, 65, 127, 128, 129, 500}).Draw(t, "piece"))
			body = append(body, "junk"...)
			spans = append(spans, scheduling.Span{Start: len(body), End: len(body) + n}, scheduling.Span{Start: 2, End: 2})
			body = append(body, text[at:at+n]...)
			at += n
		}
		spans = append(spans, scheduling.Span{Start: -1, End: 3}, scheduling.Span{Start: 0, End: len(body) + 1}, scheduling.Span{Start: 3, End: 1})
		if got := AppendText(nil, 9, body, spans, l); !slices.Equal(got, want) {
			t.Fatalf("split text hashes to %v, whole text to %v", got, want)
		}
	})
}

// Token ids hash as 4 little-endian bytes each on every machine.
func TestTokensHashAsLittleEndianBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		tokens := rapid.SliceOfN(rapid.Uint32(), 1, 600).Draw(t, "tokens")
		var b []byte
		for _, tok := range tokens {
			b = binary.LittleEndian.AppendUint32(b, tok)
		}
		if got, want := AppendTokens(nil, 3, tokens, l), AppendText(nil, 3, b, whole(b), l); !slices.Equal(got, want) {
			t.Fatalf("tokens hash to %v, their bytes to %v", got, want)
		}
		if got, want := hashTokensPortable(3, tokens), hashTokens(3, tokens); got != want {
			t.Fatalf("portable %x, in place %x", got, want)
		}
	})
}

func TestC49_HashingStopsAtTheCap(t *testing.T) {
	l := NewLayout(16, 2048, 131072)
	prompt := []byte(strings.Repeat("x", 2<<20))
	got := AppendText(nil, 1, prompt, whole(prompt), l)
	if blocks := l.Blocks(len(got)); blocks > 8192 || blocks < 8192*255/256 || len(got) > 2048 {
		t.Fatalf("%d hashes for %d blocks", len(got), blocks)
	}
	prompt = prompt[:l.Blocks(len(got))*l.BlockBytes()]
	if again := AppendText(nil, 1, prompt, whole(prompt), l); !slices.Equal(got, again) {
		t.Error("bytes beyond the cap had an influence")
	}
	if !l.Full(len(got)) || l.Full(len(got)-1) {
		t.Error("Full does not say where the layout ends")
	}
}

func TestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	l := NewLayout(16, 2048, 131072)
	tokens, dst := make([]uint32, 4096), make([]uint64, 0, 2048)
	body := make([]byte, 16384)
	spans := []scheduling.Span{{Start: 0, End: 1000}, {Start: 1000, End: 1031}, {Start: 1031, End: 16384}}
	seed := SeedOf("s")
	if n := testing.AllocsPerRun(100, func() {
		dst = AppendTokens(dst[:0], NewRoot(seed, Tokens, "model", "salt"), tokens, l)
		dst = AppendText(dst[:0], NewRoot(seed, Text, "model", "salt"), body, spans, l)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
