package top

import (
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

var update = flag.Bool("update", false, "write testdata anew")

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// decide is what a real scheduler makes of a request to endpoints of which the first holds most of it.
func decide(t *testing.T, id uint64, requestID string, at time.Time, endpoints ...schedtest.Endpoint) *schedulerv1.Explanation {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints}
	types := slices.Concat(scorer.Types(), picker.Types(), []scheduling.PluginType{gate.Type()})
	s := table.Build(t, types, []scheduling.Spec{{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0, penaltyMode: matchedTokens}")}},
		"gate", "prefill-cost-scorer", "max-score-picker")
	c := table.Decide(t, s, &scheduling.Request{ID: id, Model: "llama-3.1-8b", Choices: 1})
	d := record.Of(s, c, record.Meta{ClientRequestID: requestID, UnixNano: at.UnixNano()})
	return &schedulerv1.Explanation{Decision: d, Reason: explain.Reason(d)}
}

func warm(name string, tokens int64, cached int) schedtest.Endpoint {
	return schedtest.Endpoint{
		EndpointSpec: scheduling.EndpointSpec{Name: name},
		Load:         &scheduling.InFlightLoad{Requests: 1, Tokens: tokens},
		Match:        schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, 100, 16)),
		Uncached:     schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - cached))),
	}
}

// few is a state of four endpoints and a decision of each kind.
func few(t *testing.T) *state {
	t.Helper()
	s := newState(noon.Add(-time.Hour))
	ready, metrics := decisionv1.EndpointState_ENDPOINT_STATE_READY, func(waiting, running, kv, age float64) *decisionv1.EngineMetrics {
		return &decisionv1.EngineMetrics{Waiting: &waiting, Running: &running, KvUsage: &kv, AgeMs: age}
	}
	s.told(&schedulerv1.ListEndpointsResponse{Process: schedulerv1.ProcessState_PROCESS_STATE_READY, Endpoints: []*schedulerv1.Endpoint{
		{
			Address: "10.0.0.1:8000", Name: "vllm-0", Generation: 1, State: ready, InFlight: &decisionv1.InFlightLoad{Requests: 3, Tokens: 4500, Decoding: 2},
			EngineMetrics: metrics(0, 5, 0.62, 400), Caches: []*schedulerv1.CacheKnowledge{{Blocks: 12_345, Events: "live", FalseHitRate: schedtest.Ref(0.031), MissRate: schedtest.Ref(0.0)}},
		},
		{
			Address: "10.0.0.2:8000", Name: "vllm-1", Ordinal: 1, Generation: 1, State: ready, InFlight: &decisionv1.InFlightLoad{Requests: 40, Tokens: 65_000},
			EngineMetrics: metrics(12, 28, 1, 45_000), MetricsStale: true, Caches: []*schedulerv1.CacheKnowledge{{Blocks: 800, Events: "degraded"}},
		},
		{Address: "10.0.0.3:8000", Ordinal: 2, Generation: 1, State: ready, Asleep: true, InFlight: &decisionv1.InFlightLoad{}},
		{Address: "[2001:db8::4:17]:8000", Ordinal: 3, Generation: 1, State: decisionv1.EndpointState_ENDPOINT_STATE_DRAINING},
	}}, []*schedulerv1.IndexStats{{
		Producer: "precise", HolderEntries: 13_145, Bytes: 2_400_000, Evicted: 17, Sources: map[string]uint32{"live": 1, "degraded": 1},
		FalseHitRate: schedtest.Ref(0.031), MissRate: schedtest.Ref(0.01),
	}}, noon.Add(-time.Second))
	at := noon.Add(-4 * time.Second)
	for i, x := range []*schedulerv1.Explanation{
		decide(t, 1, "5d0f8b1c-2f6e-4d01", at, warm("vllm-0", 100, 90), warm("vllm-1", 0, 0)),
		decide(t, 2, "5d0f8b1c-2f6e-4d02", at, warm("vllm-0", 40_000, 90), warm("vllm-1", 0, 0)),
		decide(t, 3, "", at, warm("vllm-0", 100, 0), warm("vllm-1", 0, 40)),
		decide(t, 4, "\x1b[2Jgone", at, warm("vllm-0", 0, 0), warm("vllm-1", 0, 0)),
		decide(t, 5, "e", at, schedtest.Endpoint{EndpointSpec: scheduling.EndpointSpec{State: scheduling.EndpointDraining}}),
	} {
		s.decided(x, uint64(i/4*12), at.Add(time.Duration(i)*time.Second/2))
	}
	return s
}

// many is a state of 512 endpoints.
func many(t *testing.T) *state {
	t.Helper()
	s := newState(noon.Add(-time.Hour))
	var all []*schedulerv1.Endpoint
	for i := range uint32(512) {
		all = append(all, &schedulerv1.Endpoint{
			Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1), Ordinal: i, Generation: 1, State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
			InFlight: &decisionv1.InFlightLoad{Requests: int64(i % 37), Tokens: int64(i * 7919 % 50_021)},
		})
	}
	s.told(&schedulerv1.ListEndpointsResponse{Endpoints: all}, nil, noon)
	return s
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-update writes %s anew (-there +now):\n%s", file, diff)
	}
}

func TestFrames(t *testing.T) {
	lost := few(t)
	lost.failed("no answer from 127.0.0.1:9090: nothing listens there")
	never := newState(noon)
	for name, tc := range map[string]struct {
		state *state
		look  look
	}{
		"80x24":     {few(t), look{width: 80, height: 24, order: ByLoad}},
		"80x24_kv":  {few(t), look{width: 80, height: 24, order: ByKV, ascii: true, paused: true}},
		"160x20":    {few(t), look{width: 160, height: 20, order: ByName}},
		"lost":      {lost, look{width: 80, height: 24, order: ByPicks}},
		"styled":    {lost, look{width: 80, height: 24, order: ByLoad, styles: true}},
		"many":      {many(t), look{width: 80, height: 24, order: ByLoad}},
		"low":       {many(t), look{width: 60, height: 9, order: ByLoad}},
		"narrow":    {few(t), look{width: 40, height: 20, order: ByLoad}},
		"too_small": {few(t), look{width: 20, height: 20}},
		"nothing":   {never, look{width: 80, height: 12, order: ByLoad}},
	} {
		tc.look.address = "127.0.0.1:9090"
		golden(t, name, strings.Join(tc.look.frame(tc.state.view(noon)), "\n")+"\n")
	}
	l := look{address: "127.0.0.1:9090", width: plainWidth, order: ByLoad}
	v := few(t).view(noon)
	golden(t, "plain", strings.Join(l.block(v, 2, v.decisions[3:], 3), "\n")+"\n")
}

// However large the terminal is, a frame fills it and is not larger, and obeys nothing that others named.
func TestFramesFit(t *testing.T) {
	states := []*state{few(t), many(t), newState(noon)}
	states[0].failed(strings.Repeat("no answer ", 30))
	for i, s := range states {
		v := s.view(noon)
		for width := 0; width < 200; width += 11 {
			for height := range 40 {
				for _, order := range []Order{ByLoad, Orders[height%len(Orders)]} {
					l := look{address: "127.0.0.1:9090", width: width, height: height, order: order}
					lines := l.frame(v)
					if len(lines) > height || width >= leastWidth && height >= leastHeight && len(lines) != height {
						t.Fatalf("state %d, %dx%d: %d lines", i, width, height, len(lines))
					}
					for _, line := range lines {
						if display.Width(line) > width || strings.ContainsRune(line, '\x1b') {
							t.Fatalf("state %d, %dx%d: %q", i, width, height, line)
						}
					}
				}
			}
		}
	}
}

// screen is what a terminal without wrapping shows after what it was told, in plain text.
func screen(told string, width, height int) []string {
	cells := make([][]rune, height)
	for i := range cells {
		cells[i] = []rune(strings.Repeat("x", width)) // of the frame before
	}
	blank := func(row, from int) {
		for i := from; i < width; i++ {
			cells[row][i] = ' '
		}
	}
	row, column := 0, 0
	for told != "" {
		switch {
		case strings.HasPrefix(told, home):
			row, column, told = 0, 0, told[len(home):]
		case strings.HasPrefix(told, clearLine):
			blank(row, column)
			told = told[len(clearLine):]
		case strings.HasPrefix(told, clearBelow):
			blank(row, column)
			for i := row + 1; i < height; i++ {
				blank(i, 0)
			}
			told = told[len(clearBelow):]
		case strings.HasPrefix(told, "\r\n"):
			row, column, told = min(row+1, height-1), 0, told[2:]
		default:
			r, size := utf8.DecodeRuneInString(told)
			cells[row][column] = r
			column, told = min(column+1, width-1), told[size:] // the last cell is written over
		}
	}
	var lines []string
	for _, c := range cells {
		lines = append(lines, strings.TrimRight(string(c), " "))
	}
	return lines
}

// What a terminal shows is the frame, to its last cell and nothing else.
func TestPainted(t *testing.T) {
	for _, s := range []*state{few(t), many(t)} {
		v := s.view(noon)
		for width := 20; width < 140; width++ {
			l := look{address: "127.0.0.1:9090", width: width, height: 24, order: ByLoad}
			lines := l.frame(v)
			want := slices.Clone(lines)
			for len(want) < l.height {
				want = append(want, "")
			}
			if diff := cmp.Diff(want, screen(painted(lines, l.height), width, l.height)); diff != "" {
				t.Fatalf("%d cells wide (-frame +terminal):\n%s", width, diff)
			}
		}
	}
}

// What is busiest is shown, and how much is not.
func TestManyEndpoints(t *testing.T) {
	l := look{width: 80, height: 24, order: ByLoad}
	page := strings.Join(l.frame(many(t).view(noon)), "\n")
	most := ""
	for _, e := range many(t).endpoints {
		if e.GetInFlight().GetTokens() > 49_900 {
			most = e.GetAddress()
			if !strings.Contains(page, most) {
				t.Errorf("%s is hidden", most)
			}
		}
	}
	shownRows := strings.Count(page, " ready ")
	if most == "" || !strings.Contains(page, fmt.Sprintf("%d more hidden, behind these by load", 512-shownRows)) {
		t.Errorf("%d are shown in\n%s", shownRows, page)
	}
}

func TestStateIsBounded(t *testing.T) {
	s := newState(noon)
	x := decide(t, 1, "", noon, warm("a", 0, 0))
	for i := range 3 * keptDecisions {
		again := &schedulerv1.Explanation{Decision: &decisionv1.Decision{Id: uint64(i), Candidates: x.GetDecision().GetCandidates(), Picks: []uint32{0}}}
		s.decided(again, 0, noon)
	}
	if v := s.view(noon); len(v.decisions) > keptDecisions || v.seen != 3*keptDecisions {
		t.Errorf("%d of %d are kept", len(v.decisions), v.seen)
	}
	if len(s.each) != 1 {
		t.Fatalf("%d endpoints are counted", len(s.each))
	}
	if s.told(nil, nil, noon); len(s.each) != 0 {
		t.Error("an endpoint that has gone is counted still")
	}
}

// A stream that begins anew tells of decisions that are known.
// A Sluice that wants no requests says so on the first line.
func TestHeadSaysWhetherItIsReady(t *testing.T) {
	for process, want := range map[schedulerv1.ProcessState]string{
		schedulerv1.ProcessState_PROCESS_STATE_UNSPECIFIED: "draining", // the last endpoint
		schedulerv1.ProcessState_PROCESS_STATE_READY:       "draining",
		schedulerv1.ProcessState_PROCESS_STATE_STARTING:    "NOT READY YET",
		schedulerv1.ProcessState_PROCESS_STATE_DRAINING:    "DRAINING",
	} {
		s := few(t)
		s.told(&schedulerv1.ListEndpointsResponse{Process: process, Endpoints: s.endpoints}, nil, noon)
		l := look{address: "127.0.0.1:9090", width: plainWidth, order: ByLoad}
		if got := l.head(s.view(noon))[0]; !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q at its end", process, got, want)
		}
	}
}

// The time since a reading, which changes with every view, does not move the columns behind it.
func TestColumnsStayWhereTheyAre(t *testing.T) {
	place := map[int]bool{}
	for _, age := range []float64{0.4, 63, 400, 1500, 18_000} {
		v := few(t).view(noon)
		v.endpoints = v.endpoints[:1]
		v.endpoints[0].EngineMetrics.AgeMs = age
		l := look{address: "127.0.0.1:9090", width: plainWidth, order: ByLoad}
		for _, line := range l.block(v, 0, nil, 0) {
			if i := strings.Index(line, "picks/s"); strings.HasPrefix(line, "endpoint") && i > 0 {
				place[i] = true
			}
		}
	}
	if len(place) != 1 {
		t.Errorf("picks/s stands at %v", place)
	}
}

func TestDecisionsAreCountedOnce(t *testing.T) {
	s := newState(noon)
	s.tailed(3)
	a, b, c := decide(t, 1, "a", noon, warm("", 0, 0)), decide(t, 2, "b", noon, warm("", 0, 0)), decide(t, 1, "a", noon.Add(1), warm("", 0, 0))
	for _, x := range []*schedulerv1.Explanation{a, b} {
		s.decided(x, 0, noon)
	}
	s.tailed(3)
	for _, x := range []*schedulerv1.Explanation{a, b, c} { // c is the first of a server that started anew
		s.decided(x, 0, noon)
	}
	if v := s.view(noon); v.seen != 3 || len(v.decisions) != 3 {
		t.Errorf("%d are counted, %d kept", v.seen, len(v.decisions))
	}
}

// TestBreakEvenStandsOnce: it is the pool's.
func TestBreakEvenStandsOnce(t *testing.T) {
	even := 2.25
	v := &view{hit: math.NaN(), endpoints: []endpoint{
		{Endpoint: &schedulerv1.Endpoint{Rates: &schedulerv1.LearntRates{BreakEven: &even}}}, {Endpoint: &schedulerv1.Endpoint{}},
	}}
	if got := totals(v); !strings.HasSuffix(got, "rates known of 1, break-even 2.25") {
		t.Errorf("got %q", got)
	}
}

func TestRates(t *testing.T) {
	var w window
	for i := range 100 {
		w.add(noon.Add(-time.Duration(i)*time.Second), 2, 3, 4)
	}
	if got := w.rate(noon, noon.Add(-time.Hour)); got < 1.99 || got > 2.3 {
		t.Errorf("%g per second", got)
	}
	if got := w.hit(noon); got != 0.75 {
		t.Errorf("hit %g", got)
	}
	if got := w.rate(noon.Add(time.Minute), noon); got != 0 {
		t.Errorf("%g per second a minute later", got)
	}
	var young window
	young.add(noon.Add(2*time.Second), 6, 0, 0)
	if got := young.rate(noon.Add(2*time.Second), noon); got != 3 {
		t.Errorf("%g per second after two seconds", got)
	}
}
