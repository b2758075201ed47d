package bpe

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write merges.txt")

// trainedMerges bounds the vocabulary to 3,072 tokens.
const trainedMerges = 3072 - 256 - int(numSpecial)

func load(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestMergesAreFresh(t *testing.T) {
	var b strings.Builder
	for _, p := range Train(corpus, trainedMerges) {
		fmt.Fprintf(&b, "%d %d\n", p.Left, p.Right)
	}
	if *update {
		if err := os.WriteFile("merges.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if b.String() != merges {
		t.Error("merges.txt is not what corpus.txt trains to; run go generate")
	}
}

func TestVocabulary(t *testing.T) {
	tok := load(t)
	if tok.Size() < 1024 || tok.Size() > maxIDs {
		t.Errorf("vocabulary of %d tokens", tok.Size())
	}
	seen := map[string]bool{}
	for id := range uint32(tok.Size()) {
		s, ok := tok.Text(id)
		if !ok || s == "" || seen[s] {
			t.Fatalf("token %d: text %q, known %v, seen before %v", id, s, ok, seen[s])
		}
		seen[s] = true
	}
	if _, ok := tok.Text(uint32(tok.Size())); ok {
		t.Error("text beyond the vocabulary")
	}
}

func TestPieces(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []string
	}{
		{"Hello, world.", []string{"Hello", ",", " world", "."}},
		{"a  b", []string{"a", " ", " b"}},
		{"a\n\n  b", []string{"a", "\n\n ", " b"}},
		{"a\n\tb \n", []string{"a", "\n\t", "b", " \n"}},
		{"  ", []string{"  "}},
		{" ", []string{" "}},
		{"x 12345 +-", []string{"x", " 123", "45", " +-"}},
		{"naïve 日本", []string{"naïve", " 日本"}},
		{strings.Repeat("a", 33), []string{strings.Repeat("a", 32), "a"}},
	} {
		if diff := cmp.Diff(tc.want, slices.Collect(Pieces(tc.in))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.in, diff)
		}
	}
}

func TestMergesApplyInOrderLearned(t *testing.T) {
	// "ab" is learned before "bc", so "abc" is ab+c; then "abc" itself has no merge.
	tok, err := New([]Pair{{'a', 'b'}, {'b', 'c'}, {256, 'd'}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		in   string
		want []uint32
	}{
		{"abc", []uint32{256, 'c'}},
		{"bc", []uint32{257}},
		{"abdabc", []uint32{258, 256, 'c'}},
		{"", nil},
	} {
		if diff := cmp.Diff(tc.want, tok.Append(nil, tc.in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.in, diff)
		}
	}
}

func TestMarkers(t *testing.T) {
	tok := load(t)
	text := "<|user|>Say <|nothing|> of <| this<|end|>"
	marked := tok.AppendMarked(nil, text)
	want := append([]uint32{tok.ID(User)}, tok.Append(nil, "Say <|nothing|> of <| this")...)
	want = append(want, tok.ID(End))
	if diff := cmp.Diff(want, marked); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	for _, id := range tok.Append(nil, text) {
		if id >= tok.ID(System) {
			t.Errorf("plain text encodes to the special token %d", id)
		}
	}
	back, err := tok.Decode(nil, marked)
	if err != nil || string(back) != text {
		t.Errorf("decoded %q, %v", back, err)
	}
}

func TestErrors(t *testing.T) {
	tok := load(t)
	if _, err := tok.Decode(nil, []uint32{1, 999_999}); err == nil || !strings.Contains(err.Error(), "tokens[1]: id 999999") {
		t.Errorf("decode: error = %v", err)
	}
	for _, bad := range [][]Pair{{{256, 1}}, {{1, 2}, {1, 2}}, make([]Pair, maxIDs)} {
		if _, err := New(bad); err == nil {
			t.Errorf("%d merges starting with %v: no error", len(bad), bad[0])
		}
	}
	for _, bad := range []string{"", "1", "1 x", "1 2 3", "-1 2"} {
		if _, err := ParseMerges(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("")
	f.Add(corpus[:2000])
	f.Add("<|user|> \x00\xff\xfe  \n\t日本 12345<|end|><|<|")
	f.Add(strings.Repeat("a", 200) + strings.Repeat(" ", 200))
	tok := load(f)
	f.Fuzz(func(t *testing.T, text string) {
		for name, ids := range map[string][]uint32{"plain": tok.Append(nil, text), "marked": tok.AppendMarked(nil, text)} {
			back, err := tok.Decode(nil, ids)
			if err != nil || string(back) != text {
				t.Fatalf("%s: %q decodes to %q, %v", name, text, back, err)
			}
			if len(ids) > len(text) {
				t.Fatalf("%s: %d tokens for %d bytes", name, len(ids), len(text))
			}
		}
		if s := strings.Join(slices.Collect(Pieces(text)), ""); s != text {
			t.Fatalf("pieces of %q make %q", text, s)
		}
	})
}

func FuzzParseMerges(f *testing.F) {
	f.Add("97 98\n256 99\n")
	f.Add("1 2\n1 2")
	f.Add("x y\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		pairs, err := ParseMerges(text)
		if err != nil {
			return
		}
		tok, err := New(pairs)
		if err != nil {
			return
		}
		if back, err := tok.Decode(nil, tok.Append(nil, text)); err != nil || string(back) != text {
			t.Fatalf("%q decodes to %q, %v", text, back, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	tok := load(b)
	for name, text := range map[string]string{
		"corpus": corpus,
		"base64": strings.Repeat("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ", 200),
		"one":    strings.Repeat("a", 10_000),
	} {
		b.Run(name, func(b *testing.B) {
			var ids []uint32
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				ids = tok.Append(ids[:0], text)
			}
			b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
		})
	}
}
