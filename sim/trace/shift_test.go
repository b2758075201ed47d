package trace_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim/trace"
)

// talks is a trace of conversations: each request begins with all blocks of an earlier one, or with none.
func talks() *trace.Trace {
	t := &trace.Trace{Name: "talks", BlockTokens: 16}
	random := rand.New(rand.NewPCG(1, 2))
	next := uint64(1)
	for i := range 400 {
		var blocks []uint64
		if i > 0 && random.IntN(3) > 0 {
			blocks = slices.Clone(t.Requests[random.IntN(i)].Blocks)
		}
		for range 1 + random.IntN(5) {
			next++
			blocks = append(blocks, next)
		}
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(i) * time.Second, Blocks: blocks, PromptTokens: 16 * len(blocks), OutputTokens: 1,
		})
	}
	return t
}

func shared(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Two prompts that share a part of theirs share as much of the longer, or shorter, ones.
func TestResizedKeepsPrefixes(t *testing.T) {
	before := talks()
	for _, mean := range []int{30, 1500} {
		after, _, err := before.Resized(trace.Prompts{Mean: mean, Most: 1 << 20, Rate: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := after.Validate(); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, r := range after.Requests {
			sum += r.PromptTokens
		}
		if got := float64(sum) / 400; math.Abs(got/float64(mean)-1) > 0.03 {
			t.Errorf("a mean of %v, want %v", got, mean)
		}
		factor := float64(after.Requests[7].PromptTokens) / float64(before.Requests[7].PromptTokens)
		for i := range 100 {
			a, b := before.Requests[4*i].Blocks, before.Requests[399-i].Blocks
			want := factor * float64(shared(a, b))
			if got := shared(after.Requests[4*i].Blocks, after.Requests[399-i].Blocks); math.Abs(float64(got)-want) > 1+0.1*want {
				t.Fatalf("%d and %d share %d blocks, want about %v", 4*i, 399-i, got, want)
			}
		}
	}
}

func TestResizedFromAMomentOn(t *testing.T) {
	before := talks()
	after, moved, err := before.Resized(trace.Prompts{At: 200 * time.Second, Mean: 700, Most: 1000, Rate: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(after.Requests[199].Blocks, before.Requests[199].Blocks) || after.Requests[199].At != 199*time.Second || after.Requests[300].At != 400*time.Second {
		t.Errorf("%+v %+v", after.Requests[199], after.Requests[300].At)
	}
	if moved(100*time.Second) != 100*time.Second || moved(210*time.Second) != 220*time.Second {
		t.Errorf("100 s is at %v, 210 s at %v", moved(100*time.Second), moved(210*time.Second))
	}
	sum, most := 0, 0
	for _, r := range after.Requests[200:] {
		sum, most = sum+r.PromptTokens, max(most, r.PromptTokens)
	}
	if math.Abs(float64(sum)/200/700-1) > 0.01 || most != 1000 {
		t.Errorf("a mean of %v, at most %d", float64(sum)/200, most)
	}
	for _, p := range []trace.Prompts{{}, {Mean: 5, Most: 5, Rate: 1}, {Mean: 5, Most: 10}, {At: -1, Mean: 5, Most: 10, Rate: 1}, {Mean: 1, Most: 1 << 30, Rate: 1}, {Mean: 1, Most: 2, Rate: math.NaN()}} {
		if _, _, err := before.Resized(p); err == nil {
			t.Errorf("%+v was taken", p)
		}
	}
}

func TestBursting(t *testing.T) {
	before := talks()
	after, err := before.Bursting(trace.Burst{From: 100 * time.Second, To: 200 * time.Second, Share: 0.5, Tokens: 100}, rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Validate(); err != nil {
		t.Fatal(err)
	}
	hot := map[uint64]int{}
	for i, r := range after.Requests {
		switch was := before.Requests[i]; {
		case slices.Equal(r.Blocks, was.Blocks):
		case i < 100 || i >= 200:
			t.Fatalf("request %d was changed", i)
		case r.PromptTokens != was.PromptTokens+112 || !slices.Equal(r.Blocks[7:], was.Blocks):
			t.Fatalf("request %d: %+v, was %+v", i, r, was)
		default:
			hot[r.Blocks[6]]++
		}
	}
	if len(hot) != 1 {
		t.Errorf("%v", hot)
	}
	for _, n := range hot {
		if n < 30 || n > 70 {
			t.Errorf("%d of 100 requests", n)
		}
	}
	for _, b := range []trace.Burst{{}, {To: 1, Share: 1.1, Tokens: 1}, {To: 1, Share: 1}, {From: 2, To: 1, Share: 1, Tokens: 1}, {To: 1, Share: math.NaN(), Tokens: 1}} {
		if _, err := before.Bursting(b, nil); err == nil {
			t.Errorf("%+v was taken", b)
		}
	}
}
