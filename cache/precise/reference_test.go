package precise

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/scheduling"
)

// naive is one engine's cache as its events tell it, in maps of sets: what the index must agree with.
type naive struct {
	counts map[string]map[uint64]int // medium → name → physical copies
	paths  map[uint64]string         // name → all that leads to the block, for every block that has or had a place
	ghosts map[uint64]bool           // removed from the GPU, still placed
	parked []naiveRun
}

type naiveRun struct {
	medium string
	names  []uint64
	parent uint64
	steps  []string // of each block
}

func newNaive() *naive {
	return &naive{counts: map[string]map[uint64]int{}, paths: map[uint64]string{}, ghosts: map[uint64]bool{}}
}

func (n *naive) placed(name uint64) bool {
	if n.ghosts[name] {
		return true
	}
	for _, names := range n.counts {
		if names[name] > 0 {
			return true
		}
	}
	return false
}

func (n *naive) store(r naiveRun, root string, hasParent bool) {
	at := root
	if hasParent {
		if !n.placed(r.parent) {
			for _, p := range n.parked {
				if slices.ContainsFunc(r.names, func(name uint64) bool { return slices.Contains(p.names, name) }) {
					return
				}
			}
			n.parked = append(n.parked, r)
			return
		}
		at = n.paths[r.parent]
	}
	for i, name := range r.names {
		at += r.steps[i]
		n.hold(r.medium, name)
		n.paths[name] = at
	}
	for _, name := range r.names {
		for {
			i := slices.IndexFunc(n.parked, func(p naiveRun) bool { return p.parent == name })
			if i < 0 {
				break
			}
			p := n.parked[i]
			n.parked = slices.Delete(n.parked, i, i+1)
			n.store(p, root, true)
		}
	}
}

func (n *naive) hold(medium string, name uint64) {
	if n.counts[medium] == nil {
		n.counts[medium] = map[uint64]int{}
	}
	n.counts[medium][name]++
	delete(n.ghosts, name)
}

func (n *naive) join(medium string, name uint64) {
	if n.placed(name) {
		n.hold(medium, name)
	}
}

func (n *naive) remove(medium string, name uint64) {
	if n.counts[medium][name] > 0 {
		n.counts[medium][name]--
		if !n.placed(name) && medium == "gpu" {
			n.ghosts[name] = true
		}
		return
	}
	for i := range n.parked {
		p := &n.parked[i]
		if k := slices.Index(p.names, name); k >= 0 && p.medium == medium {
			p.names, p.steps = p.names[:k], p.steps[:k]
		}
	}
}

// match is how much of a prompt's path the engine has, and what that is worth.
func (n *naive) match(root string, steps []string, weights map[string]int) chain.Match {
	best := map[string]int{}
	for medium, names := range n.counts {
		for name, count := range names {
			if count > 0 {
				best[n.paths[name]] = max(best[n.paths[name]], weights[medium])
			}
		}
	}
	var m chain.Match
	at := root
	for _, s := range steps {
		at += s
		w, ok := best[at]
		if !ok {
			break
		}
		m.Blocks++
		m.Weight += int32(w)
	}
	return m
}

const testBlock = 4

// engineUnderTest is a source and its naive double, with the engine's own hashing.
type engineUnderTest struct {
	*source
	naive *naive
	seed  uint64
}

// nameOf is the engine's hash of the block at the end of a path.
func (e *engineUnderTest) nameOf(path string) uint64 {
	h := e.seed
	for _, b := range []byte(path) {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	return h
}

func stepOf(digit int) string { return fmt.Sprintf("/%d", digit) }

func tokensOf(digits []int) (tokens []uint32) {
	for _, d := range digits {
		for i := range testBlock {
			tokens = append(tokens, uint32(d*10+i))
		}
	}
	return tokens
}

var mediaWeights = map[string]int{"gpu": 1000, "cpu": 800, "disk": 300}

// Whatever engines say, in whichever order, the index says the same of it as maps of sets do.
func TestAgainstNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { differential(t, 80) })
}

func differential(t *rapid.T, maxSteps int) {
	h := newTestHub()
	engines := make([]*engineUnderTest, rapid.IntRange(1, 3).Draw(t, "engines"))
	for i := range engines {
		engines[i] = &engineUnderTest{source: h.newSource(), naive: newNaive(), seed: uint64(i) * 977}
	}
	path := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 7)
	adapters := []string{"", "", "lora"}
	for range rapid.IntRange(1, maxSteps).Draw(t, "steps") {
		e := engines[rapid.IntRange(0, len(engines)-1).Draw(t, "engine")]
		adapter := rapid.SampledFrom(adapters).Draw(t, "adapter")
		digits := path.Draw(t, "path")
		medium := rapid.SampledFrom([]string{"gpu", "gpu", "gpu", "cpu", "disk"}).Draw(t, "medium")
		var b wire.Batch
		switch action := rapid.IntRange(0, 11).Draw(t, "action"); action {
		case 0, 1, 2, 3, 4:
			b.Events = append(b.Events, e.storeEvent(t, adapter, digits, medium))
		case 5, 6, 7:
			name := e.nameOf(adapter + pathOf(digits))
			b.Events = append(b.Events, wire.Event{Kind: wire.Removed, Hashes: []uint64{name}, Medium: medium})
			e.naive.remove(medium, name)
		case 8, 9:
			name := e.nameOf(adapter + pathOf(digits))
			b.Events = append(b.Events, wire.Event{Kind: wire.Stored, Hashes: []uint64{name}, Medium: medium})
			e.naive.join(medium, name)
		case 10:
			b.Events = append(b.Events, wire.Event{Kind: wire.Cleared}, e.clearedAnd(t, digits, medium))
		case 11:
			e.Forget(0)
			*e.naive = *newNaive()
			e.seed += 31 // an engine that was started anew hashes otherwise
		}
		e.Apply(&b)
		query := path.Draw(t, "query")
		for _, adapter := range adapters[1:] {
			compareAll(t, h, engines, adapter, query)
		}
	}
	for _, e := range engines {
		e.close()
	}
	if z := h.store.Sizes(); z.Chains != 0 || z.Bits != 0 {
		t.Fatalf("left over: %+v", z)
	}
}

func newTestHub() *hub {
	tiers, err := newTierWeights(defaultTiers, defaultOtherTier)
	if err != nil {
		panic(err) // the defaults are good
	}
	return newHub(blockhash.SeedOf("test"), tiers, defaultCapacity)
}

// storeEvent is a store of the blocks of a path from some number on.
func (e *engineUnderTest) storeEvent(t *rapid.T, adapter string, digits []int, medium string) wire.Event {
	from := rapid.IntRange(0, len(digits)-1).Draw(t, "from")
	ev := wire.Event{
		Kind: wire.Stored, Medium: medium, BlockSize: testBlock, Tokens: tokensOf(digits[from:]), LoRA: []byte(adapter),
	}
	run := naiveRun{medium: medium}
	for i := from; i < len(digits); i++ {
		run.names = append(run.names, e.nameOf(adapter+pathOf(digits[:i+1])))
		run.steps = append(run.steps, stepOf(digits[i]))
	}
	ev.Hashes = slices.Clone(run.names)
	if from > 0 {
		ev.HasParent, ev.Parent = true, e.nameOf(adapter+pathOf(digits[:from]))
		run.parent = ev.Parent
	}
	e.naive.store(run, adapter, ev.HasParent)
	return ev
}

// clearedAnd is what follows a clear in the same batch.
func (e *engineUnderTest) clearedAnd(t *rapid.T, digits []int, medium string) wire.Event {
	*e.naive = *newNaive()
	return e.storeEvent(t, "", digits, medium)
}

func pathOf(digits []int) string {
	var b strings.Builder
	for _, d := range digits {
		b.WriteString(stepOf(d))
	}
	return b.String()
}

func compareAll(t *rapid.T, h *hub, engines []*engineUnderTest, adapter string, query []int) {
	var p prompt
	p.hash(&h.keys, []int{testBlock}, h.keys.adapter([]byte(adapter)), "", scheduling.TokenizedPrompt{Tokens: tokensOf(query)}, 1<<20)
	p.cuts[0].lookup.Run(h.store, p.cuts[0].hashes, int(h.sources.Load()))
	steps := make([]string, len(query))
	for i, d := range query {
		steps[i] = stepOf(d)
	}
	for i, e := range engines {
		if diff := cmp.Diff(e.naive.match(adapter, steps, mediaWeights), p.match(0, e.source)); diff != "" {
			t.Fatalf("engine %d, adapter %q, prompt %v (-naive +index):\n%s", i, adapter, query, diff)
		}
	}
}
