package gatereport_test

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// fixtureGaps are 702 gaps in ms with what was measured on a deployment whose gate had a bar of 18 s: p50 40, p90 6,459,
// p99 15,148, 4 above the bar, and 121 (17.2 %) of at least 5 s below it.
func fixtureGaps() []int64 {
	rng := rand.New(rand.NewPCG(7, 702))
	between := func(low, high int64) int64 { return low + rng.Int64N(high-low+1) }
	gaps := make([]int64, 0, 702)
	for i := range 702 {
		switch rank := i + 1; {
		case rank == 351:
			gaps = append(gaps, 40)
		case rank < 200:
			gaps = append(gaps, between(-3000, 0))
		case rank < 351:
			gaps = append(gaps, between(0, 40))
		case rank < 578:
			gaps = append(gaps, between(40, 4999))
		case rank == 632:
			gaps = append(gaps, 6459)
		case rank < 632:
			gaps = append(gaps, between(5000, 6459))
		case rank == 695:
			gaps = append(gaps, 15148)
		case rank < 695:
			gaps = append(gaps, between(6459, 15148))
		case rank <= 698:
			gaps = append(gaps, between(15148, 18000))
		default:
			gaps = append(gaps, between(18001, 40000))
		}
	}
	rng.Shuffle(len(gaps), func(i, j int) { gaps[i], gaps[j] = gaps[j], gaps[i] })
	return gaps
}

// fixturePeak makes whole tokens of whole ms.
const fixturePeak = 16000

// fixture is a scheduler over three endpoints of which the test says what is known.
type fixture struct {
	tb        testing.TB
	table     *schedtest.Table
	scheduler *scheduling.Scheduler
	id        uint64
}

var fixtureBegin = time.Date(2026, 11, 29, 22, 30, 0, 0, time.UTC)

func newFixture(tb testing.TB, parameters string, profile ...string) *fixture {
	tb.Helper()
	f := &fixture{tb: tb, table: &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 3)}}
	var plugins []scheduling.Spec
	if slices.Contains(profile, gate.TypeName) {
		plugins = append(plugins, scheduling.Spec{Name: gate.TypeName, Type: gate.TypeName, Decode: schedtest.YAML(parameters)})
	}
	f.scheduler = f.table.Build(tb, []scheduling.PluginType{gate.Type(), schedtest.First}, plugins, profile...)
	return f
}

// decide records a decision about a prompt that endpoint 0 holds to nine tenths, with a gap in tokens to endpoint 1; endpoint
// 2 is busier than both. No match makes nobody sticky.
func (f *fixture) decide(model string, gapTokens int64, matched int) *decisionv1.Decision {
	f.tb.Helper()
	load := func(tokens int64) *scheduling.InFlightLoad {
		return &scheduling.InFlightLoad{Tokens: tokens, Requests: 1}
	}
	const idle = 1_000_000
	for i, tokens := range []int64{idle + gapTokens, idle, 9 * idle} {
		f.table.Endpoints[i].Load = load(tokens)
		m := scheduling.NewPrefixCacheMatchInfo(0, 10*matched/9/16, 16)
		if i == 0 {
			m.MatchBlocks, m.CachedBlockCount = matched/16, matched/16
		}
		f.table.Endpoints[i].Match = &m
	}
	return f.recorded(model)
}

// recorded is a decision about what the endpoints are now.
func (f *fixture) recorded(model string) *decisionv1.Decision {
	f.tb.Helper()
	f.id++
	c := f.scheduler.Begin(f.table.Pool().Snapshot(), &scheduling.Request{ID: f.id, Model: model}, 0)
	defer f.scheduler.End(c)
	f.scheduler.Produce(f.tb.Context(), c)
	f.scheduler.Preview(c)
	return record.Of(f.scheduler, c, record.Meta{
		UnixNano: fixtureBegin.Add(time.Duration(f.id) * time.Minute).UnixNano(), ConfigHash: "abc",
	})
}

func sequence(all []*decisionv1.Decision) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		for _, d := range all {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// matchedOf is the match of the i-th decision of the fixture, in tokens: at the fixture's throughput it saves 144 to 4,095 ms, as
// was measured.
func matchedOf(i int) int { return 16 * 9 * (16 + i*7%440) }

// fixtureLog are the 702 decisions in their places among 300 with nobody sticky, by two models.
func fixtureLog(tb testing.TB) []*decisionv1.Decision {
	f := newFixture(tb, fmt.Sprintf("{explorationProbability: 0, peakPrefillThroughput: %d}", fixturePeak), gate.TypeName, schedtest.First.Type)
	var all []*decisionv1.Decision
	for i, gap := range fixtureGaps() {
		if i < 300 {
			all = append(all, f.decide("small", 0, 0))
		}
		all = append(all, f.decide([]string{"large", "small"}[i%2], gap*fixturePeak/1000, matchedOf(i)))
	}
	return all
}
