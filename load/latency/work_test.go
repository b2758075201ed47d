package latency

import (
	"testing"
	"time"

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
