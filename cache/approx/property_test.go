package approx

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// checkInvariants holds an index against what it must always be when nobody is at work on it.
func checkInvariants(t rapid.TB, x *index) {
	t.Helper()
	type bit struct {
		key  uint64
		slot int
	}
	want := map[bit]bool{}
	entries := 0
	slots := map[int]bool{}
	for _, in := range append(slices.Clone(x.members.Load().byOrdinal), x.leaving...) {
		if in == nil {
			continue
		}
		if slots[in.slot] {
			t.Fatalf("slot %d has two owners", in.slot)
		}
		slots[in.slot] = true
		blocks := 0
		for _, key := range in.lru.Keys() {
			m, _ := in.lru.Peek(key)
			blocks += int(m.width)
			want[bit{key, in.slot}] = true
		}
		entries += in.lru.Len()
		if blocks != in.blocks || blocks > in.capacity {
			t.Fatalf("instance %d counts %d blocks, has %d, capacity %d", in.ordinal, in.blocks, blocks, in.capacity)
		}
	}
	for i := range x.shards {
		for _, b := range bitsOf(t, &x.shards[i]) {
			if !want[bit(b)] {
				t.Fatalf("hash %x is said to be in slot %d, whose LRU does not have it", b.key, b.slot)
			}
			delete(want, bit(b))
		}
	}
	if len(want) > 0 {
		t.Fatalf("%d entries of the LRUs are not in the inverted index", len(want))
	}
	if got := int(x.entries.Load()); got != entries {
		t.Fatalf("entries says %d, the LRUs hold %d", got, entries)
	}
}

type holding struct {
	key  uint64
	slot int
}

// bitsOf lists who holds what in a shard and checks its sets: used ones have two members or more, free ones none.
func bitsOf(t rapid.TB, s *shard) (out []holding) {
	t.Helper()
	used := map[uint32]bool{}
	for key, v := range s.holders {
		if v&manyBit == 0 {
			out = append(out, holding{key, int(v)})
			continue
		}
		i := v &^ manyBit
		if used[i] || slices.Contains(s.free, i) {
			t.Fatalf("set %d is used twice or free", i)
		}
		used[i] = true
		n := len(out)
		for slot := range s.stride * wordBits {
			if s.set(i)[slot/wordBits]&(1<<(slot%wordBits)) != 0 {
				out = append(out, holding{key, slot})
			}
		}
		if len(out)-n < 2 {
			t.Fatalf("set %d has %d members", i, len(out)-n)
		}
	}
	for _, i := range s.free {
		if word := slices.Max(append([]uint64{0}, s.set(i)...)); word != 0 {
			t.Fatalf("free set %d is not empty", i)
		}
	}
	if s.stride > 0 && len(used)+len(s.free) != len(s.sets)/s.stride {
		t.Fatalf("%d sets used, %d free, of %d", len(used), len(s.free), len(s.sets)/s.stride)
	}
	return out
}

// naive is the obvious model of one instance: a list of prefixes, most recent first.
type naive struct {
	capacity int
	entries  []naiveEntry
}

type naiveEntry struct {
	prefix string // the prompt up to the run's end
	width  int
	flight uint32
}

func (n *naive) find(prefix string) int {
	return slices.IndexFunc(n.entries, func(e naiveEntry) bool { return e.prefix == prefix })
}

func (n *naive) blocks() (sum int) {
	for _, e := range n.entries {
		sum += e.width
	}
	return sum
}

func (n *naive) evict() {
	for n.blocks() > n.capacity {
		n.entries = n.entries[:len(n.entries)-1]
	}
}

func (n *naive) record(prefixes []string, widths []int, flight uint32) (firstNew int) {
	fit, sum := 0, 0
	for fit < len(widths) && sum+widths[fit] <= n.capacity {
		sum += widths[fit]
		fit++
	}
	firstNew = fit
	for i := fit - 1; i >= 0; i-- {
		e := naiveEntry{prefixes[i], widths[i], flight}
		if at := n.find(prefixes[i]); at >= 0 {
			if e.flight = n.entries[at].flight; e.flight != flight {
				e.flight = 0
			}
			n.entries = slices.Delete(n.entries, at, at+1)
		} else {
			firstNew = i
		}
		n.entries = slices.Insert(n.entries, 0, e)
	}
	n.evict()
	return firstNew
}

func (n *naive) forget(prefixes []string, firstNew int, flight uint32) {
	for i := firstNew; i < len(prefixes); i++ {
		if at := n.find(prefixes[i]); at >= 0 && n.entries[at].flight == flight {
			n.entries = slices.Delete(n.entries, at, at+1)
		}
	}
}

// match walks from the head.
func (n *naive) match(prefixes []string, widths []int) (blocks int) {
	for i, p := range prefixes {
		if n.find(p) < 0 {
			break
		}
		blocks += widths[i]
	}
	return blocks
}

// cut is where a layout cuts tokens, found the slow way.
func cut(l blockhash.Layout, model string, tokens []uint32) (prefixes []string, widths []int) {
	for at := 0; !l.Full(len(widths)); {
		width := l.Width(len(widths))
		if at += width * l.BlockTokens(); at > len(tokens) {
			break
		}
		prefixes = append(prefixes, fmt.Sprint(model, tokens[:at]))
		widths = append(widths, width)
	}
	return prefixes, widths
}

// world is the plugin and the model side by side.
type world struct {
	*rapid.T
	h       *harness
	current []string // "address#uid"
	models  map[string]*naive
	open    []openFlight
}

type openFlight struct {
	*scheduling.Flight
	on       *naive
	prefixes []string
	widths   []int
	firstNew int
}

var worldParams = Parameters{BlockSizeTokens: 4, MaxPrefixBlocksToMatch: 8, MaxPrefixTokensToMatch: 64, LRUCapacityPerServer: 24}

func (w *world) prompt() *scheduling.Request {
	blocks := rapid.SliceOfN(rapid.Uint32Range(0, 1), 0, 20).Draw(w.T, "blocks")
	var tokens []uint32
	for _, b := range blocks {
		tokens = append(tokens, b, b, b, b)
	}
	tokens = append(tokens, make([]uint32, rapid.IntRange(0, 3).Draw(w.T, "rest"))...)
	return ids(rapid.SampledFrom([]string{"m", "adapter"}).Draw(w.T, "model"), tokens)
}

func (w *world) changeEndpoints() {
	all := []string{"a:1#1", "a:1#2", "b:1#1", "b:1#2", "c:1#1", "d:1#1", "e:1#1"}
	keep := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 5, func(s string) string { return s[:3] }).Draw(w.T, "endpoints")
	models := map[string]*naive{}
	for _, name := range keep {
		if models[name] = w.models[name]; models[name] == nil {
			models[name] = &naive{capacity: worldParams.LRUCapacityPerServer}
		}
	}
	for i := range w.open {
		if f := &w.open[i]; f.on != nil && !slices.Contains(mapValues(models), f.on) {
			f.on = nil
		}
	}
	w.current, w.models = keep, models
	w.h.endpoints(keep...)
}

func mapValues(m map[string]*naive) (out []*naive) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func (w *world) draw() (name, address string) {
	name = rapid.SampledFrom(w.current).Draw(w.T, "endpoint")
	return name, name[:3]
}

func (w *world) send() {
	name, address := w.draw()
	r := w.prompt()
	f := openFlight{Flight: w.h.send(r, address), on: w.models[name]}
	f.prefixes, f.widths = cut(w.h.producer().index.Load().layout, r.Model, r.Tokens)
	f.firstNew = f.on.record(f.prefixes, f.widths, uint32(f.ID))
	w.open = append(w.open, f)
}

func (w *world) takeOpen() (f openFlight, ok bool) {
	if len(w.open) == 0 {
		return f, false
	}
	i := rapid.IntRange(0, len(w.open)-1).Draw(w.T, "flight")
	f = w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	return f, true
}

func (w *world) move() {
	f, ok := w.takeOpen()
	if !ok {
		return
	}
	name, address := w.draw()
	to := w.h.pool.Snapshot().ByAddress(address)
	if to.Generation != f.Endpoint.Generation {
		if f.on != nil {
			f.on.forget(f.prefixes, f.firstNew, uint32(f.ID))
		}
		f.on = w.models[name]
		f.Served(to, f.PickedAt)
		f.firstNew = f.on.record(f.prefixes, f.widths, uint32(f.ID))
	}
	w.open = append(w.open, f)
}

func (w *world) finish() {
	f, ok := w.takeOpen()
	if !ok {
		return
	}
	outcome := scheduling.Outcome{Status: rapid.SampledFrom([]int{200, 503}).Draw(w.T, "status")}
	if rapid.Bool().Draw(w.T, "first token") {
		f.FirstToken(0)
	} else if outcome.Status == 503 && f.on != nil {
		f.on.forget(f.prefixes, f.firstNew, uint32(f.ID))
	}
	f.Done(outcome, 0)
}

func (w *world) resize() {
	name, address := w.draw()
	capacity := rapid.IntRange(1, 30).Draw(w.T, "capacity")
	x := w.h.producer().index.Load()
	x.resize(x.instanceOf(w.h.pool.Snapshot().ByAddress(address)), capacity, true)
	w.models[name].capacity = capacity
	w.models[name].evict()
}

func (w *world) look() {
	r := w.prompt()
	prefixes, widths := cut(w.h.producer().index.Load().layout, r.Model, r.Tokens)
	total := 0
	for _, width := range widths {
		total += width
	}
	want := infos{}
	for _, name := range w.current {
		want[name[:3]] = scheduling.NewPrefixCacheMatchInfo(w.models[name].match(prefixes, widths), total, 4)
	}
	got := w.h.look(r)
	for address := range want {
		if got[address] != want[address] {
			w.Fatalf("%s: %+v, the model says %+v", address, got[address], want[address])
		}
	}
	if len(got) != len(want) {
		w.Fatalf("info for %d endpoints, want %d", len(got), len(want))
	}
}

// TestAgainstModel does everything that can happen to the index, in any order, and holds every look-up against a list.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{T: rt, h: newHarness(t, nil, func(p *Parameters) { *p = worldParams }), models: map[string]*naive{}}
		w.changeEndpoints()
		rt.Repeat(map[string]func(*rapid.T){
			"":          func(*rapid.T) { checkInvariants(rt, w.h.producer().index.Load()) },
			"send":      func(t *rapid.T) { w.T = t; w.send() },
			"send more": func(t *rapid.T) { w.T = t; w.send() },
			"look":      func(t *rapid.T) { w.T = t; w.look() },
			"look more": func(t *rapid.T) { w.T = t; w.look() },
			"move":      func(t *rapid.T) { w.T = t; w.move() },
			"finish":    func(t *rapid.T) { w.T = t; w.finish() },
			"resize":    func(t *rapid.T) { w.T = t; w.resize() },
			"endpoints": func(t *rapid.T) { w.T = t; w.changeEndpoints() },
		})
	})
}
