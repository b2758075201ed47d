package precise

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/rates"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// columns are what a cycle's consumers read of one endpoint.
type columns struct {
	Info     scheduling.PrefixCacheMatchInfo
	Score    float64
	Uncached scheduling.UncachedRequestTokens
}

// read is what a request's cycle has of an address, after its critical section.
func (h *harness) read(c *scheduling.Cycle, address string) columns {
	h.t.Helper()
	p, _ := h.scheduler.Plugin("probe").(*probe)
	o := h.endpoint(address).Ordinal
	info, ok := p.info.In(c).Get(o)
	uncached, charged := p.uncached.In(c).Get(o)
	if !ok || !charged {
		h.t.Fatalf("%s has no columns", address)
	}
	return columns{info, info.Score(), uncached}
}

// A prompt of 4,096 tokens wholly on the CPU tier, from the bytes of its events to what the ledger charges.
func TestCPUTierFromEventBytesToCharge(t *testing.T) {
	prompt := from(1, 4096)
	self := on("cpu", store(16, prompt, 1))
	for name, events := range map[string][]wire.Event{
		"self-describing": {self},
		"off the GPU, by name": {
			store(16, prompt, 1), byName("cpu", store(16, prompt, 1).Hashes...), removed("gpu", store(16, prompt, 1).Hashes...),
		},
	} {
		h := newHarness(t, nil)
		h.endpoints("cpu:1", "none:1", "gpu:1")
		for _, address := range []string{"cpu:1", "none:1", "gpu:1"} {
			h.site.at(address).live()
		}
		h.site.at("cpu:1").hear(t, wire.AppendBatch(nil, &wire.Batch{Events: events, Rank: 0, HasRank: true}))
		h.site.at("gpu:1").say(t, store(16, prompt, 1))
		c := h.begin(ids("m", prompt))
		h.scheduler.Preview(c)
		for address, want := range map[string]columns{
			"cpu:1": {
				scheduling.PrefixCacheMatchInfo{MatchBlocks: 204, CachedBlockCount: 256, TotalBlocks: 256, BlockSizeTokens: 16},
				0.796875, 0,
			},
			"none:1": {scheduling.NewPrefixCacheMatchInfo(0, 256, 16), 0, 4096},
			"gpu:1":  {scheduling.NewPrefixCacheMatchInfo(256, 256, 16), 1, 0},
		} {
			if diff := cmp.Diff(want, h.read(c, address)); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, address, diff)
			}
		}
		h.scheduler.End(c)
		for address, tokens := range map[string]int64{"cpu:1": 0, "none:1": 4096, "gpu:1": 0} {
			f := h.send(ids("m", prompt), address)
			e := h.endpoint(address)
			load, _ := h.ledger().Load(e.Ordinal, e.Generation)
			if want := (scheduling.InFlightLoad{Requests: 1, Tokens: tokens}); load != want {
				t.Errorf("%s, %s: charged %+v, want %+v", name, address, load, want)
			}
			h.end(f, -1)
			if load, _ := h.ledger().Load(e.Ordinal, e.Generation); load != (scheduling.InFlightLoad{}) {
				t.Errorf("%s, %s: %+v at the end", name, address, load)
			}
		}
	}
}

// Weights are summed as integers: no number of blocks is floored wrongly.
func TestTierWeightsSumExactly(t *testing.T) {
	for _, tc := range []struct {
		medium string
		weight float64
		blocks int
		match  int
	}{
		{"cpu", 0.8, 5, 4}, {"cpu", 0.8, 10, 8}, {"cpu", 0.1, 10, 1}, {"cpu", 0.1, 30, 3}, {"cpu", 0.7, 10, 7},
		{"disk", 0.3, 10, 3}, {"cpu", 0.999, 1000, 999}, {"cpu", 0, 100, 0}, {"gpu", 0.5, 3, 1}, {"cpu", 0.29, 100, 29},
	} {
		t.Run(fmt.Sprint(tc.weight, "×", tc.blocks), func(t *testing.T) {
			h := newHarness(t, func(p *Parameters) {
				if tc.medium == "disk" {
					p.OtherTier = tc.weight
				} else {
					p.Tiers = map[string]float64{tc.medium: tc.weight}
				}
			})
			h.endpoints("a:1")
			h.site.at("a:1").live()
			h.site.at("a:1").say(t, on(tc.medium, store(16, upTo(16*tc.blocks), 1)))
			want := scheduling.PrefixCacheMatchInfo{
				MatchBlocks: tc.match, CachedBlockCount: tc.blocks, TotalBlocks: tc.blocks, BlockSizeTokens: 16,
			}
			if diff := cmp.Diff(want, h.look(ids("m", upTo(16*tc.blocks)))["a:1"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Only the precise index is configured, and the ledger is left alone: it charges by the precise index.
func TestC22_LedgerFollowsTheOnlyProducer(t *testing.T) {
	prompt := from(1, 100)
	table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, 2)}
	h := newHarness(t, nil)                                       // for its plugin types: precise, approximate, tokens, ledger
	types := append(h.types[:4:4], rates.Type(), schedtest.First) // the scorer's own ask for rates
	types = append(types, scorer.Types()...)
	cfg := schedtest.Config([]scheduling.Spec{{Name: "precise", Type: TypeName}}, "prefill-cost-scorer", schedtest.First.Type)
	s, err := scheduling.Build(types, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	pool := table.Pool()
	s.SnapshotChanged(pool.Snapshot())
	second := pool.Snapshot().Endpoints[1]
	feed := h.site.at(second.Address)
	feed.live()
	feed.say(t, store(16, upTo(64), 1))
	plugin, _ := s.Plugin(ledger.TypeName).(*ledger.Plugin)
	c := s.Begin(pool.Snapshot(), ids("m", prompt), 0)
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	if f.Endpoint != second {
		t.Errorf("picked %s, want the one that holds the prompt", f.Endpoint.Address)
	}
	load, _ := plugin.Load(second.Ordinal, second.Generation)
	if want := (scheduling.InFlightLoad{Requests: 1, Tokens: 36}); load != want {
		t.Errorf("charged %+v, want %+v", load, want)
	}
	if n := plugin.ChargedWithoutMatchInfo(); n != 0 {
		t.Errorf("%d charges without match info", n)
	}
	// Released is what was charged, although the index has moved on.
	feed.say(t, removed("gpu", 4, 3, 2, 1))
	f.Done(scheduling.Outcome{Status: 200}, time.Second)
	if load, _ := plugin.Load(second.Ordinal, second.Generation); load != (scheduling.InFlightLoad{}) {
		t.Errorf("%+v at the end", load)
	}
	s.End(c)
}

// Past maxPrefixTokens nothing is looked up, and the rest is charged whole; zero means the default.
func TestC22_PromptsBeyondTheLimit(t *testing.T) {
	prompt := from(1, 1000)
	for limit, want := range map[int]columns{
		0:   {scheduling.NewPrefixCacheMatchInfo(62, 62, 16), 1, 8},
		500: {scheduling.NewPrefixCacheMatchInfo(31, 31, 16), 1, 504},
	} {
		h := newHarness(t, func(p *Parameters) { p.MaxPrefixTokens = limit })
		h.endpoints("a:1", "none:1")
		h.site.at("a:1").live()
		h.site.at("a:1").say(t, store(16, prompt[:992], 1))
		c := h.begin(ids("m", prompt))
		h.scheduler.Preview(c)
		if diff := cmp.Diff(want, h.read(c, "a:1")); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
		nothing := columns{scheduling.NewPrefixCacheMatchInfo(0, want.Info.TotalBlocks, 16), 0, 1000}
		if diff := cmp.Diff(nothing, h.read(c, "none:1")); diff != "" {
			t.Errorf("limit %d, nothing held (-want +got):\n%s", limit, diff)
		}
		h.scheduler.End(c)
	}
}
