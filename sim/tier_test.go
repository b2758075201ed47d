package sim

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// naiveTier is the tier as a list, longest unused block first.
type naiveTier struct {
	room   int
	hashes []uint64
	ready  map[uint64]bool
}

func (n *naiveTier) match(hashes []uint64) (found int) {
	for found < len(hashes) && n.ready[hashes[found]] {
		found++
	}
	return found
}

func (n *naiveTier) touch(hashes []uint64) {
	for _, h := range slices.Backward(hashes) {
		if i := slices.Index(n.hashes, h); i >= 0 {
			n.hashes = append(slices.Delete(n.hashes, i, i+1), h)
		}
	}
}

func (n *naiveTier) store(hashes []uint64) (fresh []int, evicted []uint64, ok bool) {
	for i, h := range hashes {
		if !slices.Contains(n.hashes, h) {
			fresh = append(fresh, i)
		}
	}
	var left []uint64
	excess := len(n.hashes) + len(fresh) - n.room
	for _, h := range n.hashes {
		if len(evicted) < excess && n.ready[h] && !slices.Contains(hashes, h) {
			evicted = append(evicted, h)
		} else {
			left = append(left, h)
		}
	}
	if len(evicted) < excess {
		return nil, nil, false
	}
	for _, h := range evicted {
		delete(n.ready, h)
	}
	n.hashes = left
	for _, i := range fresh {
		n.hashes = append(n.hashes, hashes[i])
	}
	return fresh, evicted, true
}

// TestTierEqualsNaiveTier drives both with the same blocks: full, with copies under way, with
// stores larger than the tier.
func TestTierEqualsNaiveTier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 8).Draw(t, "room")
		real, naive := newTier(room), &naiveTier{room: room, ready: map[uint64]bool{}}
		texts := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 12), 1, 10, rapid.ID[uint64])
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			hashes := texts.Draw(t, "hashes")
			switch rapid.IntRange(0, 9).Draw(t, "operation") {
			case 0:
				real.touch(hashes)
				naive.touch(hashes)
			case 1, 2, 3:
				for _, h := range hashes {
					if slices.Contains(naive.hashes, h) && !naive.ready[h] {
						real.complete(h)
						naive.ready[h] = true
					}
				}
			case 4:
				if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
					real.reset()
					*naive = naiveTier{room: room, ready: map[uint64]bool{}}
				}
			default:
				fresh, evicted, ok := real.store(hashes)
				wantFresh, wantEvicted, wantOK := naive.store(hashes)
				if ok != wantOK || !slices.Equal(fresh, wantFresh) || !slices.Equal(evicted, wantEvicted) {
					t.Fatalf("store %v: %v %v %v, naive model says %v %v %v", hashes, fresh, evicted, ok, wantFresh, wantEvicted, wantOK)
				}
			}
			if got, want := real.match(hashes), naive.match(hashes); got != want {
				t.Fatalf("match %v: %d, naive model says %d", hashes, got, want)
			}
			checkTier(t, real, naive)
		}
	})
}

func checkTier(t *rapid.T, real *tier, naive *naiveTier) {
	var order []uint64
	for n := real.nodes[0].next; n != 0; n = real.nodes[n].next {
		order = append(order, real.nodes[n].hash)
		if real.nodes[n].ready != naive.ready[real.nodes[n].hash] {
			t.Fatalf("hash %d is ready: %v", real.nodes[n].hash, real.nodes[n].ready)
		}
	}
	if !slices.Equal(order, naive.hashes) {
		t.Fatalf("order of use %v, naive model says %v", order, naive.hashes)
	}
	if real.ready != len(naive.ready) || len(real.index) != len(order) || len(order)+len(real.free) != real.capacity() {
		t.Fatalf("%d ready, %d indexed, %d free of %d, naive model %+v", real.ready, len(real.index), len(real.free), real.capacity(), naive)
	}
}

// Blocks that the GPU lost are found in the tier, count as cached, and take less time than
// computing them; on the GPU they are stored again.
func TestOffloadedBlocksAreLoadedBack(t *testing.T) {
	p := smallParams()
	p.OffloadBlocks = 64
	e := newEngine(t, p, nil)
	first := submit(t, e, 0, &Job{Prompt: tokens(0, 41), Output: tokens(900, 2)})
	drain(t, e, 0)
	for i := range 3 {
		submit(t, e, 0, &Job{Prompt: tokens(uint32(1000*(i+1)), 40), Output: tokens(900, 2)})
		drain(t, e, 0)
	}
	again := submit(t, e, 0, &Job{Prompt: first.Prompt, Output: tokens(900, 2)})
	steps := drain(t, e, 0)
	if got := again.Progress(); got.Cached != 40 || got.Loaded != 40 || got.Created != 0 {
		t.Errorf("progress %+v, want 40 tokens loaded", got)
	}
	if steps[0].LoadedTokens != 40 || steps[0].PrefillTokens != 1 {
		t.Errorf("first step %+v, want 40 tokens loaded and one computed", steps[0])
	}
	if s := e.Stats(); s.OffloadHits != 40 || s.PrefixHits != 0 || s.OffloadQueries != 41+3*40+41 {
		t.Errorf("stats %+v", s)
	}
	third := submit(t, e, 0, &Job{Prompt: first.Prompt})
	drain(t, e, 0)
	if got := third.Progress(); got.Cached != 40 || got.Loaded != 0 {
		t.Errorf("progress %+v, want 40 tokens found on the GPU", got)
	}
}

// A reset of the GPU's cache leaves the tier, as vLLM does without reset_external.
func TestResetLeavesTheTier(t *testing.T) {
	p := smallParams()
	p.OffloadBlocks = 8
	e := newEngine(t, p, nil)
	prompt := tokens(0, 17)
	cached := func() int {
		j := submit(t, e, 0, &Job{Prompt: prompt, Output: tokens(900, 2)})
		drain(t, e, 0)
		return j.Progress().Cached
	}
	var got []int
	got = append(got, cached())
	e.ResetCache()
	got = append(got, cached())
	e.ResetCache()
	e.ResetOffloaded()
	got = append(got, cached())
	if diff := cmp.Diff([]int{0, 16, 0}, got); diff != "" {
		t.Errorf("tokens cached at first, after a reset, after a reset of both (-want +got):\n%s", diff)
	}
}

// A copy begun in one step cannot be loaded before the next one has ended, and a reset of the tier
// in between leaves nothing to announce.
func TestCopiesUnderWay(t *testing.T) {
	p := smallParams()
	p.OffloadBlocks = 8
	l := newLedger(p.BlockSize, t.Fatalf)
	e := newEngine(t, p, l)
	submit(t, e, 0, &Job{Prompt: tokens(0, 16), Output: tokens(900, 3)})
	step := func() { e.Begin(0); e.Complete(); l.equals(e) }
	step()
	if s := e.Stats(); s.OffloadedBlocks != 0 || len(e.copies) != 4 {
		t.Errorf("%d blocks offloaded, %d under way; want 0 and 4", s.OffloadedBlocks, len(e.copies))
	}
	e.ResetOffloaded()
	step()
	step()
	if s := e.Stats(); s.OffloadedBlocks != 0 || len(e.tier.free) != 8 {
		t.Errorf("%d blocks offloaded after a reset, %d places free", s.OffloadedBlocks, len(e.tier.free))
	}
}

func TestPreemptAll(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	a := submit(t, e, 0, &Job{Prompt: tokens(0, 8), Output: tokens(900, 4)})
	b := submit(t, e, 0, &Job{Prompt: tokens(100, 8), Output: tokens(900, 4)})
	e.Begin(0)
	e.Complete()
	e.Begin(0)
	e.PreemptAll()
	if !e.ResetCache() {
		t.Error("blocks are still held")
	}
	if r := e.Complete(); len(r.Events) != 2 || r.Events[0].Job != b || r.Events[1].Kind != Preempted {
		t.Errorf("events %+v, want the younger one preempted first", r.Events)
	}
	drain(t, e, 0)
	if a.Progress().Generated != 4 || b.Progress().Generated != 4 || a.Progress().FirstToken >= b.Progress().Finished {
		t.Errorf("progress %+v and %+v", a.Progress(), b.Progress())
	}
}

func TestHoldAdmitsNothing(t *testing.T) {
	e := newEngine(t, smallParams(), nil)
	a := submit(t, e, 0, &Job{Prompt: tokens(0, 8), Output: tokens(900, 2)})
	e.Begin(0)
	e.Complete()
	e.Hold(true)
	b := submit(t, e, 0, &Job{Prompt: tokens(100, 8), Output: tokens(900, 2)})
	drain(t, e, 0)
	if a.Progress().Generated != 2 || b.Progress().Generated != 0 || e.Stats().Waiting != 1 {
		t.Errorf("generated %d and %d, want the running job to end and the new one to wait", a.Progress().Generated, b.Progress().Generated)
	}
	e.Hold(false)
	drain(t, e, 0)
	if b.Progress().Generated != 2 {
		t.Error("the job that waited did not run")
	}
}
