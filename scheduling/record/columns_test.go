package record_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// mood is a data type that records have no field for.
type mood int

// moodType produces moods; grumpyType, a filter, reads them and drops the first endpoint that has one.
var (
	moodType = scheduling.PluginType{
		Type:       "mood-producer",
		DefaultFor: []string{scheduling.DataTypeOf[mood]()},
		New: func(b *scheduling.Builder) (any, error) {
			return &moods{scheduling.ProduceColumn[mood](b)}, nil
		},
	}
	grumpyType = scheduling.PluginType{
		Type: "grumpy-filter",
		New: func(b *scheduling.Builder) (any, error) {
			return &grumpy{scheduling.ConsumeColumn[mood](b, "mood", "")}, nil
		},
	}
)

type moods struct{ key scheduling.Key[mood] }

func (p *moods) Produce(_ context.Context, c *scheduling.Cycle) error {
	p.key.In(c).Set(0, 1)
	return nil
}

// seerType produces predictions.
var seerType = scheduling.PluginType{
	Type: "seer", DefaultFor: []string{scheduling.DataTypeOf[scheduling.LatencyPrediction]()},
	New: func(b *scheduling.Builder) (any, error) {
		return &seer{scheduling.ProduceColumn[scheduling.LatencyPrediction](b)}, nil
	},
}

type seer struct {
	key scheduling.Key[scheduling.LatencyPrediction]
}

// Fill predicts for the first endpoint only.
func (p *seer) Fill(c *scheduling.Cycle) {
	p.key.In(c).Set(0, scheduling.LatencyPrediction{
		TTFTMs: 120.5, TPOTMs: 20, Confidence: 0.75, TTFTP90Ms: 180, TPOTP90Ms: 25, TTFTHeadroomMs: -30, TPOTHeadroomMs: 5,
		WaitMs: 100, PrefillMs: 10, Residual: 1.1, WholeResponse: true,
	})
}

// TestPredictionsAreRecorded and come back in a replay.
func TestPredictionsAreRecorded(t *testing.T) {
	table := oneMatch()
	s := buildSpecs(t, table, []scheduling.Spec{{Name: "seer", Type: "seer"}}, "random-picker")
	d := decide(table, s, &scheduling.Request{ID: 1}, 0)
	again, err := record.Replay(s, d, "abc")
	if err != nil {
		t.Fatal(err)
	}
	want := []*decisionv1.LatencyPrediction{{
		TtftMs: 120.5, TpotMs: 20, Confidence: 0.75, TtftP90Ms: 180, TpotP90Ms: 25, TtftHeadroomMs: -30, TpotHeadroomMs: 5,
		WaitMs: 100, PrefillMs: 10, Residual: 1.1, WholeResponse: true,
	}}
	for name, d := range map[string]*decisionv1.Decision{"record": d, "replay": again} {
		first, second := d.GetCandidates()[0].GetLatencyPredictions(), d.GetCandidates()[1].GetLatencyPredictions()
		if diff := cmp.Diff(want, first, protocmp.Transform()); diff != "" || len(second) > 0 {
			t.Errorf("%s: the second endpoint has %v, the first (-want +got):\n%s", name, second, diff)
		}
	}
}

type grumpy struct{ key scheduling.Key[mood] }

func (p *grumpy) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	candidates.Subtract(p.key.In(c).Present())
}

func buildSpecs(t *testing.T, table *schedtest.Table, plugins []scheduling.Spec, profile ...string) *scheduling.Scheduler {
	t.Helper()
	all := append(scorer.Types(), picker.Types()...)
	return table.Build(t, append(all, moodType, grumpyType, seerType), plugins, profile...)
}

func oneMatch() *schedtest.Table {
	return &schedtest.Table{Endpoints: []schedtest.Endpoint{
		{Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(3, 10, 16))},
		{Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(7, 10, 16))},
	}}
}

// TestTwoProducersOfOneType: values then say whose they are, and each plugin gets those it was wired to.
func TestTwoProducersOfOneType(t *testing.T) {
	table := oneMatch()
	plugins := []scheduling.Spec{
		{Name: "approx", Type: schedtest.EarlyType},
		{Name: "precise", Type: schedtest.EarlyType},
		{Name: "by-approx", Type: "prefix-cache-scorer", Decode: schedtest.YAML("prefixMatchInfoProducerName: approx")},
		{Name: "by-precise", Type: "prefix-cache-scorer", Decode: schedtest.YAML("prefixMatchInfoProducerName: precise")},
	}
	s := buildSpecs(t, table, plugins, "by-approx", "by-precise", "max-score-picker")
	d := decide(table, s, &scheduling.Request{ID: 1}, 0)
	want := []*decisionv1.PrefixCacheMatch{
		{Producer: "approx", MatchBlocks: 3, CachedBlockCount: 3, TotalBlocks: 10, BlockSizeTokens: 16},
		{Producer: "precise", MatchBlocks: 3, CachedBlockCount: 3, TotalBlocks: 10, BlockSizeTokens: 16},
	}
	got := d.GetCandidates()[0].GetPrefixCacheMatches()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("match info (-want +got):\n%s", diff)
	}
	// The replay must keep them apart: change what one of them said.
	got[1].MatchBlocks = 9
	again, err := record.Replay(s, d, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float64{0.3, 0.9}, again.GetCandidates()[0].GetScores()); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

// TestReplayWithARenamedProducer: the only producer of a type in the record stands in for one of another name.
func TestReplayWithARenamedProducer(t *testing.T) {
	table := oneMatch()
	old := buildSpecs(t, table, []scheduling.Spec{{Name: "approx", Type: schedtest.EarlyType}}, "prefix-cache-scorer", "max-score-picker")
	renamed := buildSpecs(t, table, []scheduling.Spec{{Name: "precise", Type: schedtest.EarlyType}}, "prefix-cache-scorer", "max-score-picker")
	again, err := record.Replay(renamed, decide(table, old, &scheduling.Request{ID: 1}, 0), "def")
	if err != nil {
		t.Fatal(err)
	}
	if got := again.GetCandidates()[1].GetScores(); len(got) != 1 || got[0] != 0.7 {
		t.Errorf("scores %v, want 0.7", got)
	}
}

func TestReplayNeedsWhatTheProfileReads(t *testing.T) {
	table := oneMatch()
	approx := scheduling.Spec{Name: "approx", Type: schedtest.EarlyType}
	precise := scheduling.Spec{Name: "precise", Type: schedtest.EarlyType}
	other := scheduling.Spec{Name: "other", Type: schedtest.EarlyType}
	byApprox := scheduling.Spec{Name: "prefix", Type: "prefix-cache-scorer", Decode: schedtest.YAML("prefixMatchInfoProducerName: approx")}
	random := buildSpecs(t, table, nil, "random-picker")
	two := buildSpecs(t, table, []scheduling.Spec{approx, precise, byApprox}, "prefix", "max-score-picker")
	opaque := buildSpecs(t, table, nil, "grumpy-filter", "random-picker")
	for _, tc := range []struct {
		name       string
		made, with *scheduling.Scheduler
		want       string // "": works
	}{
		{"nothing recorded", random, two, `decision 1: the record has no PrefixCacheMatchInfo of "approx"`},
		{"nothing read", two, random, ""},
		{"two recorded, neither wired", two,
			buildSpecs(t, table, []scheduling.Spec{other}, "prefix-cache-scorer", "max-score-picker"),
			`the record has no PrefixCacheMatchInfo of "other"; it has that of "approx", "precise"`},
		{"a type without a field", opaque, opaque, `records do not hold values of type mood, which "mood-producer" produces`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := record.Replay(tc.with, decide(table, tc.made, &scheduling.Request{ID: 1}, 0), "abc")
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReplayRefusesWhatNoRecordSays(t *testing.T) {
	table := oneMatch()
	s := buildSpecs(t, table, nil, "random-picker")
	for _, tc := range []struct {
		name string
		harm func(d *decisionv1.Decision)
		want string
	}{
		{"ordinal twice", func(d *decisionv1.Decision) { d.Candidates[1].Ordinal = 0 }, "candidates[1].ordinal: must be below 65536 and stand once, got 0"},
		{"ordinal too large", func(d *decisionv1.Decision) { d.Candidates[1].Ordinal = 1 << 31 }, "got 2147483648"},
		{"no state", func(d *decisionv1.Decision) { d.Candidates[0].State = 0 }, "candidates[0].state: unknown state"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := decide(table, s, &scheduling.Request{ID: 1}, 0)
			tc.harm(d)
			if _, err := record.Replay(s, d, ""); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// FuzzReplay feeds any bytes that are a record: they are refused or decided, and a decided one decides the same again.
func FuzzReplay(f *testing.F) {
	table := oneMatch()
	table.Endpoints[0].Load = &scheduling.InFlightLoad{Requests: 1, Tokens: 100}
	table.Endpoints[1].Metrics = &scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: 3}
	s := build(f, table, "weighted-random-picker", 1)
	for id := range uint64(3) {
		b, err := record.Marshal(decide(table, s, &scheduling.Request{ID: id, PromptBytes: 700}, 0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d decisionv1.Decision
		if proto.Unmarshal(b, &d) != nil {
			return
		}
		once, err := record.Replay(s, &d, "abc")
		if err != nil {
			return
		}
		for _, p := range once.GetPicks() {
			if int(p) >= 1<<16 {
				t.Errorf("picked %d", p)
			}
		}
		twice, err := record.Replay(s, once, "abc")
		if err != nil {
			t.Fatalf("its own record is refused: %v", err)
		}
		if diff := cmp.Diff(once.GetPicks(), twice.GetPicks()); diff != "" {
			t.Errorf("picks (-once +twice):\n%s", diff)
		}
	})
}
