package audit

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
)

func pool(n int) (*scheduling.Pool, *scheduling.Snapshot) {
	p := scheduling.NewPool()
	specs := make([]scheduling.EndpointSpec, n)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)}
	}
	s := p.Update(specs)
	return p, s
}

func TestNote(t *testing.T) {
	reporting := Answer{Reported: 1, Block: 16} // by which an engine is known to report
	for name, tc := range map[string]struct {
		answers []Answer
		want    Counts
	}{
		"right":                  {[]Answer{{64, 64, 16}}, Counts{Answers: 1, Predicted: 64, Reported: 64}},
		"less than a block less": {[]Answer{{64, 49, 16}}, Counts{Answers: 1, Predicted: 64, Reported: 49, Over: 15}},
		"a block less":           {[]Answer{{64, 48, 16}}, Counts{Answers: 1, FalseHits: 1, Predicted: 64, Reported: 48, Over: 16}},
		"less than a block more": {[]Answer{{64, 79, 16}}, Counts{Answers: 1, Predicted: 64, Reported: 79, Under: 15}},
		"a block more":           {[]Answer{{64, 80, 16}}, Counts{Answers: 1, Misses: 1, Predicted: 64, Reported: 80, Under: 16}},
		"nothing, rightly":       {[]Answer{{0, 0, 16}}, Counts{Answers: 1}},
		"no block size":          {[]Answer{{5, 5, 0}, {5, 4, 0}}, Counts{Answers: 2, FalseHits: 1, Predicted: 10, Reported: 9, Over: 1}},
		"an engine that never reports any": {
			[]Answer{{64, 0, 16}, {15, 0, 16}, {0, 0, 16}, {64, 0, 16}},
			Counts{Answers: 2, Unconfirmed: 2, Predicted: 15, Over: 15},
		},
		"an engine that does": {
			[]Answer{{64, 0, 16}, reporting, {64, 0, 16}},
			Counts{Answers: 2, FalseHits: 1, Unconfirmed: 1, Predicted: 64, Reported: 1, Over: 64, Under: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := pool(2)
			var table Table
			table.SnapshotChanged(s)
			for _, a := range tc.answers {
				table.Note(s.Endpoints[1], a)
			}
			if diff := cmp.Diff(tc.want, table.Of(s.Endpoints[1])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := table.Of(s.Endpoints[0]); got != (Counts{}) {
				t.Errorf("another endpoint has %+v", got)
			}
			if got := table.Sum(); got != tc.want {
				t.Errorf("the sum is %+v", got)
			}
			if tc.want.Predicted-tc.want.Over != tc.want.Reported-tc.want.Under {
				t.Error("the tokens do not add up")
			}
		})
	}
}

func TestRates(t *testing.T) {
	c := Counts{Answers: 8, FalseHits: 2, Misses: 1}
	if c.FalseHitRate() != 0.25 || c.MissRate() != 0.125 {
		t.Errorf("%v and %v, want 0.25 and 0.125", c.FalseHitRate(), c.MissRate())
	}
	if (Counts{}).FalseHitRate() != 0 || (Counts{}).MissRate() != 0 {
		t.Error("without answers a rate is not 0")
	}
}

// Coming and going leaves nothing behind, and an instance that is replaced begins anew.
func TestEndpointsThatGo(t *testing.T) {
	p, first := pool(2)
	var table Table
	table.SnapshotChanged(first)
	note := func(e *scheduling.Endpoint) { table.Note(e, Answer{16, 16, 16}) }
	note(first.Endpoints[0])
	note(first.Endpoints[1])
	second := p.Update([]scheduling.EndpointSpec{{Address: first.Endpoints[0].Address, UID: "another"}})
	table.SnapshotChanged(second)
	note(first.Endpoints[0]) // late
	note(first.Endpoints[1])
	if got := table.Sum(); got != (Counts{}) {
		t.Errorf("%+v of endpoints that went", got)
	}
	note(second.Endpoints[0])
	if got := table.Of(second.Endpoints[0]).Answers; got != 1 {
		t.Errorf("%d answers of the new instance, want 1", got)
	}
}

func TestNoteAtOnceAndWithoutMemory(t *testing.T) {
	_, s := pool(3)
	var table Table
	table.SnapshotChanged(s)
	if n := testing.AllocsPerRun(100, func() { table.Note(s.Endpoints[0], Answer{64, 32, 16}) }); n != 0 {
		t.Errorf("%v allocations an answer", n)
	}
	before := table.Sum().Answers
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 1000 {
				table.Note(s.Endpoints[i%3], Answer{64, 32, 16})
			}
		})
	}
	wg.Wait()
	if got := table.Sum().Answers - before; got != 8000 {
		t.Errorf("%d of 8000 answers counted", got)
	}
}

func TestCollector(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	c := NewCollector(registry)
	p, s := pool(2)
	var table, other Table
	other.SnapshotChanged(s)
	for _, answer := range []Answer{{64, 64, 16}, {64, 32, 16}, {32, 64, 16}} {
		table.Note(s.Endpoints[1], answer)
	}
	other.Note(s.Endpoints[0], Answer{64, 0, 16})
	withdraw := c.Add("index", Precise, &table)
	c.Add("index", Approximate, &other)
	want := `
# HELP sluice_prefix_cache_overpredicted_tokens_total Tokens of the same answers that were predicted to be cached and were not.
# TYPE sluice_prefix_cache_overpredicted_tokens_total counter
sluice_prefix_cache_overpredicted_tokens_total{endpoint="10.0.0.0:8000",index="approximate",producer="index"} 0
sluice_prefix_cache_overpredicted_tokens_total{endpoint="10.0.0.1:8000",index="precise",producer="index"} 32
# HELP sluice_prefix_cache_predicted_tokens_total Cached tokens predicted at the pick, over the exact, over and under answers of sluice_prefix_cache_predictions_total.
# TYPE sluice_prefix_cache_predicted_tokens_total counter
sluice_prefix_cache_predicted_tokens_total{endpoint="10.0.0.0:8000",index="approximate",producer="index"} 0
sluice_prefix_cache_predicted_tokens_total{endpoint="10.0.0.1:8000",index="precise",producer="index"} 160
# HELP sluice_prefix_cache_predictions_total Answers that said how many of their prompt's tokens were cached, by how that compares with what was predicted at the pick: exact (to the block), over (a false hit: less was cached), under (a miss: more was cached), or unconfirmed (a hit predicted, none reported, by an engine that never reported any).
# TYPE sluice_prefix_cache_predictions_total counter
sluice_prefix_cache_predictions_total{endpoint="10.0.0.0:8000",index="approximate",outcome="exact",producer="index"} 0
sluice_prefix_cache_predictions_total{endpoint="10.0.0.0:8000",index="approximate",outcome="over",producer="index"} 0
sluice_prefix_cache_predictions_total{endpoint="10.0.0.0:8000",index="approximate",outcome="unconfirmed",producer="index"} 1
sluice_prefix_cache_predictions_total{endpoint="10.0.0.0:8000",index="approximate",outcome="under",producer="index"} 0
sluice_prefix_cache_predictions_total{endpoint="10.0.0.1:8000",index="precise",outcome="exact",producer="index"} 1
sluice_prefix_cache_predictions_total{endpoint="10.0.0.1:8000",index="precise",outcome="over",producer="index"} 1
sluice_prefix_cache_predictions_total{endpoint="10.0.0.1:8000",index="precise",outcome="unconfirmed",producer="index"} 0
sluice_prefix_cache_predictions_total{endpoint="10.0.0.1:8000",index="precise",outcome="under",producer="index"} 1
# HELP sluice_prefix_cache_reported_tokens_total Cached tokens that engines reported for the same answers.
# TYPE sluice_prefix_cache_reported_tokens_total counter
sluice_prefix_cache_reported_tokens_total{endpoint="10.0.0.0:8000",index="approximate",producer="index"} 0
sluice_prefix_cache_reported_tokens_total{endpoint="10.0.0.1:8000",index="precise",producer="index"} 160
# HELP sluice_prefix_cache_underpredicted_tokens_total Tokens of the same answers that were cached and not predicted to be.
# TYPE sluice_prefix_cache_underpredicted_tokens_total counter
sluice_prefix_cache_underpredicted_tokens_total{endpoint="10.0.0.0:8000",index="approximate",producer="index"} 0
sluice_prefix_cache_underpredicted_tokens_total{endpoint="10.0.0.1:8000",index="precise",producer="index"} 32
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	// The table of a later plugin of the name is the one that is shown, whichever of the two goes first.
	again := c.Add("index", Precise, &table)
	withdraw()
	if n := testutil.CollectAndCount(c); n != 16 {
		t.Errorf("%d series after a reload, want 16", n)
	}
	again()
	if n := testutil.CollectAndCount(c); n != 8 {
		t.Errorf("%d series after the plugin is gone, want 8", n)
	}
	other.SnapshotChanged(p.Update(nil))
	if n := testutil.CollectAndCount(c); n != 0 {
		t.Errorf("%d series of endpoints that went", n)
	}
	var none *Collector
	none.Add("index", Precise, &table)()
}

func TestCollectorIsBounded(t *testing.T) {
	const more = 50
	_, s := pool(MaxEndpointLabels + more)
	var table Table
	for _, e := range s.Endpoints {
		table.Note(e, Answer{16, 16, 16})
	}
	registry := prometheus.NewRegistry()
	NewCollector(registry).Add("p", Precise, &table)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "sluice_prefix_cache_reported_tokens_total" {
			continue
		}
		if n := len(f.Metric); n != MaxEndpointLabels+1 {
			t.Errorf("%d series, want %d", n, MaxEndpointLabels+1)
		}
		for _, m := range f.Metric {
			want := 16.0
			if m.Label[0].GetValue() == OtherEndpoints {
				want = 16 * more
			}
			if got := m.Counter.GetValue(); got != want {
				t.Errorf("%s has %v, want %v", m.Label[0].GetValue(), got, want)
			}
		}
	}
}
