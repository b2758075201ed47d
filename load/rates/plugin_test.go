package rates

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// pinPicker picks the endpoint whose ordinal the request's model name says, 'a' being 0.
var pinPicker = scheduling.PluginType{
	Type: "pin-picker",
	New:  func(*scheduling.Builder) (any, error) { return pin{}, nil },
}

type pin struct{}

func (pin) Pick(c *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, int(c.Request.Model[0]-'a'))
}

// world is a plugin in a real scheduler over endpoints whose load a table says.
type world struct {
	testing.TB
	table     schedtest.Table
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	plugin    *Plugin
	now       time.Duration
	id        uint64
	choices   int  // that requests ask for
	whole     bool // requests are not streamed
}

func newWorld(tb testing.TB, parameters string, specs ...scheduling.EndpointSpec) *world {
	tb.Helper()
	w := &world{TB: tb, pool: scheduling.NewPool()}
	for i := range specs {
		if specs[i].Address == "" {
			specs[i].Address = "10.0.0." + string(rune('1'+i)) + ":8000"
		}
		w.table.Endpoints = append(w.table.Endpoints, schedtest.Endpoint{
			Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(1000)),
		})
	}
	w.pool.Update(specs)
	w.configure(parameters)
	tb.Cleanup(w.pool.Watch(func(s *scheduling.Snapshot) { w.scheduler.SnapshotChanged(s) }))
	return w
}

func (w *world) configure(parameters string) {
	w.Helper()
	cfg := schedtest.Config([]scheduling.Spec{
		{Name: "learner", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)},
	}, pinPicker.Type)
	s, err := scheduling.Build(append(w.table.Types(), Type(), pinPicker), cfg, w.scheduler)
	if err != nil {
		w.Fatal(err)
	}
	w.scheduler = s
	w.plugin = s.Plugin("learner").(*Plugin)
	s.SnapshotChanged(w.pool.Snapshot())
}

// pick sends a request to an endpoint.
func (w *world) pick(endpoint int) *scheduling.Flight {
	w.Helper()
	w.id++
	c := w.scheduler.Begin(w.pool.Snapshot(), &scheduling.Request{ID: w.id, Model: string(rune('a' + endpoint)), Choices: w.choices, Stream: !w.whole}, w.now)
	defer w.scheduler.End(c)
	w.scheduler.Produce(w.Context(), c)
	f, err := w.scheduler.Commit(c)
	if err != nil {
		w.Fatal(err)
	}
	return f
}

func good(prompt, cached, completion int) scheduling.Outcome {
	return scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: prompt, CachedTokens: cached, CompletionTokens: completion}}
}

// serve runs requests of 1,000 uncached tokens one after the other, each with so long to its first token.
func (w *world) serve(endpoint, n int, ttft time.Duration, o scheduling.Outcome) {
	w.Helper()
	for range n {
		f := w.pick(endpoint)
		w.now += ttft
		f.FirstToken(w.now)
		w.now += 100 * time.Millisecond
		f.Done(o, w.now)
	}
}

func (w *world) rates(endpoint int) Learnt {
	w.Helper()
	l, ok := w.plugin.Rates(endpoint, w.pool.Snapshot().Endpoints[endpoint].Generation)
	if !ok {
		w.Fatalf("nothing is known of endpoint %d", endpoint)
	}
	return l
}

func endpoints(n int) []scheduling.EndpointSpec { return make([]scheduling.EndpointSpec, n) }

func TestStartsFromTheConstant(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", endpoints(1)...)
	if l := w.rates(0); l.PrefillMsPerToken != 1 || l.WaitMsPerToken != 1 || l.Confidence != 0 || l.BreakEven != 2 {
		t.Errorf("%+v, want 1 ms a token, and α of a pool that is half busy", l)
	}
	d1 := 0.1
	if p := w.plugin.Pressure(); p != (scheduling.PoolPressure{Utilisation: 0.5, DecodeStall: 1, CompanyMs: 1.5 * 256 * d1}) {
		t.Errorf("%+v", p)
	}
}

// Two classes and, within one, an endpoint that is three times slower than its fellow.
func TestEndpointsAreToldApart(t *testing.T) {
	gpu := func(name string) scheduling.EndpointSpec {
		return scheduling.EndpointSpec{Labels: map[string]string{"gpu": name}}
	}
	w := newWorld(t, "classLabel: gpu", gpu("h100"), gpu("h100"), gpu("l4"), gpu("l4"))
	for range 60 {
		w.serve(0, 1, 100*time.Millisecond, good(1000, 0, 2))
		w.serve(1, 1, 300*time.Millisecond, good(1000, 0, 2))
		w.serve(2, 1, 2*time.Second, good(1000, 0, 2))
	}
	fast, slow, other, unused := w.rates(0), w.rates(1), w.rates(2), w.rates(3)
	if r := slow.PrefillMsPerToken / fast.PrefillMsPerToken; r < 2.2 || r > 3.2 {
		t.Errorf("the slow endpoint is taken to be %v times slower than its fellow, want about 3", r)
	}
	if r := other.PrefillMsPerToken / fast.PrefillMsPerToken; r < 12 || r > 24 {
		t.Errorf("the other class is taken to be %v times slower, want about 20", r)
	}
	if !about(unused.PrefillMsPerToken, other.PrefillMsPerToken, 0.2) {
		t.Errorf("an endpoint that served nothing: %v ms a token, its class's %v", unused.PrefillMsPerToken, other.PrefillMsPerToken)
	}
}

// A slow endpoint that nobody picks any more is taken for one like the others again.
func TestSlownessIsForgotten(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	for range 40 {
		w.serve(0, 1, 100*time.Millisecond, good(1000, 0, 1))
		w.serve(1, 1, 400*time.Millisecond, good(1000, 0, 1))
	}
	before := w.rates(1).PrefillMsPerToken / w.rates(0).PrefillMsPerToken
	w.now += 20 * time.Minute
	w.serve(0, 1, 100*time.Millisecond, good(1000, 0, 1))
	after := w.rates(1).PrefillMsPerToken / w.rates(0).PrefillMsPerToken
	if before < 2.5 || after > 1.2 {
		t.Errorf("slower by %v, after 20 minutes by %v", before, after)
	}
}

// What an engine says it had cached counts, not what was expected.
func TestCachedTokensOfTheEngineCount(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.serve(0, 200, 120*time.Millisecond, good(3000, 1000, 2)) // 2,000 computed, 1,000 expected
	told := w.rates(0).PrefillMsPerToken
	w = newWorld(t, "", endpoints(1)...)
	w.serve(0, 200, 120*time.Millisecond, good(-1, -1, 2))
	if untold := w.rates(0).PrefillMsPerToken; !about(untold/told, 2, 0.25) {
		t.Errorf("%v ms a token where the engine says how much was cached, %v where it does not: want half of it", told, untold)
	}
}

func TestWhatTeachesNothing(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	failed := good(1000, 0, 2)
	failed.Status = 503
	w.serve(0, 3, time.Millisecond, failed)
	gone := good(1000, 0, 2)
	gone.Reason = scheduling.EndDisconnect
	w.serve(0, 4, time.Millisecond, gone)
	f := w.pick(0) // not streamed
	f.Done(good(1000, 0, 2), w.now+time.Millisecond)
	f = w.pick(0) // served by another one
	f.Served(w.pool.Snapshot().Endpoints[1], f.PickedAt)
	f.FirstToken(w.now + time.Millisecond)
	f.Done(good(1000, 0, 2), w.now+time.Second)
	if l := w.rates(0); l.Confidence != 0 || l.PrefillMsPerToken != 1000./15928 {
		t.Errorf("%+v", l)
	}
	for i, want := range []uint64{skipFailed: 7, skipMoved: 1, skipUnstream: 1} {
		if got := w.plugin.known.skipped[i].Load(); got != want {
			t.Errorf("%d skipped as %s, want %d", got, skipNames[i], want)
		}
	}
	for i := range 2 { // nothing stays behind
		m := &w.plugin.known.endpoints.Find(i, w.pool.Snapshot().Endpoints[i].Generation).Value.meter
		if m.pending != 0 || m.decoding != 0 {
			t.Errorf("endpoint %d still has %d pending and %d decoding", i, m.pending, m.decoding)
		}
	}
}

// TestC46_OnlyGoodEndsTeach: of 110 requests 30 are cut by their clients after one token, 10 are refused with a 429, 10 fail with a
// 500 in 3 ms, and the times of 10 are estimates, as their streams ended early. What is learnt is what the other 50 alone teach:
// an engine that fails fast is not a fast one, and an estimate confirms no estimate.
func TestC46_OnlyGoodEndsTeach(t *testing.T) {
	outcome := func(status int, reason scheduling.EndReason) scheduling.Outcome {
		o := good(1000, 0, 2)
		o.Status, o.Reason = status, reason
		return o
	}
	learn := func(faults bool) *world {
		w := newWorld(t, "", endpoints(2)...)
		for i := range 50 {
			w.serve(0, 1, 500*time.Millisecond, good(1000, 0, 100))
			if !faults {
				continue
			}
			if i < 30 {
				w.serve(0, 1, 3*time.Millisecond, outcome(200, scheduling.EndDisconnect))
			}
			if i < 10 {
				w.serve(0, 1, 3*time.Millisecond, outcome(429, scheduling.EndComplete))
				w.serve(0, 1, 3*time.Millisecond, outcome(200, scheduling.EndUnseen))
				f := w.pick(0) // without a first token
				w.now += 3 * time.Millisecond
				f.Done(outcome(500, scheduling.EndComplete), w.now)
			}
		}
		return w
	}
	with, without := learn(true), learn(false)
	for i := range 2 {
		got, want := with.rates(i).LearntRates, without.rates(i).LearntRates
		if !about(got.PrefillMsPerToken, want.PrefillMsPerToken, 3e-3) || !about(got.WaitMsPerToken, want.WaitMsPerToken, 3e-3) || got.Confidence != want.Confidence {
			t.Errorf("endpoint %d: %+v, want %+v", i, got, want)
		}
	}
	got, want := with.plugin.Pressure(), without.plugin.Pressure()
	if got.DecodeStall != want.DecodeStall || got.CompanyMs != want.CompanyMs || got.Confidence != want.Confidence {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n := with.plugin.known.skipped[skipFailed].Load(); n != 60 {
		t.Errorf("%d skipped, want 60", n)
	}
}

// TestC46_LearntFromWhatTheDecisionSaw: what was ahead of a request is what its decision saw, not what is there at its end.
func TestC46_LearntFromWhatTheDecisionSaw(t *testing.T) {
	learn := func(later int64) scheduling.LearntRates {
		w := newWorld(t, "", endpoints(1)...)
		for range 60 {
			f := w.pick(0)
			w.table.Endpoints[0].Load.Tokens = later
			w.now += 100 * time.Millisecond
			f.FirstToken(w.now)
			f.Done(good(-1, -1, 2), w.now+time.Second)
			w.now += time.Second
			w.table.Endpoints[0].Load.Tokens = 0
		}
		return w.rates(0).LearntRates
	}
	if got, want := learn(100_000), learn(0); got != want {
		t.Errorf("%+v with load that came after the picks, want %+v", got, want)
	}
}

// TestC05_RatesOfAnInstance: an endpoint leaves and returns under its address while requests run. What is busy is back at nothing
// when they end, and the newcomer is not blamed for what its predecessor did.
func TestC05_RatesOfAnInstance(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	for range 40 {
		w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 1))
		w.serve(1, 1, 100*time.Millisecond, good(1000, 0, 1))
	}
	known := func(ordinal int) *endpoint {
		return &w.plugin.known.endpoints.Find(ordinal, w.pool.Snapshot().Endpoints[ordinal].Generation).Value
	}
	slow := known(0).speed.latest()
	before, decoding := w.pick(0), w.pick(0)
	decoding.FirstToken(w.now + time.Millisecond)
	w.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.2:8000"}})
	w.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000", UID: "2"}, {Address: "10.0.0.2:8000"}})
	ordinal := 0
	for w.pool.Snapshot().Endpoints[ordinal].Address != "10.0.0.1:8000" {
		ordinal++
	}
	if fresh := known(ordinal).speed.latest(); slow < 1.4 || fresh != 1 {
		t.Errorf("the one before was %v times slower than its class, the newcomer is taken to be %v times slower", slow, fresh)
	}
	after := w.pick(ordinal)
	if n := w.plugin.known.busy.busy; n != 1 {
		t.Errorf("%d endpoints are busy, want the newcomer alone", n)
	}
	for _, f := range []*scheduling.Flight{before, decoding, after} {
		f.Done(good(1000, 0, 2), w.now+time.Second)
	}
	if n := w.plugin.known.busy.busy; n != 0 {
		t.Errorf("%d endpoints are busy after all ended", n)
	}
	if m := &known(ordinal).meter; m.pending != 0 || m.decoding != 0 {
		t.Errorf("the newcomer has %d pending and %d decoding", m.pending, m.decoding)
	}
}

func TestUtilisation(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	// One of two endpoints prefills for 600 of every 1,000 ms: 30 %.
	for range 600 {
		f := w.pick(0)
		w.now += 600 * time.Millisecond
		f.FirstToken(w.now)
		w.now += 400 * time.Millisecond
		f.Done(good(1000, 0, 2), w.now)
	}
	p := w.plugin.Pressure()
	if math.Abs(p.Utilisation-0.3) > 0.02 || math.Abs(p.Alpha()-0.3/0.7) > 0.04 {
		t.Errorf("utilisation %v, α %v, want 0.3 and 0.43", p.Utilisation, p.Alpha())
	}
	w.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}})
	w.table.Endpoints = w.table.Endpoints[:1]
	for range 600 {
		f := w.pick(0)
		w.now += 600 * time.Millisecond
		f.FirstToken(w.now)
		w.now += 400 * time.Millisecond
		f.Done(good(1000, 0, 2), w.now)
	}
	if p := w.plugin.Pressure(); math.Abs(p.Utilisation-0.6) > 0.03 {
		t.Errorf("utilisation %v with half of the endpoints, want 0.6", p.Utilisation)
	}
}

// Prefill that holds decodes up shows in what is learnt of decodes, through the whole way of requests.
func TestDecodesAreSeenToBeHeldUp(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	for i := range 400 {
		f := w.pick(0)
		w.now += 50 * time.Millisecond
		f.FirstToken(w.now)
		w.now += 500 * time.Millisecond // alone: 5 ms for each of 100 tokens
		if i%2 == 0 {
			other := w.pick(0)
			w.now += 300 * time.Millisecond // in which f gets no token
			other.FirstToken(w.now)
			other.Done(good(1000, 0, 1), w.now)
		}
		f.Done(good(1000, 0, 101), w.now)
	}
	if p := w.plugin.Pressure(); math.Abs(p.DecodeStall-1) > 0.15 || p.Confidence < 0.8 {
		t.Errorf("%+v, want a stall of 1", p)
	}
}

func TestReloadKeepsWhatIsLearnt(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.serve(0, 100, time.Second, good(1000, 0, 2))
	learnt := w.rates(0)
	w.configure("")
	if got := w.rates(0); got != learnt {
		t.Errorf("after a reload: %+v, before: %+v", got, learnt)
	}
	w.configure("peakPrefillThroughput: 1000")
	if got := w.rates(0); got.Confidence != 0 || got.PrefillMsPerToken != 1 {
		t.Errorf("after a change of the constant: %+v, want a new start", got)
	}
}

func TestClassesAreBounded(t *testing.T) {
	specs := make([]scheduling.EndpointSpec, 2*classes.Max)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{
			Address: "10.0.1." + strings.Repeat("1", 1+i%2) + ":" + string(rune('1'+i/10%9)) + string(rune('0'+i%10)) + "00",
			Labels:  map[string]string{"gpu": strings.Repeat("x", i)},
		}
	}
	w := newWorld(t, "classLabel: gpu", specs...)
	if n := w.plugin.known.classes.Len(); n != classes.Max+1 {
		t.Errorf("%d classes, want %d and one for the rest", n, classes.Max)
	}
}

// TestC24_ClassesOfEnginesThatWent: with a class for each rollout, those that went make room, and none is learnt with others.
func TestC24_ClassesOfEnginesThatWent(t *testing.T) {
	w := newWorld(t, "classLabel: version", endpoints(1)...)
	for i := range 3 * classes.Max {
		w.pool.Update([]scheduling.EndpointSpec{{
			Address: "10.0.0.1:8000", UID: strings.Repeat("u", i+1), Labels: map[string]string{"version": strings.Repeat("v", i+1)},
		}})
		if n := w.plugin.known.classes.Len(); n > classes.Max || w.plugin.known.classes.Full() {
			t.Fatalf("rollout %d: %d classes, learnt with others: %v", i, n, w.plugin.known.classes.Full())
		}
		w.serve(0, 1, time.Second, good(1000, 0, 2))
		if l := w.rates(0); l.Confidence == 0 {
			t.Fatalf("rollout %d learns nothing", i)
		}
	}
}

func TestRefusesWhatCannotBe(t *testing.T) {
	for _, p := range []float64{0, -1, math.NaN(), math.Inf(1), 1e10} {
		if err := (Parameters{PeakPrefillThroughput: p}).Validate(); err == nil || !strings.Contains(err.Error(), "peakPrefillThroughput") {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// Requests end on many goroutines while others are picked.
func TestConcurrently(t *testing.T) {
	w := newWorld(t, "", endpoints(3)...)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				now := time.Duration(n) * time.Millisecond
				c := w.scheduler.Begin(w.pool.Snapshot(), &scheduling.Request{ID: uint64(i*1000 + n + 1), Model: string(rune('a' + n%3)), Stream: true}, now)
				w.scheduler.Produce(t.Context(), c)
				f, err := w.scheduler.Commit(c)
				w.scheduler.End(c)
				if err != nil {
					t.Error(err)
					return
				}
				f.FirstToken(now + 10*time.Millisecond)
				f.Done(good(1000, 0, 5), now+20*time.Millisecond)
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		m := &w.plugin.known.endpoints.Find(i, w.pool.Snapshot().Endpoints[i].Generation).Value.meter
		if m.pending != 0 || m.decoding != 0 {
			t.Errorf("endpoint %d: %d pending, %d decoding", i, m.pending, m.decoding)
		}
	}
	if first, _ := w.plugin.Samples(); first != 1600 || w.plugin.known.busy.busy != 0 {
		t.Errorf("%d samples, %d endpoints busy", first, w.plugin.known.busy.busy)
	}
}

func TestDecidingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t, "", endpoints(9)...)
	w.serve(0, 50, time.Second, good(1000, 0, 20))
	ctx, request := t.Context(), &scheduling.Request{ID: 1, Model: "a"}
	if n := testing.AllocsPerRun(200, func() {
		c := w.scheduler.Begin(w.pool.Snapshot(), request, w.now)
		w.scheduler.Produce(ctx, c)
		w.scheduler.Preview(c)
		w.scheduler.End(c)
	}); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", endpoints(2)...)
	w.serve(0, 3, time.Second, good(1000, 0, 2))
	collector := NewCollector(scheduling.PluginsOf[*Plugin](w.scheduler))
	if err := testutil.CollectAndCompare(collector, strings.NewReader(`
# HELP sluice_rates_samples_total Requests whose time to the first token taught something.
# TYPE sluice_rates_samples_total counter
sluice_rates_samples_total{producer="learner"} 3
# HELP sluice_rates_decode_samples_total Requests whose time after the first token taught something.
# TYPE sluice_rates_decode_samples_total counter
sluice_rates_decode_samples_total{producer="learner"} 3
# HELP sluice_rates_classes Classes of endpoints that are learnt apart.
# TYPE sluice_rates_classes gauge
sluice_rates_classes{producer="learner"} 1
`), "sluice_rates_samples_total", "sluice_rates_decode_samples_total", "sluice_rates_classes"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(collector); n != 2*4+4+2+3+1 {
		t.Errorf("%d series", n)
	}
}

func BenchmarkFill512(b *testing.B) {
	specs := make([]scheduling.EndpointSpec, 512)
	for i := range specs {
		specs[i].Address = "10." + string(rune('0'+i/100)) + "." + string(rune('0'+i/10%10)) + "." + string(rune('0'+i%10)) + ":8000"
	}
	w := newWorld(b, "", specs...)
	c := w.scheduler.Begin(w.pool.Snapshot(), &scheduling.Request{ID: 1, Model: "a"}, 0)
	defer w.scheduler.End(c)
	w.scheduler.Produce(b.Context(), c)
	w.scheduler.Preview(c)
	b.ReportAllocs()
	for b.Loop() {
		w.plugin.Fill(c)
	}
}
