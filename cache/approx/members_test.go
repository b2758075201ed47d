package approx

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// stubConfig is what engines say, by ordinal.
type stubConfig map[int][2]int

func (s stubConfig) CacheConfig(ordinal int, _ uint64) (int, int, bool) {
	v, ok := s[ordinal]
	return v[0], v[1], ok
}

func TestInstancesAreTheirOwn(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1#1", "b:1#1")
	prompt := words(1, 640)
	h.serve(text("m", prompt), "a:1")
	old := h.pool.Snapshot()
	// The same address under another uid is a new engine with an empty cache, on the same ordinal.
	h.endpoints("a:1#2", "b:1#1")
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 0})
	if n := h.producer().index.Load().entries.Load(); n != 0 {
		t.Errorf("%d entries are left of an endpoint that went", n)
	}
	h.serve(text("m", prompt), "b:1")
	h.serve(text("m", prompt), "a:1")
	// A decision that began with the old endpoints: its a is gone, its b is still b.
	c := h.scheduler.Begin(old, text("m", prompt), 0)
	h.scheduler.Produce(t.Context(), c)
	matched(t, h.read(c), map[string]int{"a:1": 0, "b:1": 10})
	h.scheduler.End(c)
	checkInvariants(t, h.producer().index.Load())
}

// A flight that outlives its endpoint must not teach its successor anything.
func TestLateFlightOfAnInstanceThatWent(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1#1", "b:1")
	f := h.send(text("m", words(1, 640)), "b:1")
	gone := h.pool.Snapshot().ByAddress("a:1")
	h.endpoints("a:1#2", "b:1")
	f.Served(gone, f.PickedAt)
	matched(t, h.look(text("m", words(1, 640))), map[string]int{"a:1": 0, "b:1": 0})
	f.Done(scheduling.Outcome{Status: 503}, 0)
	checkInvariants(t, h.producer().index.Load())
}

// Requests may see a new set of endpoints before the plugin is told of it.
func TestRequestBeforeTheWatcher(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1#1")
	prompt := words(1, 640)
	h.serve(text("m", prompt), "a:1")
	told := h.scheduler
	h.scheduler = nil // nobody is told
	h.endpoints("a:1#2", "b:1")
	h.scheduler = told
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 0})
	h.serve(text("m", prompt), "b:1")
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 10})
	x := h.producer().index.Load()
	checkInvariants(t, x)
	if n := x.entries.Load(); n != 20 {
		t.Errorf("%d entries, want 10 and the 10 of the old one, which nobody has swept", n)
	}
	h.scheduler.SnapshotChanged(h.pool.Snapshot())
	checkInvariants(t, x)
	if n := x.entries.Load(); n != 10 {
		t.Errorf("%d entries after the sweep, want 10", n)
	}
}

func TestCapacityForgetsTailsFirst(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.LRUCapacityPerServer = 25 })
	h.endpoints("a:1", "b:1")
	first, second := words(1, 20*64), words(2, 10*64)
	h.serve(text("m", first), "a:1")
	h.serve(text("m", second), "a:1")
	matched(t, h.look(text("m", first)), map[string]int{"a:1": 15, "b:1": 0})
	matched(t, h.look(text("m", second)), map[string]int{"a:1": 10, "b:1": 0})
	// A prompt larger than the cache leaves its head.
	h.serve(text("m", words(3, 40*64)), "a:1")
	matched(t, h.look(text("m", words(3, 40*64))), map[string]int{"a:1": 25, "b:1": 0})
	matched(t, h.look(text("m", second)), map[string]int{"a:1": 0, "b:1": 0})
	checkInvariants(t, h.producer().index.Load())
}

// One endpoint with endless new prompts stays within its own bound and costs the others nothing.
func TestC24_BoundPerEndpoint(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.LRUCapacityPerServer = 1000 })
	h.endpoints("noisy:1", "quiet:1")
	h.serve(text("m", words(1, 640)), "quiet:1")
	for i := range 500 {
		h.serve(text("m", words(uint64(100+i), 64*100)), "noisy:1")
	}
	x := h.producer().index.Load()
	if n := x.entries.Load(); n != 1010 {
		t.Errorf("%d entries, want 1000 and 10", n)
	}
	if n := x.evicted.Load(); n != 49000 {
		t.Errorf("%d evicted, want 49000", n)
	}
	matched(t, h.look(text("m", words(1, 640))), map[string]int{"noisy:1": 0, "quiet:1": 10})
	checkInvariants(t, x)
}

func TestC24_ChurnOfEndpointsFreesEverything(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("stay:1")
	h.serve(text("m", words(1, 640)), "stay:1")
	for i := range 10000 / 8 {
		names := []string{"stay:1"}
		for j := range 8 {
			names = append(names, fmt.Sprintf("10.%d.%d.%d:1", i/256, i%256, j))
		}
		h.endpoints(names...)
		for j, name := range names[1:] {
			h.serve(text(fmt.Sprintf("adapter-%d", i%1000), words(uint64(j), 640)), name)
		}
	}
	h.endpoints("stay:1")
	x := h.producer().index.Load()
	entries, hashes, words_, instances := x.size()
	if entries != 10 || hashes != 10 || instances != 1 {
		t.Errorf("%d entries, %d hashes, %d instances are left, want 10, 10, 1", entries, hashes, instances)
	}
	if x.nextSlot > 17 || words_ > 2*shardCount*16 {
		t.Errorf("%d slots, %d set words for at most 9 endpoints and as many before them", x.nextSlot, words_)
	}
	matched(t, h.look(text("m", words(1, 640))), map[string]int{"stay:1": 10})
	checkInvariants(t, x)
}

// A crowd that came and went gives its tables back.
func TestC24_TablesShrink(t *testing.T) {
	h := newHarness(t, nil, nil)
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("10.0.0.%d:1", i))
	}
	h.endpoints(names...)
	for i, name := range names {
		for j := range 4 {
			h.serve(text("m", words(1, 64*64)+words(uint64(1000+4*i+j), 64*500)), name)
		}
	}
	x := h.producer().index.Load()
	peak := 0
	for i := range x.shards {
		peak += x.shards[i].peak
	}
	h.endpoints(names[0])
	after := 0
	for i := range x.shards {
		after += x.shards[i].peak
	}
	if _, hashes, words_, _ := x.size(); after != hashes || after > peak/10 || words_ != 0 {
		t.Errorf("tables for %d hashes where %d are left of %d, %d set words", after, hashes, peak, words_)
	}
	checkInvariants(t, x)
}

func TestAutoTune(t *testing.T) {
	config := stubConfig{}
	h := newHarness(t, config, nil)
	h.endpoints("a:1", "b:1", "c:1")
	block := func() int { return h.producer().index.Load().layout.BlockTokens() }
	capacity := func(ordinal int) int {
		return h.producer().index.Load().members.Load().byOrdinal[ordinal].capacityNow()
	}
	prompt := words(1, 64*20)
	h.serve(text("m", prompt), "a:1")
	if block() != 16 || capacity(0) != defaultCapacity {
		t.Errorf("block %d, capacity %d before any engine spoke", block(), capacity(0))
	}
	// Same block size: capacities follow, nothing is lost. Not before the next look, though.
	config[0], config[1] = [2]int{16, 500}, [2]int{32, 1000}
	h.look(text("m", prompt))
	if capacity(0) != defaultCapacity {
		t.Errorf("capacity %d: looked at on every request", capacity(0))
	}
	h.now += tuneInterval
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 20, "b:1": 0, "c:1": 0})
	if capacity(0) != 500 || capacity(1) != 2000 || capacity(2) != defaultCapacity {
		t.Errorf("capacities %d, %d, %d, want 500, 2000 (1000 blocks of 32) and the default", capacity(0), capacity(1), capacity(2))
	}
	// The pool's majority changes: the index starts again with its size.
	config[2] = [2]int{32, -1}
	h.now += tuneInterval
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 0, "c:1": 0})
	if block() != 32 || capacity(0) != 250 || capacity(1) != 1000 || capacity(2) != defaultCapacity {
		t.Errorf("block %d, capacities %d, %d, %d, want 32; 250, 1000, default", block(), capacity(0), capacity(1), capacity(2))
	}
	h.serve(text("m", prompt), "b:1")
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 10, "c:1": 0})
	// A smaller engine evicts down to its size.
	config[1] = [2]int{32, 4}
	h.now += tuneInterval
	matched(t, h.look(text("m", prompt)), map[string]int{"a:1": 0, "b:1": 4, "c:1": 0})
	// A tie stays with the current size.
	delete(config, 2)
	h.now += tuneInterval
	h.look(text("m", prompt))
	if block() != 32 {
		t.Errorf("block %d: a tie changed the size", block())
	}
	checkInvariants(t, h.producer().index.Load())
}

func TestAutoTuneOff(t *testing.T) {
	h := newHarness(t, stubConfig{0: {32, 7}}, func(p *Parameters) { p.AutoTune = false })
	h.endpoints("a:1")
	h.look(text("m", words(1, 640)))
	x := h.producer().index.Load()
	if x.layout.BlockTokens() != 16 || x.members.Load().byOrdinal[0].capacity != defaultCapacity {
		t.Error("autoTune false, and tuned")
	}
}

func TestUsableBlock(t *testing.T) {
	for _, tc := range []struct{ engine, want int }{
		{16, 16}, {32, 32}, {64, 64}, {1, 16}, {2, 16}, {3, 18}, {5, 20}, {8, 16}, {15, 30}, {17, 17}, {2096, 2096},
		{0, 0}, {-1, 0}, {maxBlockTokens, maxBlockTokens}, {maxBlockTokens + 1, 0},
	} {
		if got := usableBlock(tc.engine); got != tc.want {
			t.Errorf("engine block %d: %d, want %d", tc.engine, got, tc.want)
		}
	}
}

// What engines say cannot make the index arbitrarily large, or empty.
func TestAutoTuneIsBounded(t *testing.T) {
	h := newHarness(t, stubConfig{0: {16, math.MaxInt}, 1: {4, 1}, 2: {math.MaxInt, 100}}, nil)
	h.endpoints("a:1", "b:1", "c:1")
	h.look(text("m", words(1, 640)))
	m := h.producer().index.Load().members.Load()
	got := []int{m.byOrdinal[0].capacity, m.byOrdinal[1].capacity, m.byOrdinal[2].capacity}
	if diff := cmp.Diff([]int{maxTunedCapacity, 1, defaultCapacity}, got); diff != "" {
		t.Errorf("capacities (-want +got):\n%s", diff)
	}
}

func TestReload(t *testing.T) {
	prompt := words(1, 64*20)
	for _, tc := range []struct {
		name   string
		change func(*Parameters)
		want   int
	}{
		{"nothing changes", nil, 20},
		{"another capacity", func(p *Parameters) { p.LRUCapacityPerServer = 7 }, 7},
		{"another block size", func(p *Parameters) { p.BlockSizeTokens = 32 }, 0},
		{"another reach", func(p *Parameters) { p.MaxPrefixTokensToMatch = 4096 }, 0},
		{"another seed", func(p *Parameters) { p.HashSeed = "secret" }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			h.endpoints("a:1")
			h.serve(text("m", prompt), "a:1")
			late := h.send(text("m", prompt), "a:1")
			h.reload(tc.change)
			matched(t, h.look(text("m", words(1, 64*20))), map[string]int{"a:1": tc.want})
			late.Done(scheduling.Outcome{Status: 200}, 0) // of the old configuration
			checkInvariants(t, h.producer().index.Load())
		})
	}
}

func TestReloadKeepsWhatWasTuned(t *testing.T) {
	h := newHarness(t, stubConfig{0: {32, 1000}}, nil)
	h.endpoints("a:1")
	h.look(text("m", "x"))
	h.serve(text("m", words(1, 64*20)), "a:1")
	h.reload(func(p *Parameters) { p.LRUCapacityPerServer = 5 })
	if got := h.producer().index.Load().members.Load().byOrdinal[0].capacity; got != 1000 {
		t.Errorf("capacity %d, want the engine's 1000", got)
	}
	matched(t, h.look(text("m", words(1, 64*20))), map[string]int{"a:1": 10})
	h.reload(func(p *Parameters) { p.AutoTune, p.BlockSizeTokens, p.LRUCapacityPerServer = false, 32, 5 })
	// Configured now, and the same block size as the engines': the index stays, with the configured capacity.
	matched(t, h.look(text("m", words(1, 64*20))), map[string]int{"a:1": 5})
	h.reload(func(p *Parameters) { p.AutoTune = false })
	matched(t, h.look(text("m", words(1, 64*20))), map[string]int{"a:1": 0})
	if got := h.producer().index.Load().layout.BlockTokens(); got != 16 {
		t.Errorf("block %d, want the configured 16", got)
	}
}

// A failed reload leaves the metrics of what is in force.
func TestMetrics(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.LRUCapacityPerServer = 12 })
	h.endpoints("a:1", "b:1")
	h.serve(text("m", words(1, 640)), "a:1")
	h.serve(text("m", words(2, 640)), "a:1")
	if _, err := h.build(func(p *Parameters) { p.TokenProducerName = "nobody" }); err == nil {
		t.Fatal("a configuration with an unknown producer was built")
	}
	want := `
# HELP sluice_prefix_index_block_size_tokens Block size of the approximate prefix index in tokens.
# TYPE sluice_prefix_index_block_size_tokens gauge
sluice_prefix_index_block_size_tokens{producer="approx-prefix-cache-producer"} 16
# HELP sluice_prefix_index_capped_prompts_total Prompts longer than the index looks; what lies beyond counts as uncached.
# TYPE sluice_prefix_index_capped_prompts_total counter
sluice_prefix_index_capped_prompts_total{producer="approx-prefix-cache-producer"} 0
# HELP sluice_prefix_index_endpoints Endpoints that the approximate prefix index keeps entries for.
# TYPE sluice_prefix_index_endpoints gauge
sluice_prefix_index_endpoints{producer="approx-prefix-cache-producer"} 2
# HELP sluice_prefix_index_entries Entries of the approximate prefix index over all endpoints.
# TYPE sluice_prefix_index_entries gauge
sluice_prefix_index_entries{producer="approx-prefix-cache-producer"} 12
# HELP sluice_prefix_index_evicted_total Entries that an endpoint's capacity pushed out of the approximate prefix index.
# TYPE sluice_prefix_index_evicted_total counter
sluice_prefix_index_evicted_total{producer="approx-prefix-cache-producer"} 8
# HELP sluice_prefix_index_hashes Distinct block hashes in the approximate prefix index.
# TYPE sluice_prefix_index_hashes gauge
sluice_prefix_index_hashes{producer="approx-prefix-cache-producer"} 12
`
	names := []string{
		"sluice_prefix_index_block_size_tokens", "sluice_prefix_index_capped_prompts_total", "sluice_prefix_index_endpoints",
		"sluice_prefix_index_entries", "sluice_prefix_index_evicted_total", "sluice_prefix_index_hashes",
	}
	if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(h.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
	if err := h.scheduler.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(h.registry); n != 0 || err != nil {
		t.Errorf("%d series after Close, %v", n, err)
	}
}

func TestSeedIsLoggedByItsIDOnly(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.HashSeed = "the secret" })
	if got, want := h.producer().seed, blockhash.SeedOf("the secret"); got != want {
		t.Errorf("seed %v, want %v", got, want)
	}
	h.reload(nil)
	if got := h.producer().seed; got != h.options.Seed {
		t.Errorf("seed %v, want the process's %v", got, h.options.Seed)
	}
}

// Everything at once: requests, moves, failures, endpoints that come and go, tuning, scrapes. Run with -race.
func TestConcurrently(t *testing.T) {
	config := stubConfig{0: {16, 300}, 1: {16, 200}}
	h := newHarness(t, config, func(p *Parameters) { p.LRUCapacityPerServer = 200 })
	h.endpoints("a:1", "b:1#0")
	done := make(chan struct{})
	var workers, changers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 300 {
				r := text("m", words(uint64(i%7), 64*30)+words(uint64(w*1000+i), 64*i%5000))
				r.ID = h.id.Add(1)
				c := h.scheduler.Begin(h.pool.Snapshot(), r, time.Duration(i)*tuneInterval/10)
				h.scheduler.Produce(t.Context(), c)
				f, err := h.scheduler.Commit(c)
				snapshot := c.Snapshot
				h.scheduler.End(c)
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					f.Served(snapshot.ByAddress("b:1"), f.PickedAt)
				}
				if i%2 == 0 {
					f.FirstToken(0)
				}
				f.Done(scheduling.Outcome{Status: 200 + 300*(i%2)}, 0)
			}
		})
	}
	changers.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			h.endpoints("a:1", fmt.Sprintf("b:1#%d", i), fmt.Sprintf("c%d:1", i%3))
			if _, err := h.registry.Gather(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	workers.Wait()
	close(done)
	changers.Wait()
	h.endpoints("a:1", "b:1#0")
	checkInvariants(t, h.producer().index.Load())
	if n := h.producer().index.Load().entries.Load(); n == 0 || n > 500 {
		t.Errorf("%d entries, want some and at most 500", n)
	}
}
