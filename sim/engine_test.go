package sim

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tokens returns n tokens that start with the given one and differ from those of any other start
// that is at least n away.
func tokens(first uint32, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = first + uint32(i)
	}
	return t
}

func smallParams() Params {
	p := DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxModelLen = 4, 16, 64
	p.MaxBatchedTokens, p.MaxSeqs, p.MaxWaiting = 16, 4, 8
	return p
}

func newEngine(t testing.TB, p Params, obs Observer) *Engine {
	t.Helper()
	e, err := New(p, obs)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// drain runs steps until nothing is left and returns their results, events copied.
func drain(t testing.TB, e *Engine, now time.Duration) []StepResult {
	t.Helper()
	var out []StepResult
	for {
		end, ok := e.Begin(now)
		if !ok {
			return out
		}
		r := e.Complete()
		r.Events = slices.Clone(r.Events)
		out, now = append(out, r), end
		if len(out) > 100_000 {
			t.Fatal("engine does not come to an end")
		}
	}
}

func submit(t testing.TB, e *Engine, now time.Duration, j *Job) *Job {
	t.Helper()
	if err := e.Submit(now, j); err != nil {
		t.Fatal(err)
	}
	return j
}

func TestColdPrefillOfFullBudgetTakesHalfASecond(t *testing.T) {
	e := newEngine(t, DefaultParams(), nil)
	submit(t, e, 0, &Job{Prompt: tokens(0, 8192), Output: tokens(0, 1)})
	end, _ := e.Begin(0)
	if got := end.Seconds(); math.Abs(got-0.514) > 0.0005 {
		t.Errorf("8192 cold tokens take %.4f s, want 0.514", got)
	}
}

func TestStepCost(t *testing.T) {
	c := StepCost{Base: 1, PrefillToken: 0.1, Attention: 0.001, DecodeSeq: 0.5, DecodeContext: 0.01}
	var l load
	l.addPrefill(100, 10) // 10·(100+5) = 1050 pairs
	l.addDecode(20)
	l.addDecode(30)
	want := 1 + 1 + 1.05 + 1 + 0.5
	if got := c.duration(l).Seconds(); math.Abs(got-want) > 1e-9 {
		t.Errorf("duration = %v s, want %v", got, want)
	}
}

func TestChunkedPrefillSplitsByBudget(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	j := submit(t, e, 0, &Job{Prompt: tokens(0, 40), Output: tokens(900, 3)})
	var got []int
	for _, r := range drain(t, e, 0) {
		got = append(got, r.PrefillTokens, r.Decodes)
	}
	if diff := cmp.Diff([]int{16, 0, 16, 0, 8, 0, 0, 1, 0, 1}, got); diff != "" {
		t.Errorf("prefill tokens and decodes by step (-want +got):\n%s", diff)
	}
	if p := j.Progress(); p.Generated != 3 || p.FirstToken >= p.Finished || p.Created != 40 {
		t.Errorf("progress = %+v", p)
	}
}

func TestDecodesComeBeforePrefill(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	submit(t, e, 0, &Job{Prompt: tokens(0, 4), Output: tokens(900, 8)})
	now, _ := e.Begin(0)
	e.Complete()
	submit(t, e, now, &Job{Prompt: tokens(100, 30), Output: tokens(900, 1)})
	if _, ok := e.Begin(now); !ok {
		t.Fatal("no step")
	}
	r := e.Complete()
	if r.Decodes != 1 || r.PrefillTokens != 15 {
		t.Errorf("decodes %d, prefill %d; want 1 and the rest of the budget, 15", r.Decodes, r.PrefillTokens)
	}
}

// A hit never covers the last token, whole blocks only, and needs the same adapter and salt.
func TestPrefixHit(t *testing.T) {
	base := tokens(0, 16)
	for _, tc := range []struct {
		name string
		job  Job
		want int
	}{
		{"same prompt, last token recomputed", Job{Prompt: base}, 12},
		{"longer prompt", Job{Prompt: tokens(0, 17)}, 16},
		{"shorter prompt", Job{Prompt: tokens(0, 11)}, 8},
		{"differs in second block", Job{Prompt: append(tokens(0, 5), 99, 99, 99, 99)}, 4},
		{"same tokens elsewhere", Job{Prompt: append([]uint32{7}, base...)}, 0},
		{"under one block", Job{Prompt: tokens(0, 3)}, 0},
		{"other adapter", Job{Prompt: base, Adapter: "sql"}, 0},
		{"other salt", Job{Prompt: base, Salt: "tenant-1"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t, smallParams(), nil)
			submit(t, e, 0, &Job{Prompt: base})
			drain(t, e, 0)
			j := submit(t, e, 0, &tc.job)
			drain(t, e, 0)
			if got := j.Progress().Cached; got != tc.want {
				t.Errorf("cached = %d tokens, want %d", got, tc.want)
			}
		})
	}
}

// The next turn of a chat finds the generated tokens too, less the last one, which was sampled but
// never computed.
func TestNextTurnHitsDecodedBlocks(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	submit(t, e, 0, &Job{Prompt: tokens(0, 10), Output: tokens(500, 11)})
	drain(t, e, 0)
	turn := append(append(tokens(0, 10), tokens(500, 11)...), tokens(700, 6)...)
	j := submit(t, e, 0, &Job{Prompt: turn, Output: tokens(800, 1)})
	drain(t, e, 0)
	if got := j.Progress().Cached; got != 20 {
		t.Errorf("cached = %d, want the 5 full blocks of 10+10 computed tokens, 20", got)
	}
}

// Blocks can be reused from the step on that computes them: of equal prompts that are admitted together, the first is computed
// and the others compute what follows their last whole block.
func TestEqualPromptsOfOneStepAreComputedOnce(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	var all []*Job
	for range 3 {
		all = append(all, submit(t, e, 0, &Job{Prompt: tokens(0, 10), Output: tokens(900, 1)}))
	}
	if _, ok := e.Begin(0); !ok {
		t.Fatal("no step")
	}
	if r := e.Complete(); r.PrefillTokens != 10+2+2 || len(r.Events) != 6 {
		t.Errorf("%d tokens computed, %d events; want 14 and 6", r.PrefillTokens, len(r.Events))
	}
	for i, j := range all {
		if want := 8 * min(i, 1); j.Progress().Cached != want {
			t.Errorf("job %d: %d tokens cached, want %d", i, j.Progress().Cached, want)
		}
	}
}

// A block that caches nothing is taken before any that does: partial blocks do not push out whole ones.
func TestPartialBlocksAreTakenFirst(t *testing.T) {
	p := smallParams()
	p.NumBlocks, p.MaxModelLen = 6, 24
	e := newEngine(t, p, nil)
	for i := range uint32(2) { // two whole blocks and a partial one each
		submit(t, e, 0, &Job{Prompt: tokens(100*i, 9)})
		drain(t, e, 0)
	}
	submit(t, e, 0, &Job{Prompt: tokens(200, 8)}) // takes the partial ones
	drain(t, e, 0)
	for i := range uint32(3) {
		j := submit(t, e, 0, &Job{Prompt: tokens(100*i, 9)[:9-min(i, 1)]})
		drain(t, e, 0)
		if want := []int{8, 4, 4}[i]; j.Progress().Cached != want {
			t.Errorf("text %d: %d tokens cached, want %d", i, j.Progress().Cached, want)
		}
	}
}

func TestRootHashSeparatesAdapterFromSalt(t *testing.T) {
	if rootHash(1, "ab", "c") == rootHash(1, "a", "bc") {
		t.Error("adapter and salt run into one another")
	}
	if rootHash(1, "", "") == rootHash(2, "", "") {
		t.Error("seed does not count")
	}
}

func TestDecodeGrowthPreemptsTheYoungest(t *testing.T) {
	p := smallParams()
	p.NumBlocks, p.MaxModelLen = 6, 24
	e := newEngine(t, p, nil)
	old := submit(t, e, 0, &Job{Prompt: tokens(0, 8), Output: tokens(900, 12)})
	young := submit(t, e, 0, &Job{Prompt: tokens(100, 8), Output: tokens(900, 12)})
	steps := drain(t, e, 0)
	if old.Progress().Preemptions != 0 || young.Progress().Preemptions == 0 {
		t.Errorf("preemptions: old %d, young %d; want only the young one preempted",
			old.Progress().Preemptions, young.Progress().Preemptions)
	}
	if old.Progress().Generated != 12 || young.Progress().Generated != 12 {
		t.Errorf("generated %d and %d tokens, want 12 each", old.Progress().Generated, young.Progress().Generated)
	}
	if e.Stats().Preemptions != young.Progress().Preemptions {
		t.Errorf("stats count %d preemptions", e.Stats().Preemptions)
	}
	var next int
	for _, s := range steps {
		for _, ev := range s.Events {
			if ev.Job == young && (ev.Kind == Token || ev.Kind == FirstToken) {
				if ev.Index != next {
					t.Fatalf("token %d came when %d was due: recomputing must not repeat tokens", ev.Index, next)
				}
				next++
			}
		}
	}
}

func TestAdmissionWaitsForBlocksInOrder(t *testing.T) {
	p := smallParams()
	p.NumBlocks, p.MaxModelLen = 8, 32
	e := newEngine(t, p, nil)
	submit(t, e, 0, &Job{Prompt: tokens(0, 16), Output: tokens(900, 4)})
	big := submit(t, e, 0, &Job{Prompt: tokens(100, 28), Output: tokens(900, 1)})
	small := submit(t, e, 0, &Job{Prompt: tokens(200, 4), Output: tokens(900, 1)})
	drain(t, e, 0)
	if small.Progress().Scheduled < big.Progress().Scheduled {
		t.Error("the small job overtook the head of the queue")
	}
	if big.Progress().Scheduled == 0 {
		t.Error("the big job was admitted though its blocks were taken")
	}
}

func TestAbortFreesBlocksAtAnyPoint(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps int
		mid   bool
	}{
		{"waiting", 0, false}, {"mid prefill", 1, false}, {"in a prefill step", 1, true},
		{"decoding", 4, false}, {"in a decode step", 4, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t, smallParams(), nil)
			j := submit(t, e, 0, &Job{Prompt: tokens(0, 40), Output: tokens(900, 10)})
			for range tc.steps {
				e.Begin(0)
				e.Complete()
			}
			if tc.mid {
				e.Begin(0)
			}
			if !e.Abort(j) {
				t.Fatal("not aborted")
			}
			if s := e.Stats(); s.FreeBlocks != s.TotalBlocks || s.Running+s.Waiting != 0 || s.Aborted != 1 {
				t.Errorf("stats after abort = %+v", s)
			}
			if tc.mid {
				if r := e.Complete(); len(r.Events) != 0 {
					t.Errorf("aborted job has events %v", r.Events)
				}
			}
			if e.Abort(j) {
				t.Error("aborted twice")
			}
			if _, ok := e.Begin(0); ok {
				t.Error("step without a job")
			}
		})
	}
}

func TestSubmitRefuses(t *testing.T) {
	p := smallParams()
	e := newEngine(t, p, nil)
	check := func(j *Job, want error) {
		t.Helper()
		if err := e.Submit(0, j); !errors.Is(err, want) {
			t.Errorf("error = %v, want %v", err, want)
		}
	}
	check(&Job{}, ErrNoPrompt)
	check(&Job{Prompt: tokens(0, 60), Output: tokens(0, 5)}, ErrTooLong)
	for range p.MaxWaiting {
		submit(t, e, 0, &Job{Prompt: tokens(0, 60), Output: tokens(0, 4)})
	}
	late := &Job{Prompt: tokens(0, 1)}
	check(late, ErrQueueFull)
	drain(t, e, 0)
	check(late, nil)
	check(late, ErrReused)
}

func TestResetCache(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	j := submit(t, e, 0, &Job{Prompt: tokens(0, 16), Output: tokens(900, 4)})
	e.Begin(0)
	if e.ResetCache() {
		t.Error("reset while a job runs")
	}
	drain(t, e, 0)
	if e.Stats().CachedBlocks != 4 {
		t.Errorf("cached blocks = %d, want 4", e.Stats().CachedBlocks)
	}
	if !e.ResetCache() || e.Stats().CachedBlocks != 0 {
		t.Error("reset left blocks behind")
	}
	again := submit(t, e, 0, &Job{Prompt: j.Prompt})
	drain(t, e, 0)
	if again.Progress().Cached != 0 {
		t.Error("hit after a reset")
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	p := DefaultParams()
	p.BlockSize, p.MaxSeqs, p.Cost.Attention = -1, 10_000, math.NaN()
	_, err := New(p, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"blockSize: must be > 0, got -1", "maxSeqs: must be <= maxBatchedTokens 8192", "cost.attention"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	p = DefaultParams()
	p.NumBlocks = 100
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "maxModelLen: 32768 tokens need 2048 blocks") {
		t.Errorf("error = %v", err)
	}
	p.BlockSize, p.NumBlocks, p.OffloadBlocks, p.MaxModelLen = math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt
	err = p.Validate()
	for _, want := range []string{
		"blockSize: must be <= 1048576, got 9223372036854775807", "numBlocks: must be <= 16777216, got 9223372036854775807",
		"offloadBlocks: must be <= 16777216, got 9223372036854775807", "maxModelLen: must be <= 16777216, got 9223372036854775807",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	p = DefaultParams()
	if p.BlockSize, p.NumBlocks, p.OffloadBlocks, p.MaxModelLen = MaxBlockTokens, MaxBlocks, MaxBlocks, MaxModelTokens; p.Validate() != nil {
		t.Errorf("the bounds themselves: %v", p.Validate())
	}
}

func BenchmarkDecodeSteps(b *testing.B) {
	e := newEngine(b, DefaultParams(), nil)
	out := make([]uint32, 8192)
	fill := func() {
		for i := range 64 {
			submit(b, e, e.now, &Job{Prompt: tokens(uint32(i)<<16, 1024), Output: out})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if e.Stats().Running+e.Stats().Waiting == 0 {
			fill()
		}
		e.Begin(e.now)
		e.Complete()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
}

func BenchmarkJobs(b *testing.B) {
	e := newEngine(b, DefaultParams(), nil)
	shared := tokens(0, 2048)
	out := make([]uint32, 128)
	b.ReportAllocs()
	var n uint32
	for b.Loop() {
		n++
		submit(b, e, e.now, &Job{Prompt: append(shared[:2048:2048], tokens(n<<10, 512)...), Output: out})
		for e.Stats().Waiting+e.Stats().Running >= 32 {
			e.Begin(e.now)
			e.Complete()
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
