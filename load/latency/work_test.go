package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/load/steps"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestRetryMakesNobodyLate: what a request waited for elsewhere is not the time of the endpoint that serves it.
func TestRetryMakesNobodyLate(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", 2)
	retried := w.pick(0)
	asNew := w.predict(0)
	w.now += 10 * time.Second
	retried.Served(w.pool.Snapshot().Endpoints[1], w.now)
	guess := w.predict(1)
	if e := &w.plugin.known.endpoints.All()[1].Value.work; e.since != w.now {
		t.Errorf("busy since %v, want %v", e.since, w.now)
	}
	near(t, "wait behind a retry", guess.WaitMs, asNew.WaitMs, 1e-9)
	retried.Done(good(1000, 0, 10), w.now)
}

// TestHungHeadHidesNobody: the first token of those behind it will not be seen, and they are taken to have had it in twice the time
// of all that was ahead.
func TestHungHeadHidesNobody(t *testing.T) {
	w := newWorld(t, "peakPrefillThroughput: 1000", 1)
	hung := w.pick(0)
	w.request.Stream = false
	behind := []*scheduling.Flight{w.pick(0), w.pick(0)}
	e := &w.plugin.known.endpoints.All()[0].Value.work
	since := e.since
	for _, step := range []struct {
		after time.Duration
		queue int
	}{{3900 * time.Millisecond, 3}, {200 * time.Millisecond, 2}, {1800 * time.Millisecond, 2}, {200 * time.Millisecond, 1}} {
		w.now += step.after
		w.predict(0)
		if len(e.queue) != step.queue || e.decoding != 3-step.queue || e.tokens != float64(1000*step.queue) || e.held != e.tokens {
			t.Errorf("after %v: %d in the queue, %d decode, %v tokens; want %d in the queue", w.now, len(e.queue), e.decoding, e.tokens, step.queue)
		}
	}
	if e.since != since || e.unseen != 0 {
		t.Errorf("busy with the first one since %v, want %v; %d unseen", e.since, since, e.unseen)
	}
	for _, f := range append(behind, hung) {
		f.Done(good(1000, 0, 10), w.now)
	}
	if len(e.queue) != 0 || e.decoding != 0 || e.context != 0 {
		t.Errorf("%+v, want nothing", e)
	}
}

// TestReloadKeepsTheWork, whatever the new parameters are: requests that are on their way are still ahead.
func TestReloadKeepsTheWork(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 100, 400*time.Millisecond, good(1000, 0, 100))
	known := w.predict(0)
	running := w.pick(0)
	w.configure("sloBufferFactor: 0.5")
	if after := w.predict(0); after.Confidence != known.Confidence {
		t.Errorf("confidence %v after a change of the reserve, want %v", after.Confidence, known.Confidence)
	}
	if w.configure("classLabel: gpu"); w.predict(0).WaitMs == 0 || w.predict(0).Confidence != 0 {
		t.Errorf("%+v, want no confidence in other classes, and a wait behind the request that is on its way", w.predict(0))
	}
	e := &w.plugin.known.endpoints.All()[0].Value
	w.now += 400 * time.Millisecond
	running.FirstToken(w.now)
	running.Done(good(1000, 0, 100), w.now)
	if len(e.work.queue) != 0 || e.work.decoding != 0 {
		t.Errorf("%d in the queue and %d that decode are left", len(e.work.queue), e.work.decoding)
	}
}

// TestStrangersAreNotKept: a decision on a snapshot that has been replaced predicts of endpoints that have gone, and adds nothing.
func TestStrangersAreNotKept(t *testing.T) {
	w := newWorld(t, "", 2)
	w.serve(0, 100, 800*time.Millisecond, good(1000, 0, 100))
	c := w.begin(1)
	defer w.scheduler.End(c)
	w.pool.Update([]scheduling.EndpointSpec{{Address: address(0), UID: "another"}})
	w.table.Endpoints[0].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(1000))
	w.scheduler.Preview(c)
	for i := range 2 {
		guess, ok := scheduling.ColumnOf[scheduling.LatencyPrediction](c).Get(i)
		if !ok {
			t.Fatalf("nothing is predicted of endpoint %d", i)
		}
		near(t, "TTFT, as its class says", guess.TTFTMs, 800, 0.1)
	}
	all := w.plugin.known.endpoints.All()
	if len(all) != 1 || all[0].Endpoint.UID != "another" {
		t.Errorf("%d endpoints are kept, want the new one", len(all))
	}
}

// TestEngineGoesOn to the next of the queue where the first one goes, and where one was served: the others' ends say nothing of it.
func TestEngineGoesOn(t *testing.T) {
	const begun, now = 10 * time.Millisecond, 70 * time.Millisecond
	for _, test := range []struct {
		name  string
		after func(*work)
		since time.Duration
		queue []uint64
	}{
		{"the first one is served", func(w *work) { w.first(now, 1) }, now, []uint64{2, 3}},
		{"another is served", func(w *work) { w.first(now, 2) }, now, []uint64{1, 3}},
		{"the first one ends", func(w *work) { w.end(now, 1, 100) }, now, []uint64{2, 3}},
		{"another ends", func(w *work) { w.end(now, 2, 200) }, begun, []uint64{1, 3}},
		{"the first one moves away", func(w *work) { w.move(&work{}, now, 1, 100) }, now, []uint64{2, 3}},
		{"another moves away", func(w *work) { w.move(&work{}, now, 3, 300) }, begun, []uint64{1, 2}},
		{"one is served that is not there", func(w *work) { w.first(now, 9) }, begun, []uint64{1, 2, 3}},
		{"another comes", func(w *work) { w.begin(now, prompt{id: 4}) }, begun, []uint64{1, 2, 3, 4}},
	} {
		var w work
		for id := range uint64(3) {
			w.begin(begun, prompt{id: id + 1, input: 100 * float64(id+1)})
		}
		w.passed = 5
		test.after(&w)
		queue := []uint64{}
		for _, p := range w.queue {
			queue = append(queue, p.id)
		}
		if w.since != test.since || !slices.Equal(queue, test.queue) || (w.passed == 0) != (test.since == now) {
			t.Errorf("%s: busy since %v with %v, %v passed; want since %v with %v", test.name, w.since, queue, w.passed, test.since, test.queue)
		}
	}
}

// TestWorkAddsUp: whatever comes, goes and moves between two endpoints, what each has is the sum of its requests.
func TestWorkAddsUp(t *testing.T) {
	type request struct {
		prompt
		at      int
		started bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var ends [2]work
		var all []*request
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now := time.Duration(step) * time.Millisecond
			what := rapid.IntRange(0, 4).Draw(t, "what")
			if what < 2 || len(all) == 0 {
				uncached := float64(rapid.IntRange(0, 100).Draw(t, "uncached"))
				r := &request{at: what % 2, prompt: prompt{
					id: uint64(step), tokens: uncached, input: uncached + 5, pairs: pairsOf(uncached+5, uncached), unseen: rapid.Bool().Draw(t, "unseen"),
				}}
				ends[r.at].begin(now, r.prompt)
				all = append(all, r)
				continue
			}
			i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
			switch r := all[i]; what {
			case 2:
				ends[r.at].first(now, r.id)
				r.started = true
			case 3:
				ends[r.at].move(&ends[1-r.at], now, r.id, r.input)
				r.at = 1 - r.at
			case 4:
				ends[r.at].end(now, r.id, r.input)
				all = slices.Delete(all, i, i+1)
			}
		}
		for at := range ends {
			got := &ends[at]
			var want work
			for _, r := range all {
				switch {
				case r.at != at:
				case r.started:
					want.decoding++
					want.context += r.input
				default:
					want.queue = append(want.queue, r.prompt)
					want.tokens, want.pairs, want.held = want.tokens+r.tokens, want.pairs+r.pairs, want.held+r.input
					if r.unseen {
						want.unseen++
					}
				}
			}
			if len(got.queue) != len(want.queue) || got.tokens != want.tokens || got.pairs != want.pairs || got.held != want.held ||
				got.unseen != want.unseen || got.decoding != want.decoding || got.context != want.context {
				t.Fatalf("%+v, want %+v", got, &want)
			}
		}
	})
}

// TestRoundingIsNoWork: what is left of sums of fractions goes with the last request.
func TestRoundingIsNoWork(t *testing.T) {
	var w work
	inputs := []float64{0.1, 0.2, 0.3}
	for i, v := range inputs {
		w.begin(0, prompt{id: uint64(i), input: v, tokens: v, pairs: v})
	}
	for i := range inputs {
		w.first(0, uint64(i))
	}
	if w.tokens != 0 || w.pairs != 0 || w.held != 0 {
		t.Errorf("%+v, want an empty queue", &w)
	}
	for i, v := range inputs {
		w.end(0, uint64(i), v)
	}
	if w.context != 0 {
		t.Errorf("a context of %v, want 0", w.context)
	}
}

// TestPromptWaitsForTheStep of requests that decode, where it is the first: the engine begins with it after that.
func TestPromptWaitsForTheStep(t *testing.T) {
	for _, test := range []struct {
		name     string
		decoding int
		queue    int
		since    time.Duration
	}{
		{"idle", 0, 0, 105 * time.Millisecond}, {"decoding", 1, 0, 120 * time.Millisecond}, {"behind another", 1, 1, 0},
	} {
		w := work{decoding: test.decoding, queue: make([]prompt, test.queue)}
		w.steps.tick(80 * time.Millisecond)
		w.steps.tick(100 * time.Millisecond)
		if w.begin(105*time.Millisecond, prompt{id: 1}); w.since != test.since {
			t.Errorf("%s: busy since %v, want %v", test.name, w.since, test.since)
		}
	}
}

func TestAhead(t *testing.T) {
	for _, test := range []struct {
		name                   string
		queue                  []float64
		since                  time.Duration
		tokens, pairs, overdue float64
	}{
		{"nothing", nil, 0, 0, 0, 0},
		{"the first is half done", []float64{200, 300}, 900 * time.Millisecond, 450, 900, 0},
		{"the first is overdue", []float64{200, 300}, 0, 300, 600, 600},
		{"the first has just begun", []float64{200, 300}, time.Second, 500, 1000, 0},
		{"the step before is not over", []float64{200}, 2 * time.Second, 200, 400, 0},
		{"all is cached", []float64{0, 0}, 900 * time.Millisecond, 0, 0, 100},
	} {
		w := work{since: test.since}
		for _, tokens := range test.queue {
			w.queue = append(w.queue, prompt{tokens: tokens})
			w.tokens, w.pairs = w.tokens+tokens, w.pairs+2*tokens
		}
		tokens, pairs, overdue := w.ahead(time.Second, 2)
		if tokens != test.tokens || pairs != test.pairs || overdue != test.overdue {
			t.Errorf("%s: %v tokens, %v pairs, %v ms overdue; want %v, %v, %v", test.name, tokens, pairs, overdue, test.tokens, test.pairs, test.overdue)
		}
	}
}

// TestSettle: first tokens that will not be seen are taken to have come once they should have, one prompt after the other.
func TestSettle(t *testing.T) {
	for _, test := range []struct {
		name  string
		queue []bool // unseen
		at    time.Duration
		left  int
		since time.Duration
	}{
		{"too early", []bool{true, true}, 99 * time.Millisecond, 2, 0},
		{"the first one", []bool{true, true}, 100 * time.Millisecond, 1, 100 * time.Millisecond},
		{"the next one has begun then", []bool{true, true}, 199 * time.Millisecond, 1, 100 * time.Millisecond},
		{"both", []bool{true, true}, 200 * time.Millisecond, 0, 200 * time.Millisecond},
		{"those that are seen stay", []bool{false, false}, time.Minute, 2, 0},
		{"behind one that is seen, in twice the time", []bool{false, true}, 399 * time.Millisecond, 2, 0},
		{"behind one that is overdue", []bool{false, true}, 400 * time.Millisecond, 1, 0},
		{"behind two", []bool{false, false, true}, 599 * time.Millisecond, 3, 0},
		{"behind two that are overdue", []bool{false, false, true}, 600 * time.Millisecond, 2, 0},
		{"the second of those behind one", []bool{false, true, true}, 599 * time.Millisecond, 2, 0},
		{"the second of those behind one that is overdue", []bool{false, true, true}, 600 * time.Millisecond, 1, 0},
	} {
		var w work
		for i, unseen := range test.queue {
			w.begin(0, prompt{id: uint64(i), input: 70, tokens: 50, unseen: unseen})
		}
		w.settle(50*time.Millisecond, 2)
		w.settle(test.at, 2)
		settled := len(test.queue) - test.left
		if len(w.queue) != test.left || w.since != test.since || w.decoding != settled || w.context != float64(70*settled) {
			t.Errorf("%s: %d in the queue, busy since %v, %d decode with %v tokens; want %d, since %v", test.name, len(w.queue), w.since, w.decoding,
				w.context, test.left, test.since)
		}
	}
}

// TestFlow is the rate of tokens, of which half is forgotten in ten seconds of silence.
func TestFlow(t *testing.T) {
	var f flow
	f.add(time.Second, 5000)
	for _, test := range []struct {
		now  time.Duration
		want float64
	}{{time.Second, 0.5}, {0, 0.5}, {11 * time.Second, 0.25}, {31 * time.Second, 0.125}} {
		near(t, test.now.String(), f.now(test.now), test.want, 1e-12)
	}
	if f.add(0, 0); f.at != time.Second {
		t.Errorf("a clock that lags behind takes the flow back to %v", f.at)
	}
	for i := range 10_000 {
		f.add(time.Duration(i)*10*time.Millisecond, 30)
	}
	near(t, "3 tokens a ms", f.now(100*time.Second), 3, 0.01)
	var w work
	w.begin(time.Second, prompt{input: 9000, tokens: 5000})
	near(t, "of what an endpoint is sent", w.flow.now(time.Second), 0.5, 1e-12)
	var to work
	w.move(&to, 2*time.Second, 0, 9000)
	near(t, "of what is sent on to it", to.flow.now(2*time.Second), 0.5, 1e-12)
}

func TestContextTokens(t *testing.T) {
	w := work{context: 1000, decoding: 3, answer: 200}
	if got := w.contextTokens(); got != 1300 {
		t.Errorf("%v, want the prompts and half an answer each: 1,300", got)
	}
}

// TestAnswered is the mean of answers' lengths, of which a new one makes a 32nd.
func TestAnswered(t *testing.T) {
	var w work
	w.answered(200)
	near(t, "the first answer", w.answer, 200, 0)
	w.answered(520)
	near(t, "another", w.answer, 210, 1e-12)
}

// TestSteps: what is a step, and what the median makes of it.
func TestSteps(t *testing.T) {
	const usual = 20 * time.Millisecond
	for _, test := range []struct {
		name string
		gap  time.Duration
		want float64 // ms
	}{
		{"as usual", usual, 20}, {"longer", usual + 1, 20 * (1 + 1./32)}, {"shorter", usual - 1, 20 * (1 - 1./32)},
		{"much longer", time.Second, 20 * (1 + 1./32)}, {"a pause", time.Second + 1, 20},
		{"the least", steps.Same, 20 * (1 - 1./32)}, {"of the same step", steps.Same - 1, 20},
	} {
		var c stepClock
		c.tick(time.Second)
		if c.tick(time.Second + usual); c.left(time.Second+usual) != 20 {
			t.Fatalf("%v ms after two steps, want 20", c.left(time.Second+usual))
		}
		end := time.Second + usual + test.gap
		c.tick(end)
		near(t, test.name, math.Float64frombits(c.gap.Load()), test.want, 1e-12)
		last := end
		if test.gap < steps.Same {
			last = time.Second + usual
		}
		if got := time.Duration(c.last.Load()); got != last {
			t.Errorf("%s: the latest step ended at %v, want %v", test.name, got, last)
		}
	}
}

func TestStepLeft(t *testing.T) {
	var c stepClock
	if left := c.left(time.Second); left != 0 {
		t.Errorf("%v ms of a step of which nothing is known", left)
	}
	c.tick(time.Second)
	if left := c.left(2 * time.Second); left > 0 {
		t.Errorf("%v ms of the first step", left)
	}
	c.tick(time.Second + 16*time.Millisecond)
	for _, test := range []struct {
		passed time.Duration
		want   float64
	}{{0, 16}, {6 * time.Millisecond, 10}, {14 * time.Millisecond, 2}, {15 * time.Millisecond, 2}, {time.Minute, 2}, {-5 * time.Millisecond, 16}} {
		near(t, "left after "+test.passed.String(), c.left(time.Second+16*time.Millisecond+test.passed), test.want, 1e-12)
	}
}

// TestLength: one usual answer and those that were seen, of which one that its limit cut off did not end.
func TestLength(t *testing.T) {
	for _, test := range []struct {
		name          string
		tokens, limit float64
		want          float64
	}{
		{"it ended", 272, 0, 200}, {"it ended before its limit", 272, 273, 200}, {"it was cut off", 272, 272, 400},
	} {
		var l length
		l.add(test.tokens, test.limit)
		near(t, test.name, l.expected(0), test.want, 1e-12)
		near(t, test.name+", with a limit of the mean", l.expected(test.want), test.want*(1-1/math.E), 1e-12)
	}
	var l length
	for range 64 * 20 {
		l.add(300, 0)
	}
	near(t, "the latest 64", l.expected(0), (64*300+usualAnswer)/65., 1e-6)
}
