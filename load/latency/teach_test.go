package latency

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestC46_OnlyGoodRequestsTeach: of 100 requests 30 are cut after one token, 10 are answered 429 and 10 fail fast.
func TestC46_OnlyGoodRequestsTeach(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 100, 400*time.Millisecond, good(1000, 0, 100))
	before := w.predict(0)
	taught := w.samples()
	usage := scheduling.UnknownUsage
	w.serve(0, 30, time.Millisecond, scheduling.Outcome{Reason: scheduling.EndDisconnect, Status: 200, Usage: usage})
	w.serve(0, 10, time.Millisecond, scheduling.Outcome{Status: 429, Usage: usage})
	w.serve(0, 10, 3*time.Millisecond, scheduling.Outcome{Reason: scheduling.EndError, Status: 500, Usage: usage})
	w.serve(0, 10, time.Millisecond, scheduling.Outcome{Reason: scheduling.EndUnseen, Usage: usage})
	if n := w.samples(); n != taught {
		t.Errorf("%d requests that did not end well taught something", n-taught)
	}
	after := w.predict(0)
	near(t, "TTFT after fast failures", after.TTFTMs, before.TTFTMs, 0.01)
	near(t, "TPOT after fast failures", after.TPOTMs, before.TPOTMs, 0.03)
	if n := w.plugin.known.skipped[skipFailed].Load(); n != 60 {
		t.Errorf("%d are counted, want 60", n)
	}
}

// TestC46_TrainsOnWhatItPredictedFrom: what a request teaches about is what was known at its pick, whatever has changed since.
func TestC46_TrainsOnWhatItPredictedFrom(t *testing.T) {
	w := newWorld(t, "", 1)
	w.table.Endpoints[0].Metrics = &scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: 3, AgeMs: 7}
	f := w.pick(0)
	w.table.Endpoints[0].Metrics.Waiting, w.table.Endpoints[0].Uncached = 99, schedtest.Ref(scheduling.UncachedRequestTokens(5))
	w.table.Endpoints[0].Load = &scheduling.InFlightLoad{Requests: 50, Tokens: 5000}
	second := w.pick(0)
	s := w.plugin.flights.Of(f)
	if s.z[seesWaiting] != 3 || s.z[seesAge] != 7 || s.z[seesRunning] != -1 || s.z[seesKVUsage] != -1 || s.x[ttftOwn] != 1000 || s.z[seesRequests] != 0 {
		t.Errorf("kept %v, %v", s.z, s.x)
	}
	if s.ttftMs != f.Predicted.TTFTMs {
		t.Errorf("error is taken against %v, predicted was %v", s.ttftMs, f.Predicted.TTFTMs)
	}
	for _, f := range []*scheduling.Flight{f, second} {
		f.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, w.now)
	}
}

func TestFirstRequestsAfterARestartTeachNothing(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, warming, 20*time.Second, good(1000, 0, 100))
	if w.samples() != 0 || w.plugin.known.skipped[skipFresh].Load() != warming {
		t.Errorf("%d of the first requests of an engine taught something", w.samples())
	}
	w.serve(0, 10, 400*time.Millisecond, good(1000, 0, 100))
	e := w.pool.Snapshot().Endpoints[0]
	w.plugin.CacheLost(e.Ordinal, e.Generation, false) // it slept: the process is the same
	w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 100))
	if n := w.samples(); n != 11 {
		t.Errorf("%d samples, want 11", n)
	}
	w.plugin.CacheLost(e.Ordinal, e.Generation, true)
	w.serve(0, warming, 20*time.Second, good(1000, 0, 100))
	if n := w.samples(); n != 11 {
		t.Errorf("%d samples, want 11: the first requests after a restart count", n)
	}
}

// TestRequestsBesideTheFirstTeachNothing: all that are sent to a process that is still starting wait for that.
func TestRequestsBesideTheFirstTeachNothing(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 10+warming, 400*time.Millisecond, good(1000, 0, 100))
	e := w.pool.Snapshot().Endpoints[0]
	w.plugin.CacheLost(e.Ordinal, e.Generation, true)
	flights := make([]*scheduling.Flight, 20)
	for i := range flights {
		flights[i] = w.pick(0)
	}
	w.now += 30 * time.Second
	after := w.pick(0)
	for i, f := range slices.Backward(flights) { // the last one is the first to be served
		f.FirstToken(w.now - time.Duration(i)*time.Millisecond)
		f.Done(good(1000, 0, 100), w.now+time.Second)
	}
	if n := w.samples(); n != 10 {
		t.Errorf("%d requests that waited for the start taught something", n-10)
	}
	after.FirstToken(w.now + 400*time.Millisecond)
	after.Done(good(1000, 0, 100), w.now+time.Second)
	if n := w.samples(); n != 11 {
		t.Errorf("%d samples, want 11: a request that found the engine at work teaches", n)
	}
}

func TestWhatWentTeachesNothing(t *testing.T) {
	w := newWorld(t, "", 2)
	w.serve(0, 10, 400*time.Millisecond, good(1000, 0, 100))
	taught := w.samples()
	f, moved := w.pick(0), w.pick(1)
	moved.Served(w.pool.Snapshot().Endpoints[0], w.now)
	w.pool.Update([]scheduling.EndpointSpec{{Address: address(1)}})
	for _, f := range []*scheduling.Flight{f, moved} {
		f.FirstToken(w.now + time.Millisecond)
		f.Done(good(1000, 0, 100), w.now+time.Second)
	}
	if n := w.samples(); n != taught {
		t.Errorf("%d requests of endpoints that went taught something", n-taught)
	}
	if gone, other := w.plugin.known.skipped[skipGone].Load(), w.plugin.known.skipped[skipMoved].Load(); gone != 1 || other != 1 {
		t.Errorf("%d gone, %d moved, want 1 each", gone, other)
	}
}

// TestPiecesSayTheTPOT where an engine does not count: streams have a usage only where the client asks for one.
func TestPiecesSayTheTPOT(t *testing.T) {
	w := newWorld(t, "", 1)
	uncounted := scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}
	for range 200 {
		f := w.pick(0)
		w.now += 100 * time.Millisecond
		f.FirstToken(w.now)
		for range 50 {
			w.now += 30 * time.Millisecond
			f.Chunk(w.now)
			f.Chunk(w.now + 100*time.Microsecond) // of the same step
		}
		f.Done(uncounted, w.now)
	}
	near(t, "TPOT", w.predict(0).TPOTMs, 30, 0.1)
	taught := w.plugin.known.tpotSamples.Load()
	f := w.pick(0)
	f.FirstToken(w.now)
	f.Chunk(w.now + time.Second)
	f.Done(uncounted, w.now+time.Second)
	if n := w.plugin.known.tpotSamples.Load(); n != taught {
		t.Error("a single piece taught what a step takes")
	}
}
