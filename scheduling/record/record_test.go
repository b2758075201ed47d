package record_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// stickyType is a gate in small: it prefers endpoints with a match, unless a draw from the seed explores.
var stickyType = scheduling.PluginType{
	Type: "sticky-filter",
	New: func(b *scheduling.Builder) (any, error) {
		return &sticky{
			match:  scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "match", ""),
			name:   b.Name,
			stream: b.Stream(),
		}, nil
	},
}

type sticky struct {
	match  scheduling.Key[scheduling.PrefixCacheMatchInfo]
	name   string
	stream uint64
}

func (*sticky) Preference() {}

func (s *sticky) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	report := scheduling.GateReport{
		Filter: s.name, Verdict: scheduling.GateNoSticky,
		GapMs: math.NaN(), GapTokens: 12, BarMs: 18000, BarTokens: math.NaN(), Sticky: -1, Other: -1,
	}
	defer func() { c.ReportGate(report) }()
	r := c.Rand(s.stream)
	if r.Float64() < 0.2 {
		report.Verdict = scheduling.GateExplored
		return
	}
	match := s.match.In(c)
	for e := range candidates.All() {
		if info, ok := match.Get(e); ok && info.Score() >= 0.5 {
			report.Sticky = e
		}
	}
	if report.Sticky < 0 {
		return
	}
	report.Verdict = scheduling.GateHeld
	for e := range candidates.All() {
		if info, ok := match.Get(e); !ok || info.Score() < 0.5 {
			report.Other = e
			candidates.Remove(e)
		}
	}
}

// failing is a producer that never knows anything.
var failingType = scheduling.PluginType{
	Type: "failing-producer",
	New:  func(*scheduling.Builder) (any, error) { return failing{}, nil },
}

type failing struct{}

func (failing) Produce(context.Context, *scheduling.Cycle) error {
	return errors.New("tokenizer: \xff no answer " + strings.Repeat("x", 1000))
}

func types() []scheduling.PluginType {
	all := append(scorer.Types(), picker.Types()...)
	all = append(all, filter.Types()...)
	return append(all, stickyType, failingType, schedtest.First)
}

const selector = "matchExpressions: [{key: zone, operator: NotIn, values: [b]}]"

// build builds the profile that the tests below use; weights follow the names.
func build(tb testing.TB, table *schedtest.Table, pickerName string, weight float64) *scheduling.Scheduler {
	tb.Helper()
	cfg := schedtest.Config([]scheduling.Spec{
		{Name: "zone", Type: "label-selector-filter", Decode: schedtest.YAML(selector)},
		{Name: "failing-producer", Type: "failing-producer"},
	}, "zone", "sticky-filter", "prefill-cost-scorer", "prefix-cache-scorer", "token-load-scorer",
		"active-request-scorer", "queue-scorer", "kv-cache-utilization-scorer", "lora-affinity-scorer", pickerName)
	cfg.MaxPicks = 3
	cfg.Profile[3].Weight = weight
	s, err := scheduling.Build(append(table.Types(), types()...), cfg, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func drawTable(rt *rapid.T) *schedtest.Table {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, rapid.IntRange(1, 80).Draw(rt, "endpoints"))}
	for i := range table.Endpoints {
		e := &table.Endpoints[i]
		e.State = rapid.SampledFrom([]scheduling.EndpointState{0, 0, 0, 1, 2}).Draw(rt, "state")
		if zone := rapid.SampledFrom([]string{"a", "b", ""}).Draw(rt, "zone"); zone != "" {
			e.Labels = map[string]string{"zone": zone, "secret": "not looked at"}
		}
		if rapid.Bool().Draw(rt, "match") {
			e.Match = &scheduling.PrefixCacheMatchInfo{
				MatchBlocks:      rapid.IntRange(0, 20).Draw(rt, "matched"),
				CachedBlockCount: rapid.IntRange(0, 20).Draw(rt, "cached"),
				TotalBlocks:      20, BlockSizeTokens: rapid.SampledFrom([]int{0, 16}).Draw(rt, "block size"),
			}
		}
		if rapid.Bool().Draw(rt, "load") {
			e.Load = &scheduling.InFlightLoad{
				Requests: rapid.Int64Range(0, 3).Draw(rt, "requests"), Tokens: rapid.Int64Range(0, 5000).Draw(rt, "tokens"),
				Decoding: rapid.Int64Range(0, 3).Draw(rt, "decoding"),
			}
			e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(rapid.Int64Range(0, 320).Draw(rt, "uncached")))
		}
		if rapid.Bool().Draw(rt, "metrics") {
			e.Metrics = &scheduling.EngineMetrics{
				Known:   scheduling.MetricsField(rapid.IntRange(0, 15).Draw(rt, "known")),
				Waiting: rapid.Float64Range(0, 9).Draw(rt, "waiting"), Running: 2,
				KVUsage: rapid.Float64Range(0, 1).Draw(rt, "usage"), AgeMs: 120,
				Adapter: scheduling.AdapterUse(rapid.IntRange(0, 3).Draw(rt, "adapter")), MaxAdapters: 2,
				Adapters: rapid.IntRange(0, 3).Draw(rt, "adapters"),
			}
		}
	}
	if rapid.Bool().Draw(rt, "prompt") {
		table.Prompt = &scheduling.TokenizedPrompt{Tokens: []uint32{7, 8, 9}, Count: 320, Exact: true, BytesPerToken: 3.5}
	}
	return table
}

// decide makes a decision over the table's endpoints, subset to some of them, and its record.
func decide(table *schedtest.Table, s *scheduling.Scheduler, r *scheduling.Request, subset uint64) *decisionv1.Decision {
	pool := table.Pool()
	c := s.Begin(pool.Snapshot(), r, 0)
	defer s.End(c)
	if subset != 0 {
		allowed := scheduling.NewSet(len(table.Endpoints))
		for i := range table.Endpoints {
			if subset>>(i%64)&1 == 1 {
				allowed.Add(i)
			}
		}
		c.Restrict(allowed)
	}
	s.Produce(context.Background(), c)
	s.Preview(c)
	meta := record.Meta{ClientRequestID: "client-1", UnixNano: 1_700_000_000_000_000_000, ConfigHash: "abc"}
	d := record.Of(s, c, meta)
	kept := s.Keep(c)
	defer s.End(kept)
	overwrite(c)
	if diff := cmp.Diff(d, record.Of(s, kept, meta), protocmp.Transform()); diff != "" {
		panic("a kept decision has another record: " + diff)
	}
	return d
}

// overwrite does to a cycle what the next request would.
func overwrite(c *scheduling.Cycle) {
	c.Request.Model, c.Request.PromptBytes, c.Seed = "another", 1, 1
	c.Picks, c.Gates = append(c.Picks[:0], 63), c.Gates[:0]
	for _, f := range c.Steps {
		f.Left.Clear()
	}
	c.Considered.Clear()
	c.Candidates.Clear()
	clear(c.Totals)
	for i := range c.Scores {
		clear(c.Scores[i].Raw)
	}
}

func marshal(rt rapid.TB, d *decisionv1.Decision) []byte {
	rt.Helper()
	b, err := record.Marshal(d)
	if err != nil {
		rt.Fatal(err)
	}
	return b
}

// TestReplayIsTheSameToTheByte writes a record of any decision, reads it back and decides it again with a scheduler that
// never saw the request.
func TestReplayIsTheSameToTheByte(t *testing.T) {
	for _, pickerName := range []string{"max-score-picker", "random-picker", "weighted-random-picker"} {
		t.Run(pickerName, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				table := drawTable(rt)
				request := &scheduling.Request{
					ID: rapid.Uint64().Draw(rt, "id"), Operation: scheduling.OperationChat, Model: "m",
					PromptBytes: 1280, MaxOutputTokens: 100, Choices: 1, Stream: true,
				}
				first := marshal(rt, decide(table, build(t, table, pickerName, 1), request, rapid.Uint64().Draw(rt, "subset")))
				var read decisionv1.Decision
				if err := proto.Unmarshal(first, &read); err != nil {
					rt.Fatal(err)
				}
				again, err := record.Replay(build(t, &schedtest.Table{}, pickerName, 1), &read, "abc")
				if err != nil {
					rt.Fatal(err)
				}
				if second := marshal(rt, again); !bytes.Equal(first, second) {
					rt.Fatalf("the replay differs (-recorded +replayed):\n%s", cmp.Diff(&read, again, protocmp.Transform()))
				}
			})
		})
	}
}

// TestReplayUnderAnotherConfiguration: the same seed breaks the same ties, so that a pick moves only where the
// configuration's change outweighs what was there.
func TestReplayUnderAnotherConfiguration(t *testing.T) {
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
		{Load: &scheduling.InFlightLoad{Tokens: 9000}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(0)),
			Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(4, 10, 16))},
		{Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(160))},
		{Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(160))},
	}}
	light, heavy := build(t, table, "max-score-picker", 0.01), build(t, table, "max-score-picker", 10)
	moved, heads := 0, map[uint32]bool{}
	for id := range uint64(50) {
		d := decide(table, light, &scheduling.Request{ID: id}, 0)
		heads[d.GetPicks()[0]] = true
		same, err := record.Replay(light, d, "abc")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d, same, protocmp.Transform()); diff != "" {
			t.Fatalf("unchanged configuration (-recorded +replayed):\n%s", diff)
		}
		other, err := record.Replay(heavy, d, "def")
		if err != nil {
			t.Fatal(err)
		}
		if other.GetPicks()[0] == 0 {
			moved++
		}
		if other.GetConfigHash() != "def" || other.GetSeed() != d.GetSeed() {
			t.Errorf("config hash %q and seed %x, want def and the recorded seed", other.GetConfigHash(), other.GetSeed())
		}
	}
	if len(heads) != 2 || heads[0] {
		t.Errorf("the light weight picked %v, want the tie of 1 and 2", heads)
	}
	if moved != 50 {
		t.Errorf("the heavy weight moved %d of 50 picks to the match", moved)
	}
}

// TestRecordOfADecision checks every field once, on a decision with something in each.
func TestRecordOfADecision(t *testing.T) {
	ref := func(v float64) *float64 { return &v }
	table := &schedtest.Table{
		Endpoints: []schedtest.Endpoint{
			{
				EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.1:8000", Name: "pod-0", Labels: map[string]string{"zone": "a", "x": "y"}},
				Match:        schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(8, 10, 16)),
				Load:         &scheduling.InFlightLoad{Requests: 2, Tokens: 100, Decoding: 1},
				Uncached:     schedtest.Ref(scheduling.UncachedRequestTokens(32)),
				Metrics: &scheduling.EngineMetrics{
					Known: scheduling.MetricsWaiting | scheduling.MetricsAdapters, Waiting: 0, AgeMs: 50,
					Adapter: scheduling.AdapterWaiting, Adapters: 3, MaxAdapters: 4,
				},
			},
			{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.2:8000", Labels: map[string]string{"zone": "b"}}},
			{EndpointSpec: scheduling.EndpointSpec{Address: "[fd00::3]:8000", State: scheduling.EndpointDraining}, Load: &scheduling.InFlightLoad{Requests: 9}},
			{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.4:8000"}},
			{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.5:8000"}, Load: &scheduling.InFlightLoad{}},
		},
		Prompt: &scheduling.TokenizedPrompt{Tokens: []uint32{1, 2}, Count: 170, BytesPerToken: 4},
	}
	request := &scheduling.Request{
		ID: 6, Operation: scheduling.OperationMessages, Model: "llama\xff-3", Body: []byte("secret prompt"), PromptBytes: 680,
		Choices: 2, Headers: []scheduling.Header{{Name: "authorization", Value: []byte("Bearer key")}},
	}
	d := decide(table, build(t, table, "max-score-picker", 1), request, 0b10111)
	scores := []float64{1, 0.8, 1 - 100./4194304, 0, 1, 0, 0.8}
	total := 0.0
	for _, s := range scores {
		total += s
	}
	backfilled := d.GetCandidates()[4]
	want := &decisionv1.Decision{
		Id: 6, ClientRequestId: "client-1", TimeUnixNano: 1_700_000_000_000_000_000, Seed: scheduling.SeedOf(6),
		Profile: "test", ConfigHash: "abc", SnapshotVersion: 1, MaxPicks: 3,
		Request: &decisionv1.Request{
			Operation: decisionv1.Operation_OPERATION_MESSAGES, Model: "llama-3", PromptBytes: 680, Choices: 2,
		},
		Columns: d.GetColumns(), // checked below
		Candidates: []*decisionv1.Candidate{
			{
				Ordinal: 0, Generation: 1, Address: "10.0.0.1:8000", Name: "pod-0",
				State: decisionv1.EndpointState_ENDPOINT_STATE_READY, Labels: map[string]string{"zone": "a"},
				PrefixCacheMatches:    []*decisionv1.PrefixCacheMatch{{MatchBlocks: 8, CachedBlockCount: 8, TotalBlocks: 10, BlockSizeTokens: 16}},
				InFlightLoads:         []*decisionv1.InFlightLoad{{Requests: 2, Tokens: 100, Decoding: 1}},
				UncachedRequestTokens: []*decisionv1.UncachedRequestTokens{{Tokens: 32}},
				EngineMetrics: []*decisionv1.EngineMetrics{{
					Waiting: ref(0), HasAdapters: true, AgeMs: 50,
					Adapter: decisionv1.AdapterUse_ADAPTER_USE_WAITING, Adapters: 3, MaxAdapters: 4,
				}},
				Scores: scores, Total: total,
			},
			{
				Ordinal: 1, Generation: 2, Address: "10.0.0.2:8000", State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				Name: "", Labels: map[string]string{"zone": "b"}, Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "zone",
			},
			{
				Ordinal: 2, Generation: 3, Address: "[fd00::3]:8000", State: decisionv1.EndpointState_ENDPOINT_STATE_DRAINING,
				Exclusion: decisionv1.Exclusion_EXCLUSION_STATE,
			},
			{
				Ordinal: 3, Generation: 4, Address: "10.0.0.4:8000", State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				Exclusion: decisionv1.Exclusion_EXCLUSION_SUBSET,
			},
			{
				Ordinal: 4, Generation: 5, Address: "10.0.0.5:8000", State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "sticky-filter",
				InFlightLoads: []*decisionv1.InFlightLoad{{}},
				Scores:        backfilled.GetScores(), Total: backfilled.GetTotal(),
			},
		},
		Faults: d.GetFaults(), // checked below
		FilterSteps: []*decisionv1.FilterStep{
			{Filter: "zone", Left: 2}, {Filter: "sticky-filter", Left: 1},
		},
		Gates: []*decisionv1.GateReport{{
			Filter: "sticky-filter", Verdict: decisionv1.GateVerdict_GATE_VERDICT_HELD,
			GapTokens: ref(12), BarMs: ref(18000), Sticky: proto.Uint32(0), Other: proto.Uint32(4),
		}},
		Scorers: []*decisionv1.Scorer{
			{Name: "prefill-cost-scorer", Weight: 1}, {Name: "prefix-cache-scorer", Weight: 1},
			{Name: "token-load-scorer", Weight: 1}, {Name: "active-request-scorer", Weight: 1},
			{Name: "queue-scorer", Weight: 1}, {Name: "kv-cache-utilization-scorer", Weight: 1},
			{Name: "lora-affinity-scorer", Weight: 1},
		},
		Picks: []uint32{0, 4}, LabelKeys: []string{"zone"},
	}
	want.Request.TokenizedPrompts = []*decisionv1.TokenizedPrompt{{Tokens: 170, BytesPerToken: 4}}
	if diff := cmp.Diff(want, d, protocmp.Transform()); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if len(backfilled.GetScores()) != 7 || backfilled.GetTotal() <= 0 {
		t.Errorf("the backfilled pick has the scores %v", backfilled.GetScores())
	}
	checkColumns(t, d)
	faults := d.GetFaults()
	if len(faults) != 1 || faults[0].GetProducer() != "failing-producer" || len(faults[0].GetError()) > 512 ||
		!strings.HasPrefix(faults[0].GetError(), "tokenizer:  no answer") {
		t.Errorf("faults %v", faults)
	}
	for _, secret := range []string{"secret prompt", "Bearer", "authorization"} {
		if bytes.Contains(marshal(t, d), []byte(secret)) {
			t.Errorf("the record holds %q", secret)
		}
	}
}

func checkColumns(t *testing.T, d *decisionv1.Decision) {
	t.Helper()
	got := map[string]string{}
	for _, c := range d.GetColumns() {
		got[c.GetDataType()] = c.GetProducer()
		if c.GetOpaque() {
			t.Errorf("%s is opaque", c.GetDataType())
		}
	}
	want := map[string]string{
		"PrefixCacheMatchInfo": "table-early", "EngineMetrics": "table-early", "TokenizedPrompt": "table-early",
		"LearntRates": "table-late", "PoolPressure": "table-late", "InFlightLoad": "table-late", "UncachedRequestTokens": "table-late",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}

// TestRecordWithoutAPick: a decision that nothing could serve has a record too, and it says why.
func TestRecordWithoutAPick(t *testing.T) {
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
		{EndpointSpec: scheduling.EndpointSpec{Labels: map[string]string{"zone": "b"}}},
		{EndpointSpec: scheduling.EndpointSpec{State: scheduling.EndpointNotReady}},
	}}
	s := build(t, table, "max-score-picker", 1)
	d := decide(table, s, &scheduling.Request{ID: 1}, 0)
	if len(d.GetPicks()) != 0 || d.RunnerUpMargin != nil || d.GetFilterSteps()[0].GetLeft() != 0 {
		t.Errorf("picks %v, margin %v, steps %v", d.GetPicks(), d.RunnerUpMargin, d.GetFilterSteps())
	}
	for i, want := range []string{"zone", ""} {
		if e := d.GetCandidates()[i]; e.GetFilteredBy() != want || len(e.GetScores()) != 0 {
			t.Errorf("candidate %d: %v", i, e)
		}
	}
	again, err := record.Replay(s, d, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, again, protocmp.Transform()); diff != "" {
		t.Errorf("replay (-recorded +replayed):\n%s", diff)
	}
}

func TestRunnerUpMargin(t *testing.T) {
	for _, tc := range []struct {
		name    string
		waiting []float64
		want    *float64
	}{
		{"two", []float64{0, 10, 5}, proto.Float64(0.5)},
		{"tie", []float64{3, 3}, proto.Float64(0)},
		{"alone", []float64{3}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := &schedtest.Table{}
			for _, w := range tc.waiting {
				table.Endpoints = append(table.Endpoints, schedtest.Endpoint{
					Metrics: &scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: w},
				})
			}
			s := table.Build(t, types(), nil, "queue-scorer", "max-score-picker")
			d := decide(table, s, &scheduling.Request{ID: 9}, 0)
			if diff := cmp.Diff(tc.want, d.RunnerUpMargin); diff != "" {
				t.Errorf("margin (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEnumsSayWhatTheCoreSays keeps the enums of the record and of the core in step.
func TestEnumsSayWhatTheCoreSays(t *testing.T) {
	check := func(prefix, core, proto string) {
		t.Helper()
		if want := strings.ToUpper(prefix + core); want != proto {
			t.Errorf("the core says %q, the record %q", want, proto)
		}
	}
	for v := scheduling.GateNone; v <= scheduling.GateMissingSignal; v++ {
		check("gate_verdict_", v.String(), (decisionv1.GateVerdict(v) + 1).String())
	}
	for v := scheduling.EndpointReady; v <= scheduling.EndpointDraining; v++ {
		check("endpoint_state_", v.String(), (decisionv1.EndpointState(v) + 1).String())
	}
	for v := scheduling.OperationOther; v <= scheduling.OperationMessages; v++ {
		check("operation_", v.String(), (decisionv1.Operation(v) + 1).String())
	}
	if n := len(decisionv1.GateVerdict_name); n != int(scheduling.GateMissingSignal)+2 {
		t.Errorf("the record knows %d verdicts", n)
	}
}
