package precise

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

const testBlock = 4

// root is what a prompt's chain begins with.
type root struct{ adapter, salt string }

func (r root) String() string { return r.adapter + "|" + r.salt }

var roots = []root{{}, {adapter: "lora"}, {salt: "tenant"}}

// rules say what the engines of a run do. Where the index may choose what to forget, it is asked for no more than the
// naive model has, else for exactly that.
type rules struct {
	limit   int  // blocks of a source; 0: more than there ever are
	groups  int  // of full attention
	aliases bool // a block may have another name each time
	doubts  bool // answers contradict
}

func (r rules) exact() bool { return r.limit == 0 && !(r.aliases && r.doubts) }

// engineUnderTest is a source and its naive double, with the engine's own hashing.
type engineUnderTest struct {
	*source
	naive *naive
	rules rules
	seed  uint64
	tick  uint32 // of some earlier pick
}

// nameOf is the engine's hash of the block at the end of a path.
func (e *engineUnderTest) nameOf(t *rapid.T, path string) uint64 {
	h := e.seed
	if e.rules.aliases && rapid.IntRange(0, 4).Draw(t, "alias") == 0 {
		h += 1 << 32
	}
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

func pathOf(r root, digits []int) string {
	var b strings.Builder
	b.WriteString(r.String())
	for _, d := range digits {
		b.WriteString(stepOf(d))
	}
	return b.String()
}

// hashesOf are the index's own hashes of a path's blocks.
func hashesOf(h *hub, r root, digits []int) []uint64 {
	return h.keys.appendPrompt(nil, testBlock, h.keys.adapter([]byte(r.adapter)), r.salt, tokensOf(digits), nil)
}

// slotsOf tells where a block's note goes among the recent ones.
func slotsOf(h *hub) func(path string) uint64 {
	return func(path string) uint64 {
		var from root
		parts := strings.Split(path, "/")
		from.adapter, from.salt, _ = strings.Cut(parts[0], "|")
		var digits []int
		for _, d := range parts[1:] {
			digits = append(digits, int(d[0]-'0'))
		}
		hashes := hashesOf(h, from, digits)
		return hashes[len(hashes)-1] % recentSlots
	}
}

var mediaWeights = map[string]int{"gpu": 1000, "cpu": 800, "disk": 300}

// Whatever engines say, in whichever order, the index says the same of it as maps of sets do.
func TestAgainstNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { differential(t, 80) })
}

// TestChaos is the same for as long as SLUICE_CHAOS says ("5m"), with longer runs.
func TestChaos(t *testing.T) {
	value := os.Getenv("SLUICE_CHAOS")
	if value == "" {
		t.Skip("SLUICE_CHAOS is not set: make chaos")
	}
	duration, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("SLUICE_CHAOS: %v", err)
	}
	if given := flag.Lookup("rapid.seed"); given != nil && given.Value.String() != "0" { // a run to be repeated
		rapid.Check(t, func(t *rapid.T) { differential(t, 200) })
		return
	}
	rounds := 0
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); rounds++ {
		rapid.Check(t, func(t *rapid.T) { differential(t, 200) })
	}
	t.Logf("%d rounds", rounds)
}

func differential(t *rapid.T, maxSteps int) {
	r := rules{groups: 1, aliases: rapid.IntRange(0, 3).Draw(t, "aliases") == 0, doubts: rapid.Bool().Draw(t, "doubts")}
	h := newTestHub()
	if rapid.IntRange(0, 3).Draw(t, "limited") == 0 {
		r.limit = rapid.IntRange(1, 12).Draw(t, "limit")
		h.maxBlocks = r.limit
	} else {
		r.groups = rapid.IntRange(1, 2).Draw(t, "groups")
	}
	engines := make([]*engineUnderTest, rapid.IntRange(1, 3).Draw(t, "engines"))
	for i := range engines {
		engines[i] = &engineUnderTest{source: h.newSource(), naive: newNaive(slotsOf(h)), rules: r, seed: uint64(i) * 977}
	}
	digits := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 7)
	for range rapid.IntRange(1, maxSteps).Draw(t, "steps") {
		e := engines[rapid.IntRange(0, len(engines)-1).Draw(t, "engine")]
		from, path := rapid.SampledFrom(roots).Draw(t, "root"), digits.Draw(t, "path")
		e.step(t, h, from, path)
		query := digits.Draw(t, "query")
		for _, from := range roots {
			compareAll(t, h, engines, from, query)
		}
		if err := e.check(); err != nil {
			t.Fatal(err)
		}
		if r.limit > 0 && e.blocks > r.limit {
			t.Fatalf("%d blocks, limit %d", e.blocks, r.limit)
		}
	}
	if err := h.store.Check(); err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		e.close()
	}
	if z := h.store.Sizes(); z.Chains != 0 || z.Bits != 0 {
		t.Fatalf("left over: %+v", z)
	}
}

// step lets something happen to an engine, in the index and in the naive model.
func (e *engineUnderTest) step(t *rapid.T, h *hub, from root, path []int) {
	medium := rapid.SampledFrom([]string{"gpu", "gpu", "gpu", "cpu", "disk"}).Draw(t, "medium")
	group := rapid.IntRange(0, e.rules.groups-1).Draw(t, "group")
	var events []wire.Event
	switch action := rapid.IntRange(0, 17).Draw(t, "action"); action {
	case 0, 1, 2, 3, 4, 5:
		e.naive.tick++
		events = append(events, e.store(t, from, path, medium, group))
	case 6, 7, 8:
		e.naive.tick++
		name := e.nameOf(t, pathOf(from, path))
		events = append(events, wire.Event{Kind: wire.Removed, Hashes: []uint64{name}, Medium: medium, Group: group})
		e.naive.remove(medium, group, name)
	case 9, 10:
		e.naive.tick++
		name := e.nameOf(t, pathOf(from, path))
		events = append(events, wire.Event{Kind: wire.Stored, Hashes: []uint64{name}, Medium: medium, Group: group})
		e.naive.join(medium, group, name)
	case 11: // a clear, and what follows in the same batch
		e.naive.tick++
		e.naive.forget()
		events = append(events, wire.Event{Kind: wire.Cleared}, e.store(t, root{}, path, medium, group))
	case 12:
		e.Forget(cursor.CauseRestart)
		e.naive.forget()
		e.seed += 31 // an engine that was started anew hashes otherwise
		return
	case 13:
		e.State(cursor.Degraded)
		e.naive.watch()
		return
	case 14:
		e.tick = e.now()
		return
	case 15:
		if e.rules.doubts {
			first := rapid.IntRange(0, len(path)).Draw(t, "first")
			var paths []string
			for i := range path {
				paths = append(paths, pathOf(from, path[:i+1]))
			}
			e.contradict(hashesOf(h, from, path), testBlock, first, e.tick)
			e.naive.contradict(paths, first, e.tick)
		}
		return
	default:
		e.naive.tick++
		events = append(events, e.useless(t, from, path, medium, action == 16))
	}
	e.Apply(&wire.Batch{Events: events})
}

// store is a store of the blocks of a path from some number on; now and then one of their names is there twice.
func (e *engineUnderTest) store(t *rapid.T, from root, digits []int, medium string, group int) wire.Event {
	first := rapid.IntRange(0, len(digits)-1).Draw(t, "from")
	ev := wire.Event{
		Kind: wire.Stored, Medium: medium, BlockSize: testBlock, Tokens: tokensOf(digits[first:]), LoRA: []byte(from.adapter),
		Group: group, Spec: rapid.SampledFrom([]string{"", "full_attention"}).Draw(t, "spec"),
	}
	run := naiveRun{medium: medium, group: group}
	for i := first; i < len(digits); i++ {
		run.names = append(run.names, e.nameOf(t, pathOf(from, digits[:i+1])))
		run.steps = append(run.steps, stepOf(digits[i]))
		ev.ExtraEnd = append(ev.ExtraEnd, 0)
	}
	// Where a limit may take one of the two away in between, the other one's place is anybody's guess.
	if n := len(run.names); n > 1 && e.rules.limit == 0 && rapid.IntRange(0, 9).Draw(t, "twice") == 0 {
		run.names[rapid.IntRange(1, n-1).Draw(t, "twin")] = run.names[rapid.IntRange(0, n-1).Draw(t, "twin of")]
	}
	ev.Hashes = slices.Clone(run.names)
	if first > 0 {
		ev.HasParent, ev.Parent = true, e.nameOf(t, pathOf(from, digits[:first]))
		run.parent = ev.Parent
	} else if from.salt != "" {
		ev.Extra = []wire.Item{{Kind: wire.ItemString, Value: []byte(from.salt)}}
		for i := range ev.ExtraEnd {
			ev.ExtraEnd[i] = 1
		}
	}
	e.naive.store(run, from.String(), ev.HasParent)
	return ev
}

// useless is an event that must change nothing: of a group with windows, or of a block that is not full or more than that.
func (e *engineUnderTest) useless(t *rapid.T, from root, digits []int, medium string, window bool) wire.Event {
	ev := wire.Event{
		Kind: wire.Stored, Medium: medium, BlockSize: testBlock, Tokens: tokensOf(digits[:1]), LoRA: []byte(from.adapter),
		Hashes: []uint64{e.nameOf(t, pathOf(from, digits[:1]))},
	}
	switch {
	case window:
		ev.Group, ev.Spec = 3, "sliding_window"
		if rapid.Bool().Draw(t, "removal") {
			ev = wire.Event{Kind: wire.Removed, Medium: medium, Hashes: ev.Hashes, Group: 3}
		}
	case e.naive.tier(medium).sized && rapid.Bool().Draw(t, "partial"):
		ev.BlockSize, ev.Tokens = testBlock-1, ev.Tokens[:testBlock-1]
	default:
		ev.Tokens = append(ev.Tokens, 7)
	}
	return ev
}

func newTestHub() *hub {
	tiers, err := newTierWeights(defaultTiers, defaultOtherTier)
	if err != nil {
		panic(err) // the defaults are good
	}
	return newHub(blockhash.SeedOf("test"), tiers, defaultCapacity)
}

func compareAll(t *rapid.T, h *hub, engines []*engineUnderTest, from root, query []int) {
	var p prompt
	p.hash(&h.keys, []int{testBlock}, h.keys.adapter([]byte(from.adapter)), from.salt, scheduling.TokenizedPrompt{Tokens: tokensOf(query)}, 1<<20)
	p.cuts[0].lookup.Run(h.store, p.cuts[0].hashes, int(h.sources.Load()))
	steps := make([]string, len(query))
	for i, d := range query {
		steps[i] = stepOf(d)
	}
	for i, e := range engines {
		want, got := e.naive.match(from.String(), steps, mediaWeights), p.match(0, e.source)
		if e.rules.exact() && got != want || got.Blocks > want.Blocks || got.Weight > want.Weight {
			t.Fatalf("engine %d, %q, prompt %v: the index says %+v, the naive model %+v", i, from, query, got, want)
		}
		if int(got.Blocks) > len(query) {
			t.Fatalf("engine %d: %d blocks of %d", i, got.Blocks, len(query))
		}
	}
}
