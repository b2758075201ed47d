package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naivePool is the pool written down as plainly as it can be: a list of free blocks and, per
// block, the text it holds.
type naivePool struct {
	text   []string // "" when nothing is cached
	since  []int    // when it got that text
	refs   []int
	free   []int32
	stores int
}

// match says how many leading texts are cached.
func (p *naivePool) match(texts []string) (cached int) {
	for cached < len(texts) && slices.Contains(p.text, texts[cached]) {
		cached++
	}
	return cached
}

func (p *naivePool) store(b int32, text string) {
	p.stores++
	p.text[b], p.since[b] = text, p.stores
}

// oldest is the block that has held a text for longest.
func (p *naivePool) oldest(text string) int32 {
	best := none
	for b, t := range p.text {
		if t == text && (best == none || p.since[b] < p.since[best]) {
			best = int32(b)
		}
	}
	return best
}

func (p *naivePool) share(b int32) {
	if p.refs[b]++; p.refs[b] == 1 {
		p.free = slices.DeleteFunc(p.free, func(f int32) bool { return f == b })
	}
}

func (p *naivePool) take() int32 {
	b := p.free[0]
	p.free, p.text[b], p.refs[b] = p.free[1:], "", 1
	return b
}

func (p *naivePool) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		switch p.refs[b]--; {
		case p.refs[b] > 0:
		case p.text[b] == "":
			p.free = slices.Insert(p.free, 0, b)
		default:
			p.free = append(p.free, b)
		}
	}
}

// poolPair is a pool beside its naive model; a block holds one letter.
type poolPair struct {
	real  *pool
	naive *naivePool
	live  []*held
}

// held is a sequence that holds blocks of which the first stored ones are computed.
type held struct {
	blocks []int32
	texts  []string // of each block, with what comes before it
	hashes []uint64
	stored int
}

func (p *poolPair) release(i int) {
	p.real.release(p.live[i].blocks)
	p.naive.release(p.live[i].blocks)
	p.live = slices.Delete(p.live, i, i+1)
}

func (p *poolPair) store(s *held) {
	for ; s.stored < len(s.blocks); s.stored++ {
		p.real.store(s.blocks[s.stored], s.hashes[s.stored])
		p.naive.store(s.blocks[s.stored], s.texts[s.stored])
	}
}

// admit gives blocks to a new sequence, if there are enough of them.
func (p *poolPair) admit(t *rapid.T, word string) {
	s := &held{}
	parent := rootHash(0, "", "")
	for i := range word {
		parent, _ = chainHash(parent, []uint32{uint32(word[i])}, nil)
		s.texts, s.hashes = append(s.texts, word[:i+1]), append(s.hashes, parent)
	}
	cached, fromFree := p.real.match(s.hashes)
	if want := p.naive.match(s.texts); cached != want {
		t.Fatalf("%q: %d blocks cached, naive model says %d", word, cached, want)
	}
	unused := 0
	for _, h := range s.hashes[:cached] {
		if p.naive.refs[p.real.index[h]] == 0 {
			unused++
		}
	}
	if fromFree != unused {
		t.Fatalf("%q: %d matched blocks are free, naive model says %d", word, fromFree, unused)
	}
	if len(word)-cached+fromFree > p.real.nfree {
		return
	}
	for i, h := range s.hashes[:cached] {
		b := p.real.share(h)
		if want := p.naive.oldest(s.texts[i]); b != want {
			t.Fatalf("shared block %d for %q, the oldest that holds it is %d", b, s.texts[i], want)
		}
		p.naive.share(b)
		s.blocks = append(s.blocks, b)
	}
	for range len(word) - cached {
		b, want := p.real.take(), p.naive.take()
		if b != want {
			t.Fatalf("took block %d, least recently used is %d", b, want)
		}
		s.blocks = append(s.blocks, b)
	}
	s.stored = cached
	p.live = append(p.live, s)
}

// TestPoolEqualsNaivePool drives both with the same random life of sequences over a tiny alphabet,
// so that prefixes are shared, computed twice at once, evicted and found again.
func TestPoolEqualsNaivePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 12
		p := &poolPair{real: newPool(size, nil), naive: &naivePool{text: make([]string, size), since: make([]int, size), refs: make([]int, size)}}
		for b := range int32(size) {
			p.naive.free = append(p.naive.free, b)
		}
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			op := rapid.IntRange(0, 3).Draw(t, "operation")
			switch {
			case op == 0 && len(p.live) > 0:
				p.release(rapid.IntRange(0, len(p.live)-1).Draw(t, "released"))
			case op == 1 && len(p.live) > 0:
				p.store(rapid.SampledFrom(p.live).Draw(t, "stored"))
			default:
				p.admit(t, rapid.StringMatching(`[ab]{1,5}`).Draw(t, "text"))
			}
			checkPool(t, p.real)
			if p.real.nfree != len(p.naive.free) {
				t.Fatalf("%d blocks free, naive model says %d", p.real.nfree, len(p.naive.free))
			}
		}
	})
}

// checkPool verifies what holds of every pool: used + free = total, the free queue holds exactly
// the unreferenced blocks, no count is negative, and the index reaches exactly the hashed blocks.
func checkPool(t *rapid.T, p *pool) {
	s := p.sentinel()
	free := map[int32]bool{}
	for b := p.blocks[s].next; b != s; b = p.blocks[b].next {
		if free[b] {
			t.Fatalf("block %d is twice in the free queue", b)
		}
		free[b] = true
	}
	used, hashed := 0, 0
	for b := range int32(p.total()) {
		bl := p.blocks[b]
		if bl.refs < 0 {
			t.Fatalf("block %d has %d references", b, bl.refs)
		}
		if free[b] != (bl.refs == 0) {
			t.Fatalf("block %d: %d references, in free queue %v", b, bl.refs, free[b])
		}
		if bl.refs > 0 {
			used++
		}
		if bl.refs > 1 && !bl.hashed {
			t.Fatalf("block %d is shared but holds nothing known", b)
		}
		if bl.hashed {
			hashed++
		}
	}
	if used+p.nfree != p.total() || len(free) != p.nfree {
		t.Fatalf("used %d + free %d != total %d (free queue holds %d)", used, p.nfree, p.total(), len(free))
	}
	reached := 0
	for h, b := range p.index {
		for prev := none; b != none; prev, b = b, p.blocks[b].twinNx {
			if bl := p.blocks[b]; !bl.hashed || bl.hash != h || bl.twinPrev != prev {
				t.Fatalf("index of %x reaches block %d: %+v", h, b, bl)
			}
			reached++
		}
	}
	if reached != hashed || hashed != p.hashed {
		t.Fatalf("index reaches %d blocks, %d are hashed, counter says %d", reached, hashed, p.hashed)
	}
}

// world is an engine under test with all that was done to it.
type world struct {
	engine  *Engine
	ledger  *ledger
	jobs    []*Job
	tokens  map[*Job]int // seen
	aborted map[*Job]bool
	now     time.Duration
}

// complete ends a step and checks what it reports.
func (w *world) complete(t *rapid.T) {
	r := w.engine.Complete()
	w.ledger.tier = false
	for _, ev := range r.Events {
		if w.aborted[ev.Job] && ev.Kind != Preempted {
			t.Fatalf("%s for an aborted job", ev.Kind)
		}
		if ev.Kind == FirstToken || ev.Kind == Token {
			if ev.Index != w.tokens[ev.Job] || (ev.Kind == FirstToken) != (ev.Index == 0) {
				t.Fatalf("%s %d after %d tokens", ev.Kind, ev.Index, w.tokens[ev.Job])
			}
			w.tokens[ev.Job]++
		}
	}
	if r.PrefillTokens+r.Decodes > w.engine.params.MaxBatchedTokens {
		t.Fatalf("step computes %d tokens", r.PrefillTokens+r.Decodes)
	}
	if r.End < r.Start || r.Start < 0 {
		t.Fatalf("step from %v to %v", r.Start, r.End)
	}
	w.now = max(w.now, r.End)
}

func (w *world) act(t *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(t, "operation") {
	case 0, 1, 2:
		longest := w.engine.params.MaxModelLen
		n := rapid.IntRange(1, longest-1).Draw(t, "prompt")
		j := &Job{
			Prompt:  tokens(uint32(rapid.IntRange(0, 1).Draw(t, "family"))*1000, n),
			Output:  tokens(5000, rapid.IntRange(0, longest-n).Draw(t, "output")),
			Adapter: rapid.SampledFrom([]string{"", "sql"}).Draw(t, "adapter"),
			Salt:    rapid.SampledFrom([]string{"", "", "tenant-1"}).Draw(t, "salt"),
			Report:  rapid.Bool().Draw(t, "report"),
		}
		if w.engine.Submit(w.now, j) == nil {
			w.jobs = append(w.jobs, j)
		}
	case 3:
		if len(w.jobs) > 0 {
			j := rapid.SampledFrom(w.jobs).Draw(t, "victim")
			w.aborted[j] = w.engine.Abort(j) || w.aborted[j]
		}
	case 4:
		if rapid.IntRange(0, 3).Draw(t, "preempt") == 0 {
			w.engine.PreemptAll()
		}
		if rapid.Bool().Draw(t, "reset the tier") {
			w.engine.ResetOffloaded()
			clear(w.ledger.counts[CPU])
		}
		busy := w.engine.pool.nfree < w.engine.pool.total()
		if w.engine.ResetCache() == busy {
			t.Fatalf("reset answered %v while busy is %v", !busy, busy)
		}
	case 5, 6:
		w.engine.Begin(w.now)
	default:
		if _, ok := w.engine.Begin(w.now); ok {
			w.complete(t)
		}
	}
}

// TestEngineInvariants runs random jobs with aborts and resets in between and checks the engine
// after every call; in the end every job has all its tokens, in order, and every block is free.
func TestEngineInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := smallParams()
		p.NumBlocks = rapid.IntRange(8, 24).Draw(t, "blocks")
		p.MaxModelLen = min(64, p.NumBlocks*p.BlockSize)
		p.OffloadBlocks = rapid.SampledFrom([]int{0, 0, 3, 20, 60}).Draw(t, "offload blocks")
		w := &world{
			ledger: newLedger(p.BlockSize, t.Fatalf),
			tokens: map[*Job]int{}, aborted: map[*Job]bool{},
		}
		var err error
		if w.engine, err = New(p, w.ledger); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 80).Draw(t, "operations") {
			w.act(t)
			checkEngine(t, w.engine, w.ledger)
		}
		for range 100_000 {
			if _, ok := w.engine.Begin(w.now); !ok {
				break
			}
			w.complete(t)
		}
		checkEngine(t, w.engine, w.ledger)
		if s := w.engine.Stats(); s.Running+s.Waiting != 0 || s.FreeBlocks != s.TotalBlocks || s.Finished+s.Aborted != len(w.jobs) {
			t.Fatalf("%d jobs, in the end %+v", len(w.jobs), s)
		}
		for _, j := range w.jobs {
			if !w.aborted[j] && w.tokens[j] != len(j.Output) {
				t.Fatalf("job has %d of %d tokens", w.tokens[j], len(j.Output))
			}
		}
	})
}

func checkEngine(t *rapid.T, e *Engine, l *ledger) {
	checkPool(t, e.pool)
	want := map[int32]int32{}
	for j := range e.Running() {
		if j.computed > len(j.blocks)*e.params.BlockSize {
			t.Fatalf("%d tokens computed in %d blocks", j.computed, len(j.blocks))
		}
		for i, b := range j.blocks {
			want[b]++
			if i < j.stored && e.pool.blocks[b].hash != j.hashes[i] {
				t.Fatalf("block %d of a sequence holds another text", i)
			}
			if i >= j.stored && e.pool.blocks[b].refs != 1 {
				t.Fatalf("block %d is not computed but shared", i)
			}
		}
	}
	for b := range int32(e.pool.total()) {
		if e.pool.blocks[b].refs != want[b] {
			t.Fatalf("block %d has %d references, sequences hold %d", b, e.pool.blocks[b].refs, want[b])
		}
	}
	l.equals(e)
}

// TestEventsPredictCachedTokens runs one job after another and says before each, from the events
// alone, how many tokens it is going to find.
func TestEventsPredictCachedTokens(t *testing.T) {
	hits := [2]int{}
	rapid.Check(t, func(t *rapid.T) {
		p := smallParams()
		p.NumBlocks, p.OffloadBlocks = 16, rapid.SampledFrom([]int{80, 10, 0}).Draw(t, "offload blocks")
		l := newLedger(p.BlockSize, t.Fatalf)
		w := &world{ledger: l, tokens: map[*Job]int{}, aborted: map[*Job]bool{}}
		var err error
		if w.engine, err = New(p, l); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(t, "jobs") {
			text := tokens(uint32(rapid.IntRange(0, 2).Draw(t, "family"))*1000, 60-rapid.IntRange(0, 59).Draw(t, "shorter by"))
			if n := rapid.IntRange(0, 4*len(text)).Draw(t, "differs from"); n < len(text) {
				text[n] = 77
			}
			j := &Job{Prompt: text, Output: tokens(5000, 4-rapid.IntRange(0, 4).Draw(t, "less output")),
				Salt: rapid.SampledFrom([]string{"", "", "tenant-1"}).Draw(t, "salt")}
			want := l.predict(j)
			if err := w.engine.Submit(w.now, j); err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				if _, ok := w.engine.Begin(w.now); !ok {
					break
				}
				w.complete(t)
			}
			if got := j.Progress(); got.Cached != want || got.Cached > (len(text)-1)/p.BlockSize*p.BlockSize {
				t.Fatalf("%d of %d tokens cached, the events say %d", got.Cached, len(text), want)
			}
			hits[GPU] += j.Progress().Cached - j.Progress().Loaded
			hits[CPU] += j.Progress().Loaded
		}
	})
	t.Logf("tokens found on the GPU and in the tier: %v", hits)
	if hits[GPU] == 0 || hits[CPU] == 0 {
		t.Errorf("tokens found on the media: %v", hits)
	}
}

// TestQueueFollowsLindley compares waiting times with the recursion W' = max(0, W + S − A) of a
// single-server queue: one sequence at a time, one step each, unique prompts.
func TestQueueFollowsLindley(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultParams()
		p.MaxSeqs = 1
		e, err := New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		var arrivals []time.Duration
		var jobs []*Job
		var at time.Duration
		for i := range rapid.IntRange(1, 30).Draw(t, "jobs") {
			at += time.Duration(rapid.IntRange(0, 200).Draw(t, "gap")) * time.Millisecond
			arrivals = append(arrivals, at)
			n := rapid.IntRange(1, 4000).Draw(t, "tokens")
			jobs = append(jobs, &Job{Prompt: tokens(uint32(i)<<16, n), Output: tokens(0, 1)})
		}
		var now, end time.Duration
		next, busy := 0, false
		for next < len(jobs) || busy {
			if busy && (next == len(jobs) || end <= arrivals[next]) {
				e.Complete()
				now = end
			} else {
				now = arrivals[next]
				if err := e.Submit(now, jobs[next]); err != nil {
					t.Fatal(err)
				}
				next++
			}
			end, busy = e.Begin(now)
		}
		var wait time.Duration
		for i, j := range jobs {
			if i > 0 {
				wait = max(0, wait+serviceTime(p, jobs[i-1])-(arrivals[i]-arrivals[i-1]))
			}
			if got := j.Progress().Scheduled - j.Progress().Submitted; got != wait {
				t.Fatalf("job %d waits %v, recursion says %v", i, got, wait)
			}
		}
	})
}

func serviceTime(p Params, j *Job) time.Duration {
	n := float64(len(j.Prompt))
	s := p.Cost.Base + p.Cost.PrefillToken*n + p.Cost.Attention*n*n/2
	return time.Duration(math.Round(s * 1e9))
}
