package trace_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim/trace"
)

func TestOpen(t *testing.T) {
	for _, file := range []string{"mooncake.jsonl", "mooncake.jsonl.gz"} {
		got, err := trace.Open(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		first := got.Requests[0]
		if got.BlockTokens != 512 || len(got.Requests) < 4 || first.PromptTokens != 6758 || first.OutputTokens != 500 ||
			len(first.Blocks) != 14 || first.Session != 1 || first.At != 0 {
			t.Errorf("%s: %d requests, first %+v", file, len(got.Requests), first)
		}
		if got.Span() <= 0 {
			t.Errorf("%s: a span of %v", file, got.Span())
		}
	}
	got, err := trace.Open(filepath.Join("testdata", "azure.csv"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, r := range got.Requests {
		for _, b := range r.Blocks {
			if seen[b] {
				t.Errorf("block %d is shared, and nothing says so", b)
			}
			seen[b] = true
		}
	}
	if r := got.Requests[0]; r.PromptTokens != 374 || r.OutputTokens != 44 || r.At != 0 || len(got.Requests) != 5 {
		t.Errorf("%d requests, first %+v", len(got.Requests), r)
	}
}

func TestFaultsNameThePlace(t *testing.T) {
	const good = `{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[0,1]}`
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for text, want := range map[string]string{
		"":                   "f: is empty",
		" \n":                "f: is empty",
		"hello":              `f: neither JSON lines with hash_ids nor CSV with TIMESTAMP,ContextTokens,GeneratedTokens; it begins with "hello"`,
		good + "\n{":         "f:2: ",
		`{"input_length":1}`: "f:1: no timestamp",
		`{"timestamp":-1}`:   "f:1: timestamp -1; want ms from 0",
		`{"timestamp":0}`:    "f:1: a prompt of 0 tokens; want 1 to 16777216",
		good + "\n\n" + `{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[0]}`: "f:3: 1 blocks of 512 tokens for a prompt of 600 tokens; want 2",
		"TIMESTAMP,Other\n":                           `f:1: begins with "TIMESTAMP,Other"; want "TIMESTAMP,ContextTokens,GeneratedTokens"`,
		head:                                          "trace f: has no requests",
		head + "now,1,1":                              "f:2: TIMESTAMP: ",
		head + "2023-11-16 18:15:46.6805900,1":        "f:2: 2 fields; want 3",
		head + "2023-11-16 18:15:46.6805900,x,1":      "f:2: ContextTokens: ",
		head + "2023-11-16 18:15:46.6805900,1,x":      "f:2: GeneratedTokens: ",
		head + "2023-11-16 18:15:46.6805900,-1,1":     "f:2: ContextTokens: -1; want 0 to 16777216",
		head + "2023-11-16 18:15:46,1,99999999999":    "f:2: an answer of 99999999999 tokens",
		"\x1f\x8bnot gzip, but it begins like it ...": "f: gzip",
	} {
		_, err := trace.Read("f", strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestTimesChange(t *testing.T) {
	all := &trace.Trace{Name: "t", BlockTokens: 1}
	for i := range 11 {
		all.Requests = append(all.Requests, trace.Request{At: time.Duration(i) * time.Second, Blocks: []uint64{uint64(i)}, PromptTokens: 1, OutputTokens: 1})
	}
	fast, err := all.Faster(2)
	if err != nil || fast.Span() != 5*time.Second || all.Span() != 10*time.Second {
		t.Errorf("%v: %v, and before %v", err, fast.Span(), all.Span())
	}
	for _, speed := range []float64{0, -1, math.NaN()} {
		if _, err := all.Faster(speed); err == nil {
			t.Errorf("speed %v was taken", speed)
		}
	}
	half, err := all.Between(0.5, 1)
	if err != nil || len(half.Requests) != 6 || half.Requests[0].At != 0 || half.Requests[0].Blocks[0] != 5 {
		t.Errorf("%v: %+v", err, half)
	}
	if first, err := all.Between(0, 0.5); err != nil || len(first.Requests) != 5 {
		t.Errorf("%v: %+v", err, first)
	}
	for _, span := range [][2]float64{{0.5, 0.5}, {-1, 1}, {0, 1.1}, {0.51, 0.52}} {
		if _, err := all.Between(span[0], span[1]); err == nil {
			t.Errorf("%v was taken", span)
		}
	}
	late := all.Jittered(3*time.Second, rand.New(rand.NewPCG(1, 2)))
	if err := late.Validate(); err != nil || late.Span() > 13*time.Second {
		t.Errorf("%v: %v", err, late.Span())
	}
	moved := 0
	for i, r := range late.Requests {
		if r.Blocks[0] != uint64(i) {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no request passed another")
	}
	if same := all.Jittered(0, nil); same != all {
		t.Error("without a width something changed")
	}
}

// Prompts that begin with the same blocks begin with the same tokens, and differ from the first other block on.
func TestTokensFollowBlocks(t *testing.T) {
	x := &trace.Trace{BlockTokens: 16}
	a := x.AppendTokens(nil, &trace.Request{Blocks: []uint64{1, 2, 3}, PromptTokens: 40})
	b := x.AppendTokens(nil, &trace.Request{Blocks: []uint64{1, 2, 4}, PromptTokens: 48})
	if len(a) != 40 || len(b) != 48 || !slices.Equal(a[:32], b[:32]) || a[32] == b[32] {
		t.Errorf("%d and %d tokens:\n%v\n%v", len(a), len(b), a, b)
	}
	if slices.Equal(a[:16], a[16:32]) {
		t.Error("two blocks are alike")
	}
	again := x.AppendTokens(b[:5:5], &trace.Request{Blocks: []uint64{9}, PromptTokens: 1})
	if len(again) != 6 || again[5] != 9 {
		t.Errorf("%v", again)
	}
}

func TestB2B(t *testing.T) {
	w := trace.DefaultB2B()
	w.Requests = 3000
	got, err := w.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if same, err := w.Trace(rand.New(rand.NewPCG(1, 2))); err != nil || !cmp.Equal(got, same) {
		t.Errorf("the same source makes another trace: %v", err)
	}
	if rate := 3000 / got.Span().Seconds(); math.Abs(rate-12) > 1 {
		t.Errorf("%v requests a second, want about 12", rate)
	}
	heads, sessions, lasts := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for _, r := range got.Requests {
		heads[r.Blocks[0]], sessions[r.Session], lasts[r.Blocks[89]] = true, true, true
		if r.PromptTokens != 7200 || r.OutputTokens != 1000 || len(r.Blocks) != 90 {
			t.Fatalf("%+v", r)
		}
	}
	if len(heads) != 150 || len(sessions) < 700 || len(sessions) > 750 || len(lasts) != len(sessions) {
		t.Errorf("%d system prompts, %d users, %d questions", len(heads), len(sessions), len(lasts))
	}
	w.FreshQuestions = true
	fresh, err := w.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	clear(lasts)
	for _, r := range fresh.Requests {
		lasts[r.Blocks[89]] = true
	}
	if len(lasts) != 3000 {
		t.Errorf("%d fresh questions in 3000 requests", len(lasts))
	}
	w.PerSecond = 0
	if _, err := w.Trace(rand.New(rand.NewPCG(1, 2))); err == nil {
		t.Error("a rate of 0 was taken")
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[0,1]}`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", "\x1f\x8b", "{", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := trace.Read("f", bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := got.Validate(); err != nil {
			t.Errorf("a trace that was read is none: %v", err)
		}
	})
}

// TestMaxSpan: no times are so far apart that sums of them are none.
func TestMaxSpan(t *testing.T) {
	const late = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,5,5\n9999-12-31 23:59:59.0000000,5,5\n"
	if _, err := trace.ReadAzure("late.csv", strings.NewReader(late)); err == nil || !strings.Contains(err.Error(), "late.csv:3: came 292 years after") {
		t.Errorf("%v", err)
	}
	const later = `{"timestamp":9e11,"input_length":1,"output_length":1,"hash_ids":[1]}`
	if _, err := trace.ReadMooncake("late.jsonl", strings.NewReader(later)); err == nil || !strings.Contains(err.Error(), "late.jsonl:1: came 28.5 years after") {
		t.Errorf("%v", err)
	}
	w := trace.DefaultB2B()
	got, err := w.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	for _, slow := range []float64{1e-9, 1e-300, math.SmallestNonzeroFloat64} {
		if _, err := got.Faster(slow); err == nil || !strings.Contains(err.Error(), "speed: ") || !strings.Contains(err.Error(), "longer than 10 years") {
			t.Errorf("speed %v: %v", slow, err)
		}
		prompts := trace.Prompts{At: got.Span() / 2, Mean: 10, Most: 100, Rate: slow}
		if _, _, err := got.Resized(prompts); err == nil || !strings.Contains(err.Error(), "rate: ") || !strings.Contains(err.Error(), "longer than 10 years") {
			t.Errorf("rate %v: %v", slow, err)
		}
		w.PerSecond = slow
		if _, err := w.Trace(rand.New(rand.NewPCG(1, 2))); err == nil || !strings.Contains(err.Error(), "requests per second: request ") {
			t.Errorf("%v requests per second: %v", slow, err)
		}
	}
}
