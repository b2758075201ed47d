package scheduling_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// tally is a follower and charger with per-flight state, as a ledger is.
type tally struct {
	state scheduling.StateKey[int64]
	sum   atomic.Int64
}

var tallyType = scheduling.PluginType{Type: "tally", New: func(b *scheduling.Builder) (any, error) {
	return &tally{state: scheduling.KeepState[int64](b)}, nil
}}

func (p *tally) Charge(_ *scheduling.Cycle, f *scheduling.Flight) {
	*p.state.Of(f) = int64(f.ID)
	p.sum.Add(int64(f.ID))
}
func (*tally) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (*tally) FirstToken(*scheduling.Flight, time.Duration)    {}
func (p *tally) Done(f *scheduling.Flight, _ time.Duration)    { p.sum.Add(-*p.state.Of(f)) }

// fullProfile is a scheduler with every scorer over n endpoints, all known or but for one in seven.
func fullProfile(tb testing.TB, n int, known bool) (*scheduling.Scheduler, *scheduling.Snapshot) {
	tb.Helper()
	table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, n)}
	for i := range table.Endpoints {
		if !known && i%7 == 3 {
			continue
		}
		draw := scheduling.Mix64(uint64(i))
		table.Endpoints[i] = schedtest.Endpoint{
			Match:    schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(int(draw%100), 100, 16)),
			Load:     &scheduling.InFlightLoad{Requests: int64(draw % 17), Tokens: int64(draw % 100_000), Decoding: int64(draw % 9)},
			Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(draw % 1600)),
			Metrics: &scheduling.EngineMetrics{
				Known:   scheduling.MetricsWaiting | scheduling.MetricsKVUsage,
				Waiting: float64(draw % 11), KVUsage: float64(draw%1000) / 1000,
			},
		}
	}
	types := append(append(table.Types(), scorer.Types()...), picker.Types()...)
	var profile []string
	for _, t := range scorer.Types() {
		profile = append(profile, t.Type)
	}
	cfg := schedtest.Config(plugins("tally"), append(profile, "max-score-picker")...)
	s := mustBuild(tb, append(types, tallyType), cfg)
	return s, table.Pool().Snapshot()
}

// TestWarmRequestAllocatesNothing is the ceiling of a whole request: begin, produce, commit, end, first token, done.
func TestWarmRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s, snapshot := fullProfile(t, 100, false)
	ctx, request := t.Context(), &scheduling.Request{ID: 1, PromptBytes: 6400}
	if n := testing.AllocsPerRun(500, func() {
		request.ID++
		c := s.Begin(snapshot, request, 0)
		s.Produce(ctx, c)
		f, err := s.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		s.End(c)
		f.FirstToken(1)
		f.Done(scheduling.Outcome{}, 2)
	}); n != 0 {
		t.Errorf("a request allocates %v times", n)
	}
	if p, _ := s.Plugin("tally").(*tally); p.sum.Load() != 0 {
		t.Errorf("the tally is %d, want 0", p.sum.Load())
	}
}

// sizes runs a benchmark over small and large pools.
func sizes(b *testing.B, run func(b *testing.B, n int, known bool)) {
	b.Helper()
	for _, n := range []int{8, 64, 512} {
		for _, known := range []bool{true, false} {
			b.Run(fmt.Sprintf("endpoints=%d/known=%t", n, known), func(b *testing.B) { run(b, n, known) })
		}
	}
}

// BenchmarkDecide is the pure step alone: six scorers and a picker over filled columns.
func BenchmarkDecide(b *testing.B) {
	sizes(b, func(b *testing.B, n int, known bool) {
		s, snapshot := fullProfile(b, n, known)
		c := s.Begin(snapshot, &scheduling.Request{ID: 1, PromptBytes: 6400}, 0)
		defer s.End(c)
		s.Produce(b.Context(), c)
		s.Preview(c) // fills the columns of the critical section
		b.ReportAllocs()
		for b.Loop() {
			c.Seed++
			c.Candidates.CopyFrom(snapshot.Ready)
			clear(c.Totals)
			c.Picks = c.Picks[:0]
			s.Decide(c)
		}
	})
}

// BenchmarkRequest is a whole request, the filling of its columns from a table included.
func BenchmarkRequest(b *testing.B) {
	sizes(b, func(b *testing.B, n int, known bool) {
		s, snapshot := fullProfile(b, n, known)
		ctx, request := b.Context(), &scheduling.Request{ID: 1, PromptBytes: 6400}
		b.ReportAllocs()
		for b.Loop() {
			request.ID++
			c := s.Begin(snapshot, request, 0)
			s.Produce(ctx, c)
			f, err := s.Commit(c)
			if err != nil {
				b.Fatal(err)
			}
			s.End(c)
			f.Done(scheduling.Outcome{}, 0)
		}
	})
}
