package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naivePool is the pool written down as plainly as it can be: a list of free blocks and, per
// block, the text it holds.
type naivePool struct {
	text []string // "" when nothing is cached
	refs []int
	free []int
}

func (p *naivePool) holds(text string) bool { return slices.Contains(p.text, text) }

func (p *naivePool) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := int(blocks[i])
		if p.refs[b]--; p.refs[b] == 0 {
			p.free = append(p.free, b)
		}
	}
}

// TestPoolEqualsNaivePool drives both with the same random life of sequences over a tiny alphabet,
// so that prefixes are shared, computed twice at once, evicted and found again.
func TestPoolEqualsNaivePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 12
		p := newPool(size, nil)
		n := &naivePool{text: make([]string, size), refs: make([]int, size)}
		for b := range size {
			n.free = append(n.free, b)
		}
		type held struct {
			blocks []int32
			texts  []string
			hashes []uint64
			stored int
		}
		var live []*held
		hashOf := func(text string) uint64 {
			h := rootHash(0, "", "")
			for i := range text {
				h, _ = chainHash(h, []uint32{uint32(text[i])}, nil)
			}
			return h
		}
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			op := rapid.IntRange(0, 3).Draw(t, "operation")
			switch {
			case op == 0 && len(live) > 0:
				i := rapid.IntRange(0, len(live)-1).Draw(t, "released")
				p.release(live[i].blocks)
				n.release(live[i].blocks)
				live = slices.Delete(live, i, i+1)
			case op == 1 && len(live) > 0:
				s := live[rapid.IntRange(0, len(live)-1).Draw(t, "stored")]
				for ; s.stored < len(s.blocks); s.stored++ {
					p.store(s.blocks[s.stored], s.hashes[s.stored])
					n.text[s.blocks[s.stored]] = s.texts[s.stored]
				}
			default:
				word := rapid.StringMatching(`[ab]{1,5}`).Draw(t, "text")
				s := &held{}
				for i := range word {
					s.texts = append(s.texts, word[:i+1])
					s.hashes = append(s.hashes, hashOf(word[:i+1]))
				}
				cached, fromFree := p.match(s.hashes)
				naive, naiveFree := 0, 0
				for naive < len(word) && n.holds(s.texts[naive]) {
					naive++
				}
				if cached != naive {
					t.Fatalf("%q: %d blocks cached, naive model says %d", word, cached, naive)
				}
				for _, h := range s.hashes[:cached] {
					if n.refs[p.index[h]] == 0 {
						naiveFree++
					}
				}
				if fromFree != naiveFree {
					t.Fatalf("%q: %d matched blocks are free, naive model says %d", word, fromFree, naiveFree)
				}
				if len(word)-cached+fromFree > p.nfree {
					continue
				}
				for i, h := range s.hashes[:cached] {
					b := p.share(h)
					if n.text[b] != s.texts[i] {
						t.Fatalf("shared block %d holds %q, want %q", b, n.text[b], s.texts[i])
					}
					if n.refs[b]++; n.refs[b] == 1 {
						n.free = slices.DeleteFunc(n.free, func(f int) bool { return f == int(b) })
					}
					s.blocks = append(s.blocks, b)
				}
				for range len(word) - cached {
					b := p.take()
					if want := n.free[0]; int(b) != want {
						t.Fatalf("took block %d, least recently used is %d", b, want)
					}
					n.free, n.text[b], n.refs[b] = n.free[1:], "", 1
					s.blocks = append(s.blocks, b)
				}
				s.stored = cached
				live = append(live, s)
			}
			checkPool(t, p)
			if p.nfree != len(n.free) {
				t.Fatalf("%d blocks free, naive model says %d", p.nfree, len(n.free))
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

// ledger is an observer that keeps the multiset of cached hashes, as a reader of events would.
type ledger struct {
	counts map[uint64]int
	texts  map[uint64]string
	fail   func(string, ...any)
}

func (l *ledger) BlocksStored(s Stored) {
	size := len(s.Tokens) / len(s.Hashes)
	parent := l.texts[s.Parent]
	if s.First == 0 {
		parent = s.Job.Adapter + "/" + s.Job.Salt
	} else if parent == "" {
		l.fail("stored block %d has the unknown parent %x", s.First, s.Parent)
	}
	for i, h := range s.Hashes {
		parent += fmt.Sprint(s.Tokens[i*size : (i+1)*size])
		if old, ok := l.texts[h]; ok && old != parent {
			l.fail("hash %x stands for %q and %q", h, old, parent)
		}
		l.texts[h] = parent
		l.counts[h]++
	}
}

func (l *ledger) BlockRemoved(h uint64) {
	if l.counts[h]--; l.counts[h] < 0 {
		l.fail("hash %x removed more often than stored", h)
	}
}

func (l *ledger) CacheCleared() { clear(l.counts) }

// TestEngineInvariants runs random jobs with aborts and resets in between and checks the engine
// after every call; in the end every job has all its tokens, in order, and every block is free.
func TestEngineInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := smallParams()
		p.NumBlocks = rapid.IntRange(8, 24).Draw(t, "blocks")
		p.MaxModelLen = min(64, p.NumBlocks*p.BlockSize)
		l := &ledger{counts: map[uint64]int{}, texts: map[uint64]string{}, fail: t.Fatalf}
		e, err := New(p, l)
		if err != nil {
			t.Fatal(err)
		}
		tokensSeen := map[*Job]int{}
		aborted := map[*Job]bool{}
		var jobs []*Job
		var now time.Duration
		complete := func() {
			r := e.Complete()
			for _, ev := range r.Events {
				if aborted[ev.Job] && ev.Kind != Preempted {
					t.Fatalf("%s for an aborted job", ev.Kind)
				}
				if ev.Kind == FirstToken || ev.Kind == Token {
					if ev.Index != tokensSeen[ev.Job] || (ev.Kind == FirstToken) != (ev.Index == 0) {
						t.Fatalf("%s %d after %d tokens", ev.Kind, ev.Index, tokensSeen[ev.Job])
					}
					tokensSeen[ev.Job]++
				}
			}
			if r.PrefillTokens+r.Decodes > p.MaxBatchedTokens {
				t.Fatalf("step computes %d tokens", r.PrefillTokens+r.Decodes)
			}
			now = max(now, r.End)
		}
		for range rapid.IntRange(1, 80).Draw(t, "operations") {
			switch rapid.IntRange(0, 9).Draw(t, "operation") {
			case 0, 1, 2:
				n := rapid.IntRange(1, p.MaxModelLen-1).Draw(t, "prompt")
				j := &Job{
					Prompt:  tokens(uint32(rapid.IntRange(0, 1).Draw(t, "family"))*1000, n),
					Output:  tokens(5000, rapid.IntRange(0, p.MaxModelLen-n).Draw(t, "output")),
					Adapter: rapid.SampledFrom([]string{"", "sql"}).Draw(t, "adapter"),
				}
				if e.Submit(now, j) == nil {
					jobs = append(jobs, j)
				}
			case 3:
				if len(jobs) > 0 {
					j := rapid.SampledFrom(jobs).Draw(t, "victim")
					aborted[j] = e.Abort(j) || aborted[j]
				}
			case 4:
				busy := e.pool.nfree < e.pool.total()
				if e.ResetCache() == busy {
					t.Fatalf("reset answered %v while busy is %v", !busy, busy)
				}
			case 5, 6:
				e.Begin(now)
			default:
				if _, ok := e.Begin(now); ok {
					complete()
				}
			}
			checkEngine(t, e, l)
		}
		for range 100_000 {
			if _, ok := e.Begin(now); !ok {
				break
			}
			complete()
		}
		checkEngine(t, e, l)
		if s := e.Stats(); s.Running+s.Waiting != 0 || s.FreeBlocks != s.TotalBlocks || s.Finished+s.Aborted != len(jobs) {
			t.Fatalf("%d jobs, in the end %+v", len(jobs), s)
		}
		for _, j := range jobs {
			if !aborted[j] && tokensSeen[j] != len(j.Output) {
				t.Fatalf("job has %d of %d tokens", tokensSeen[j], len(j.Output))
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
	cached := 0
	for h, n := range l.counts {
		if _, ok := e.pool.index[h]; ok != (n > 0) {
			t.Fatalf("hash %x: observer counts %d, in index %v", h, n, ok)
		}
		cached += n
	}
	if cached != e.pool.hashed {
		t.Fatalf("observer counts %d blocks, pool %d", cached, e.pool.hashed)
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
