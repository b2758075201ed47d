package latency

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// pinPicker picks the endpoint that the request's ID says, modulo 1,000.
var pinPicker = scheduling.PluginType{
	Type: "pin-picker",
	New:  func(*scheduling.Builder) (any, error) { return pin{}, nil },
}

type pin struct{}

func (pin) Pick(c *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, int(c.Request.ID%1000))
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
	request   scheduling.Request
}

func newWorld(tb testing.TB, parameters string, endpoints int) *world {
	tb.Helper()
	w := &world{TB: tb, pool: scheduling.NewPool(), now: time.Second, request: scheduling.Request{Operation: scheduling.OperationChat, Stream: true, Choices: 1}}
	specs := make([]scheduling.EndpointSpec, endpoints)
	for i := range specs {
		specs[i].Address = address(i)
		w.table.Endpoints = append(w.table.Endpoints, schedtest.Endpoint{
			Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(1000)),
		})
	}
	w.table.Prompt = &scheduling.TokenizedPrompt{Count: 1000}
	w.pool.Update(specs)
	w.configure(parameters)
	tb.Cleanup(w.pool.Watch(func(s *scheduling.Snapshot) { w.scheduler.SnapshotChanged(s) }))
	tb.Cleanup(func() {
		if err := w.scheduler.Close(); err != nil {
			tb.Error(err)
		}
	})
	return w
}

func (w *world) configure(parameters string) {
	w.Helper()
	cfg := schedtest.Config([]scheduling.Spec{
		{Name: "seer", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)},
	}, pinPicker.Type)
	s, err := scheduling.Build(append(w.table.Types(), Type(), pinPicker), cfg, w.scheduler)
	if err != nil {
		w.Fatal(err)
	}
	w.scheduler = s
	w.plugin = s.Plugin("seer").(*Plugin)
	s.SnapshotChanged(w.pool.Snapshot())
}

// begin begins a request that goes to an endpoint.
func (w *world) begin(endpoint int) *scheduling.Cycle {
	w.Helper()
	w.id++
	r := w.request
	r.ID = w.id*1000 + uint64(endpoint)
	c := w.scheduler.Begin(w.pool.Snapshot(), &r, w.now)
	w.scheduler.Produce(w.Context(), c)
	return c
}

// pick sends a request to an endpoint.
func (w *world) pick(endpoint int) *scheduling.Flight {
	w.Helper()
	c := w.begin(endpoint)
	defer w.scheduler.End(c)
	f, err := w.scheduler.Commit(c)
	if err != nil {
		w.Fatal(err)
	}
	return f
}

// predict is what is predicted of a request on an endpoint now.
func (w *world) predict(endpoint int) scheduling.LatencyPrediction {
	w.Helper()
	c := w.begin(endpoint)
	defer w.scheduler.End(c)
	w.scheduler.Preview(c)
	guess, ok := scheduling.ColumnOf[scheduling.LatencyPrediction](c).Get(endpoint)
	if !ok {
		w.Fatalf("nothing is predicted of endpoint %d", endpoint)
	}
	return guess
}

func good(prompt, cached, completion int) scheduling.Outcome {
	return scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: prompt, CachedTokens: cached, CompletionTokens: completion}}
}

// serve runs requests one after the other, each with so long to its first token and 100 tokens that take a second.
func (w *world) serve(endpoint, n int, ttft time.Duration, o scheduling.Outcome) {
	w.Helper()
	for range n {
		f := w.pick(endpoint)
		w.now += ttft
		f.FirstToken(w.now)
		w.now += time.Second
		f.Done(o, w.now)
	}
}

// samples are how many requests have taught something.
func (w *world) samples() uint64 { return w.plugin.known.samples.Load() }

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*math.Abs(want) {
		t.Errorf("%s: %v, want %v within %v %%", what, got, want, share*100)
	}
}

func TestStartsFromTheConstant(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", 1)
	w.table.Endpoints[0].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(8192))
	w.table.Prompt.Count = 8192
	guess := w.predict(0)
	near(t, "TTFT of 8,192 tokens at 1,000 per second", guess.TTFTMs, 8192, 0.03)
	if guess.Confidence != 0 || guess.Residual != 1 || guess.TTFTP90Ms <= guess.TTFTMs || guess.TPOTMs <= 0 {
		t.Errorf("%+v, want a confidence of 0, no residual and a 90th percentile above the median", guess)
	}
	near(t, "sum of the parts", (guess.WaitMs+guess.PrefillMs)*guess.Residual, guess.TTFTMs, 1e-9)
}

func TestLearnsWhatItSees(t *testing.T) {
	w := newWorld(t, "", 2)
	w.serve(0, 300, 400*time.Millisecond, good(1000, 0, 100))
	for endpoint := range 2 {
		guess := w.predict(endpoint)
		near(t, "TTFT", guess.TTFTMs, 400, 0.07)
		near(t, "TPOT", guess.TPOTMs, 1000./99, 0.1)
	}
}

// TestQueuedWorkIsWaitedFor: a prompt behind others waits for what of them is still to be computed, and no longer.
func TestQueuedWorkIsWaitedFor(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", 2)
	idle := w.predict(0)
	first := w.pick(0)
	behind := w.predict(0)
	near(t, "wait behind 1,000 tokens", behind.WaitMs-idle.WaitMs, 850, 0.1)
	if other := w.predict(1); other.TTFTMs != idle.TTFTMs {
		t.Errorf("another endpoint waits too: %v, want %v", other.TTFTMs, idle.TTFTMs)
	}
	w.now += 500 * time.Millisecond
	half := w.predict(0)
	if half.WaitMs >= behind.WaitMs-300 {
		t.Errorf("wait %v after half of it was computed, want much less than %v", half.WaitMs, behind.WaitMs)
	}
	w.now += time.Minute
	if late := w.predict(0); late.WaitMs <= behind.WaitMs {
		t.Errorf("wait %v behind a prompt that is overdue by a minute, want more than %v", late.WaitMs, behind.WaitMs)
	}
	first.FirstToken(w.now)
	if after := w.predict(0); after.WaitMs > idle.WaitMs+100 {
		t.Errorf("wait %v after the first token, want about %v", after.WaitMs, idle.WaitMs)
	}
	first.Done(good(1000, 0, 10), w.now)
	if end := w.predict(0); end.WaitMs != idle.WaitMs {
		t.Errorf("wait %v after the end, want %v", end.WaitMs, idle.WaitMs)
	}
}

// TestMovedWorkIsTheOtherEndpoints: work goes with its request, before and after the first token, and none is left behind.
func TestMovedWorkIsTheOtherEndpoints(t *testing.T) {
	w := newWorld(t, "", 2)
	idle := w.predict(0).WaitMs
	queued, decoding := w.pick(0), w.pick(0)
	decoding.FirstToken(w.now)
	to := w.pool.Snapshot().Endpoints[1]
	queued.Served(to, w.now)
	decoding.Served(to, w.now)
	if left := w.predict(0).WaitMs; left != idle {
		t.Errorf("wait %v at the endpoint that serves nothing, want %v", left, idle)
	}
	e := &w.plugin.known.endpoints.All()[1].Value.work
	if len(e.queue) != 1 || e.decoding != 1 || e.context != 1000 || e.tokens != 1000 {
		t.Errorf("%+v, want one request in the queue and one that decodes", e)
	}
	for _, f := range []*scheduling.Flight{queued, decoding} {
		f.Done(good(1000, 0, 100), w.now)
	}
	if len(e.queue) != 0 || e.decoding != 0 || e.context != 0 || e.tokens != 0 {
		t.Errorf("%+v, want nothing", e)
	}
}

// TestOneEndpointBecomesSlow: its predictions follow, those of its class do not.
func TestOneEndpointBecomesSlow(t *testing.T) {
	w := newWorld(t, "", 2)
	for range 100 {
		w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 100))
		w.serve(1, 1, 400*time.Millisecond, good(1000, 0, 100))
	}
	for range 20 {
		w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 100))
		w.serve(1, 1, 1200*time.Millisecond, good(1000, 0, 100))
	}
	near(t, "the other", w.predict(0).TTFTMs, 400, 0.15)
	near(t, "the slow one", w.predict(1).TTFTMs, 1200, 0.25)
	w.now += 20 * time.Minute
	near(t, "the slow one, long after", w.predict(1).TTFTMs, 400, 0.2)
}

func TestObjectiveGivesHeadroom(t *testing.T) {
	w := newWorld(t, "sloBufferFactor: 0.5", 1)
	if guess := w.predict(0); guess.TTFTHeadroomMs != 0 || guess.TPOTHeadroomMs != 0 {
		t.Errorf("headroom %v, %v of a request that asks nothing", guess.TTFTHeadroomMs, guess.TPOTHeadroomMs)
	}
	w.request.Headers = []scheduling.Header{{Name: "x-sluice-slo-ttft-ms", Value: []byte("1000")}, {Name: "x-sluice-slo-tpot-ms", Value: []byte("4")}}
	guess := w.predict(0)
	near(t, "TTFT headroom", guess.TTFTHeadroomMs, 500-guess.TTFTP90Ms, 1e-9)
	near(t, "TPOT headroom", guess.TPOTHeadroomMs, 2-guess.TPOTP90Ms, 1e-9)
}

func TestWholeResponses(t *testing.T) {
	w := newWorld(t, "streamingMode: false", 1)
	w.request.Stream = false
	for range 200 {
		f := w.pick(0)
		w.now += 3 * time.Second
		f.Done(good(1000, 0, 100), w.now)
	}
	guess := w.predict(0)
	near(t, "time to the end", guess.TTFTMs, 3000, 0.1)
	if !guess.WholeResponse || guess.TPOTMs != 0 || guess.TPOTP90Ms != 0 {
		t.Errorf("%+v, want a whole response and no TPOT", guess)
	}
}

// TestWhatIsNotGeneratedTeachesNothing: whoever asks often for the list of models does not make answers look fast.
func TestWhatIsNotGeneratedTeachesNothing(t *testing.T) {
	w := newWorld(t, "streamingMode: false", 1)
	at, e := w.predict(0).TTFTMs, &w.plugin.known.endpoints.All()[0].Value
	for _, operation := range []scheduling.Operation{scheduling.OperationOther, scheduling.OperationEmbeddings} {
		w.request.Operation = operation
		for _, completion := range []int{-1, 0} {
			f := w.pick(0)
			w.now += 2 * time.Millisecond
			f.Done(good(1000, -1, completion), w.now)
		}
	}
	if n := w.plugin.known.skipped[skipUngenerated].Load(); n != 4 || w.samples() != 0 || e.fresh != warming || w.predict(0).TTFTMs != at {
		t.Errorf("%d of 4 left out, %d samples, %d first answers to come", n, w.samples(), e.fresh)
	}
	w.request.Operation = scheduling.OperationChat
	w.serve(0, warming+1, time.Second, good(1000, -1, -1))
	if w.samples() != 1 {
		t.Errorf("%d samples, want the one chat after the first: answers need not be counted", w.samples())
	}
}

// TestWholeResponsesTakeTheirAnswersTime: what a request lets an answer have at most says how long it takes, and so do those who decode
// beside it. Requests that cannot be seen to decode are not taken for a queue.
func TestWholeResponsesTakeTheirAnswersTime(t *testing.T) {
	w := newWorld(t, "streamingMode: false", 2)
	w.request.Stream = false
	random := rand.New(rand.NewPCG(3, 4))
	took := func(limit int) time.Duration { return 100*time.Millisecond + time.Duration(limit)*20*time.Millisecond }
	serve := func(endpoint int) {
		w.request.MaxOutputTokens = 16 + random.IntN(240)
		f := w.pick(endpoint)
		w.now += took(w.request.MaxOutputTokens)
		f.Done(good(1000, 0, w.request.MaxOutputTokens), w.now)
	}
	for i := range 300 {
		serve(i % 2)
	}
	for limit, share := range map[int]float64{16: 0.15, 64: 0.1, 128: 0.1} {
		w.request.MaxOutputTokens = limit
		near(t, "time to the end", w.predict(0).TTFTMs, ms(took(limit)), share)
	}
	for i := range 2 {
		if slow := w.plugin.known.endpoints.All()[i].Value.slow.latest(); math.Abs(slow-1) > 0.1 {
			t.Errorf("slowness %v of endpoint %d, which is like the other", slow, i)
		}
	}

	alone := w.predict(0)
	f := w.pick(0)
	w.now += time.Second
	if beside := w.predict(0); beside.WaitMs > alone.WaitMs+100 {
		t.Errorf("wait %v beside an answer that is being written, %v alone", beside.WaitMs, alone.WaitMs)
	}
	f.Done(good(1000, 0, 100), w.now)
}

// TestLengthOfAnswers: those that are cut off say that they would have been longer.
func TestLengthOfAnswers(t *testing.T) {
	var l length
	near(t, "an answer, at first", l.expected(0), usualAnswer, 1e-9)
	random := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		limit := []float64{0, 20, 100}[random.IntN(3)]
		tokens := math.Ceil(300 * random.ExpFloat64())
		if limit > 0 {
			tokens = min(tokens, limit)
		}
		l.add(tokens, limit)
	}
	near(t, "an answer", l.expected(0), 300, 0.3)
	near(t, "an answer of at most 20", l.expected(20), 20, 0.05)
	near(t, "an answer of at most 100", l.expected(100), 85, 0.1)
	for range 200 {
		l.add(16, 16)
	}
	near(t, "an answer where all are cut off", l.expected(64), 64, 0.1)
}

// TestUnstreamedRequestsLeaveTheQueue: where the first token is not seen the prompt counts as computed once it should be.
func TestUnstreamedRequestsLeaveTheQueue(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", 1)
	w.request.Stream = false
	f := w.pick(0)
	e := &w.plugin.known.endpoints.All()[0].Value.work
	if len(e.queue) != 1 {
		t.Fatalf("%+v, want it in the queue", e)
	}
	w.now += 2 * time.Second
	w.predict(0)
	if len(e.queue) != 0 || e.decoding != 1 {
		t.Errorf("%+v, want it to decode", e)
	}
	f.Done(good(1000, 0, 100), w.now)
	if e.decoding != 0 || w.samples() != 0 || w.plugin.known.skipped[skipUnstream].Load() != 1 {
		t.Errorf("%+v, %d samples", e, w.samples())
	}
}

// TestReloadKeepsWhatIsKnown, unless what it starts from has changed.
func TestReloadKeepsWhatIsKnown(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 100, 400*time.Millisecond, good(1000, 0, 100))
	before := w.predict(0)
	w.configure("")
	if after := w.predict(0); after != before {
		t.Errorf("%+v after a reload, want %+v", after, before)
	}
	w.configure("peakPrefillThroughput: 1000")
	if after := w.predict(0); after.Confidence != 0 {
		t.Errorf("confidence %v with another start", after.Confidence)
	}
}

func TestClassesAreBounded(t *testing.T) {
	w := newWorld(t, "classLabel: rollout", 1)
	for i := range 3 * classes.Max {
		w.pool.Update([]scheduling.EndpointSpec{{Address: address(i), Labels: map[string]string{"rollout": address(i)}}})
		w.predict(0)
	}
	if n := w.plugin.known.classes.Len(); n > classes.Max+1 {
		t.Errorf("%d classes, want at most %d", n, classes.Max+1)
	}
}

// TestNoPredictionIsNothing: a prompt of no tokens on an idle engine that answered at once takes some time all the same, and what is
// learnt from it stays a number.
func TestNoPredictionIsNothing(t *testing.T) {
	w := newWorld(t, "", 1)
	w.table.Prompt.Count, w.table.Endpoints[0].Uncached = 0, schedtest.Ref(scheduling.UncachedRequestTokens(0))
	w.serve(0, 600, time.Nanosecond, good(0, 0, 2))
	if guess := w.predict(0); !(guess.TTFTMs > 0) || !guess.Usable() || math.IsNaN(guess.TTFTP90Ms) || math.IsNaN(guess.Residual) {
		t.Errorf("%+v", guess)
	}
	w.serve(0, 50, time.Hour, good(0, 0, 2))
	if guess := w.predict(0); !guess.Usable() || math.IsInf(guess.TTFTP90Ms, 1) {
		t.Errorf("%+v", guess)
	}
	r := &w.plugin.known.endpoints.All()[0].Value.class.residual
	if math.IsNaN(r.alone) || math.IsInf(r.alone, 1) || math.IsNaN(r.helped) {
		t.Errorf("errors %v and %v", r.alone, r.helped)
	}
}

// TestCloseWhileForestsGrow: a plugin that closes waits for its forests, while that of the next configuration begins others.
func TestCloseWhileForestsGrow(t *testing.T) {
	w := newWorld(t, "", 1)
	old := w.scheduler
	w.configure("")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { w.plugin.known.spawn(func() { time.Sleep(time.Millisecond) }) })
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestParameters(t *testing.T) {
	for text, want := range map[string]string{
		"peakPrefillThroughput: 0":    "parameters.peakPrefillThroughput: must be > 0",
		"peakPrefillThroughput: .nan": "got NaN",
		"sloBufferFactor: 0":          "parameters.sloBufferFactor: must be > 0 and at most 10, got 0",
		"sloBufferFactor: 11":         "got 11",
	} {
		var table schedtest.Table
		cfg := schedtest.Config([]scheduling.Spec{{Name: "seer", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(text)}}, pinPicker.Type)
		if _, err := scheduling.Build(append(table.Types(), Type(), pinPicker), cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestPredictingDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w, c := busyPool(t, 64)
	defer w.scheduler.End(c)
	if n := testing.AllocsPerRun(100, func() { w.plugin.Fill(c) }); n != 0 {
		t.Errorf("%v allocations a prediction", n)
	}
}

// TestSimultaneousRequests: everything at once, for the race detector; afterwards nothing is left.
func TestSimultaneousRequests(t *testing.T) {
	w := newWorld(t, "", 4)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				id := uint64(g*200+i)*1000 + uint64((g+i)%4)
				c := w.scheduler.Begin(w.pool.Snapshot(), &scheduling.Request{ID: id, Stream: i%3 > 0, Choices: 1}, time.Duration(i)*time.Millisecond)
				w.scheduler.Produce(t.Context(), c)
				f, err := w.scheduler.Commit(c)
				w.scheduler.End(c)
				if err != nil {
					t.Error(err)
					return
				}
				now := time.Duration(i+5) * time.Millisecond
				if i%5 == 0 {
					f.Served(w.pool.Snapshot().Endpoints[g%4], now)
				}
				if i%3 > 0 {
					f.FirstToken(now)
				}
				f.Chunk(now + time.Millisecond)
				f.Done(good(1000, 0, 10), now+time.Second)
			}
		})
	}
	wg.Wait()
	for i, in := range w.plugin.known.endpoints.All() {
		if e := &in.Value.work; len(e.queue) != 0 || e.decoding != 0 || e.context != 0 || e.tokens != 0 || e.held != 0 {
			t.Errorf("endpoint %d is left with %+v", i, e)
		}
	}
}
