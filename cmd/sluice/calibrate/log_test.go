package calibrate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/calibrate"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// truth is a deployment.
type truth struct {
	model  string
	peak   float64 // tokens per second
	wait   float64 // tokens ahead per second
	baseMs float64
	saved  func(at time.Time) float64 // the median of what the sticky endpoint saves, in tokens
}

var day = time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)

const block = 16

// log makes n decisions over a day of requests to two endpoints, of which one holds what is saved. Times to first tokens are
// off by 10 % (log-normal), and one in 30 is held up four times as long by something else.
func (w *truth) log(n int, rng *rand.Rand) []*decisionv1.Decision {
	all := make([]*decisionv1.Decision, n)
	for i := range all {
		at := day.Add(time.Duration(i) * 24 * time.Hour / time.Duration(n))
		saved := max(block, block*math.Round(w.saved(at)*math.Exp(0.4*rng.NormFloat64())/block))
		tail := math.Round(50 + saved*0.2*rng.Float64())
		ahead := [2]float64{0, math.Round(rng.ExpFloat64() * 3000)}
		if rng.IntN(3) > 0 {
			ahead[0] = math.Round(rng.ExpFloat64() * 6000)
		}
		pick := 0
		uncached := tail
		if rng.IntN(4) == 0 {
			pick, uncached = 1, tail+saved
		}
		ms := (w.baseMs + uncached/w.peak*1000 + ahead[pick]/w.wait*1000) * math.Exp(0.1*rng.NormFloat64())
		if rng.IntN(30) == 0 {
			ms *= 4
		}
		candidate := func(ordinal int, match, uncached float64) *decisionv1.Candidate {
			return &decisionv1.Candidate{
				Ordinal: uint32(ordinal), Address: fmt.Sprintf("10.0.0.%d:8000", ordinal), Name: fmt.Sprint("pod-", ordinal), Labels: map[string]string{"gpu": "h100"},
				State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				PrefixCacheMatches: []*decisionv1.PrefixCacheMatch{{
					MatchBlocks: int64(match) / block, CachedBlockCount: int64(match) / block, TotalBlocks: int64(saved+tail) / block, BlockSizeTokens: block,
				}},
				InFlightLoads:         []*decisionv1.InFlightLoad{{Tokens: int64(ahead[ordinal]), Decoding: 5}},
				UncachedRequestTokens: []*decisionv1.UncachedRequestTokens{{Tokens: int64(uncached)}},
			}
		}
		all[i] = &decisionv1.Decision{
			Id: uint64(i + 1), TimeUnixNano: at.UnixNano(), Picks: []uint32{uint32(pick)},
			Request:    &decisionv1.Request{Model: w.model, Stream: true},
			Columns:    []*decisionv1.Column{{DataType: "PrefixCacheMatchInfo"}, {DataType: "InFlightLoad"}, {DataType: "UncachedRequestTokens"}},
			Candidates: []*decisionv1.Candidate{candidate(0, saved, tail), candidate(1, 0, tail+saved)},
			Outcome:    &decisionv1.Outcome{Reason: "complete", Status: 200, TtftMs: &ms, TotalMs: ms},
		}
	}
	return all
}

func always(tokens float64) func(time.Time) float64 { return func(time.Time) float64 { return tokens } }

func options() calibrate.Options {
	return calibrate.Options{By: "model", Threshold: 0.8, Alpha: 1, Kappa: 0.1}
}

func sequence(all ...[]*decisionv1.Decision) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		for _, some := range all {
			for _, d := range some {
				if !yield(d, nil) {
					return
				}
			}
		}
	}
}

func measured(t *testing.T, o calibrate.Options, all ...[]*decisionv1.Decision) *calibrate.Report {
	t.Helper()
	r, err := calibrate.Run(t.Context(), sequence(all...), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// within checks a value, and that its interval holds the truth without saying nothing.
func within(t *testing.T, what string, got *calibrate.Interval, want, share float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s was not measured", what)
	case math.Abs(got.Value-want) > share*want:
		t.Errorf("%s is %.5g, want %.5g within %v %%", what, got.Value, want, 100*share)
	case got.Low > want*(1+share/2) || got.High < want*(1-share/2) || got.Low > got.Value || got.High < got.Value:
		t.Errorf("%s is within %.5g and %.5g, want %.5g", what, got.Low, got.High, want)
	case got.Wide() > 0.15:
		t.Errorf("%s is within %.5g and %.5g, which says little", what, got.Low, got.High)
	}
}

// What was measured on deployments comes out of their logs: throughput and break-even within 5 %.
func TestMeasuredFiguresAreRecovered(t *testing.T) {
	t.Parallel()
	deployments := []truth{
		{model: "slow", peak: 743, wait: 743, baseMs: 60, saved: always(4.092 * 743)},
		{model: "middle", peak: 15928, wait: 14000, baseMs: 25, saved: always(1.0 * 15928)},
		{model: "fast", peak: 27261, wait: 27261, baseMs: 15, saved: always(0.143 * 27261)},
	}
	breakEven := map[string]float64{"slow": 4092, "middle": 1000, "fast": 143}
	rng := rand.New(rand.NewPCG(1, 1))
	var logs [][]*decisionv1.Decision
	for _, w := range deployments {
		logs = append(logs, w.log(3000, rng))
	}
	r := measured(t, options(), logs...)
	if len(r.Deployments) != 3 || r.Decisions != 9000 || len(r.Skipped) != 0 {
		t.Fatalf("%d deployments, skipped %v", len(r.Deployments), r.Skipped)
	}
	for _, d := range r.Deployments {
		for _, w := range deployments {
			if w.model == d.Name {
				within(t, d.Name+": throughput", d.PeakPerS, w.peak, 0.05)
				within(t, d.Name+": wait", d.WaitPerS, w.wait, 0.05)
				within(t, d.Name+": break-even", d.BreakEvenMs, breakEven[d.Name], 0.05)
				within(t, d.Name+": break-even at its price", d.PricedMs, 2.5*breakEven[d.Name], 0.05)
			}
		}
	}
}

// A break-even that moves by a factor of 16 within a day is seen to.
func TestMovingBreakEven(t *testing.T) {
	t.Parallel()
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: func(at time.Time) float64 {
		return 2560 * math.Pow(4, -math.Cos(float64(at.Hour())/24*2*math.Pi)) // 640 at midnight, 10240 at noon
	}}
	r := measured(t, options(), w.log(6000, rand.New(rand.NewPCG(1, 2))))
	d := r.Deployments[0]
	if len(d.Periods) != 24 || d.Periods[12].Begin.Hour() != 12 {
		t.Fatalf("%d periods", len(d.Periods))
	}
	if f := d.Periods[12].BreakEvenMs / d.Periods[0].BreakEvenMs; math.Abs(f-16) > 2.5 {
		t.Errorf("moved by %v", f)
	}
	if got := d.Periods[12].BreakEvenMs; math.Abs(got-1024) > 100 {
		t.Errorf("at noon %v ms", got)
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "moved by a factor of 1") {
		t.Errorf("notes %q", r.Notes)
	}
}

// What engines count is taken before what was predicted.
func TestEnginesKnowBetter(t *testing.T) {
	t.Parallel()
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: always(5000)}
	log := w.log(2000, rand.New(rand.NewPCG(1, 3)))
	for _, d := range log {
		u := d.GetCandidates()[d.GetPicks()[0]].GetUncachedRequestTokens()[0]
		d.Outcome.PromptTokens, d.Outcome.CachedTokens = proto.Uint64(uint64(u.GetTokens())+400), proto.Uint64(400)
		u.Tokens *= 3 // the index knew of less
	}
	within(t, "throughput", measured(t, options(), log).Deployments[0].PeakPerS, 10000, 0.05)
}

func TestByEndpointAndLabel(t *testing.T) {
	t.Parallel()
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: always(5000)}
	log := w.log(400, rand.New(rand.NewPCG(1, 4)))
	for by, want := range map[string][]string{"endpoint": {"pod-0", "pod-1"}, "label:gpu": {"h100"}, "label:none": {""}} {
		o := options()
		o.By = by
		var names []string
		for _, d := range measured(t, o, log).Deployments {
			names = append(names, d.Name)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", by, diff)
		}
	}
}

// What tells nothing is counted, by its reason, and too little is no measurement.
func TestSkipped(t *testing.T) {
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: always(5000)}
	log := w.log(8, rand.New(rand.NewPCG(1, 5)))
	log[0].Outcome = nil
	log[1].Outcome.Status = 503
	log[2].Request.Stream = false
	log[3].Outcome.ServedBy = "10.0.0.9:8000"
	log[4].Outcome.TtftMs = nil
	log[5].Candidates[log[5].GetPicks()[0]].InFlightLoads = nil
	log[6].Picks = nil
	r := measured(t, options(), log)
	want := map[string]uint64{
		calibrate.NoOutcome: 1, calibrate.Failed: 1, calibrate.NotStreamed: 1, calibrate.Elsewhere: 1, calibrate.NoTTFT: 1, calibrate.NoWork: 1,
		gatereport.NoPick: 1,
	}
	if diff := cmp.Diff(want, r.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if d := r.Deployments[0]; d.PeakPerS != nil || d.Samples != 1 || !strings.Contains(r.Notes[0], "too few") {
		t.Errorf("%+v, notes %q", d, r.Notes)
	}
}

// Prompts that are all alike do not tell a token's time from the rest, and the interval says so.
func TestUncertaintyIsSaid(t *testing.T) {
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 200, saved: always(16)}
	log := w.log(200, rand.New(rand.NewPCG(1, 6)))
	for _, d := range log {
		d.Candidates[0].InFlightLoads[0].Tokens, d.Candidates[1].InFlightLoads[0].Tokens = 0, 0
		ms := 210 * math.Exp(0.2*rand.New(rand.NewPCG(d.GetId(), 0)).NormFloat64())
		d.Outcome.TtftMs = &ms
	}
	r := measured(t, options(), log)
	notes := strings.Join(r.Notes, "\n")
	if d := r.Deployments[0]; d.PeakPerS != nil && d.PeakPerS.Wide() < 0.25 || !strings.Contains(notes, "uncertain") && !strings.Contains(notes, "too few") {
		t.Errorf("%+v, notes %q", d.PeakPerS, notes)
	}
}

// Many deployments and large logs leave memory bounded, and the figures right.
func TestBounds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a large log")
	}
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: always(5000)}
	log := w.log(30000, rand.New(rand.NewPCG(1, 7)))
	for i := range 100 {
		log[i].Request.Model = fmt.Sprint("model ", i)
	}
	r := measured(t, options(), log)
	if len(r.Deployments) != 64 || r.Skipped["more than 64 deployments"] != 30000-64 {
		t.Errorf("%d deployments, skipped %v", len(r.Deployments), r.Skipped)
	}
	r = measured(t, options(), log[100:])
	if d := r.Deployments[0]; d.Samples != 29900 {
		t.Errorf("%d samples", d.Samples)
	}
	within(t, "throughput", r.Deployments[0].PeakPerS, 10000, 0.05)
}

func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := truth{model: "m", peak: 10000, wait: 10000, baseMs: 20, saved: always(5000)}
	if _, err := calibrate.Run(ctx, sequence(w.log(5, rand.New(rand.NewPCG(1, 8)))), options()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	r, err := calibrate.Run(t.Context(), func(yield func(*decisionv1.Decision, error) bool) {
		_ = yield(nil, &decisionlog.Skip{Reason: decisionlog.SkippedLong})
	}, options())
	if err != nil || r.Skipped[decisionlog.SkippedLong] != 1 {
		t.Errorf("%v %v", r, err)
	}
	for _, o := range []calibrate.Options{{By: "pod", Threshold: 0.8}, {By: "label:", Threshold: 0.8}, {By: "model", Threshold: 2}, {By: "model", Threshold: 0.8, Alpha: -1}, {By: "model", Threshold: 0.8, Kappa: math.NaN()}} {
		if _, err := calibrate.New(o); err == nil {
			t.Errorf("%+v is no error", o)
		}
	}
}
