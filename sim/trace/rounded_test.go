package trace_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim/trace"
)

func TestRounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	at := func(n int, when func(i int) time.Duration) *trace.Trace {
		to := &trace.Trace{BlockTokens: 16}
		for i := range n {
			to.Requests = append(to.Requests, trace.Request{At: when(i), Blocks: []uint64{1}, PromptTokens: 1, OutputTokens: 1})
		}
		slices.SortFunc(to.Requests, func(a, b trace.Request) int { return int(a.At - b.At) })
		return to
	}
	spread := func(int) time.Duration { return time.Duration(random.Int64N(int64(5 * time.Minute))) }
	odd := make([]time.Duration, 40)
	for i := range odd {
		odd[i] = spread(i)
	}
	for name, c := range map[string]struct {
		trace *trace.Trace
		want  time.Duration
	}{
		"3 s":             {at(1000, func(i int) time.Duration { return time.Duration(i/10) * 2999 * time.Millisecond }), 3 * time.Second},
		"3 s, some empty": {at(400, func(i int) time.Duration { return spread(i).Truncate(3 * time.Second) }), 3 * time.Second},
		"1 s":             {at(1500, func(i int) time.Duration { return spread(i).Truncate(time.Second) }), time.Second},
		"at random":       {at(1000, spread), 0},
		"to the ms":       {at(100_000, func(i int) time.Duration { return spread(i).Truncate(time.Millisecond) }), 0},
		"bursts":          {at(1000, func(i int) time.Duration { return odd[i%len(odd)] }), 0},
		"few":             {at(50, func(int) time.Duration { return 0 }), 0},
		"evenly one each": {at(1000, func(i int) time.Duration { return time.Duration(i) * time.Second }), 0},
		"none":            {&trace.Trace{}, 0},
	} {
		if got := c.trace.Rounded(); got != c.want {
			t.Errorf("%s: rounded to %v, want %v", name, got, c.want)
		}
		if c.want > 0 {
			if got := c.trace.Jittered(c.want, random).Rounded(); got != 0 {
				t.Errorf("%s: with jitter still rounded to %v", name, got)
			}
		}
	}
}
