package latency

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestC46_LearntFromWhatThePickSaw: what comes behind a request, and what is reported of its endpoint later, changes nothing of what
// its time teaches.
func TestC46_LearntFromWhatThePickSaw(t *testing.T) {
	learn := func(behind int) scheduling.LatencyPrediction {
		w := newWorld(t, "", 1)
		for i := range 60 {
			own := 500 * (1 + i%4)
			e := &w.table.Endpoints[0]
			fresh := schedtest.Endpoint{
				Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(own)),
				Metrics: &scheduling.EngineMetrics{Known: scheduling.MetricsWaiting},
			}
			*e = fresh
			f := w.pick(0)
			if behind > 0 {
				e.Load, e.Uncached = &scheduling.InFlightLoad{Requests: 50, Tokens: 50_000}, schedtest.Ref(scheduling.UncachedRequestTokens(9000))
				e.Metrics = &scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: 50}
			}
			later := make([]*scheduling.Flight, behind)
			for j := range later {
				later[j] = w.pick(0)
			}
			w.now += time.Duration(100+own/2) * time.Millisecond
			f.FirstToken(w.now)
			f.Done(good(own, 0, 1), w.now)
			for _, f := range later {
				f.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect, Status: 200, Usage: scheduling.UnknownUsage}, w.now)
			}
			*e = fresh
			w.now += time.Minute
		}
		return w.predict(0)
	}
	want := learn(0)
	got := learn(20)
	near(t, "TTFT", want.TTFTMs, 1100, 0.1)
	if got.PrefillMs != want.PrefillMs || got.WaitMs != want.WaitMs || got.TTFTMs != want.TTFTMs || got.TTFTP90Ms != want.TTFTP90Ms {
		t.Errorf("with 20 requests that came behind each\n%+v, want\n%+v", got, want)
	}
}

// TestC46_CutStreamsShortenNothing: engines may count the tokens of a stream as it goes, so that one that is cut after a token says 1.
// Times to the end of a response are not predicted to be shorter by that.
func TestC46_CutStreamsShortenNothing(t *testing.T) {
	w := newWorld(t, "streamingMode: false", 1)
	w.serve(0, 100, 400*time.Millisecond, good(1000, 0, 100))
	before := w.predict(0)
	cut := good(1000, 0, 1)
	cut.Reason = scheduling.EndDisconnect
	for range 30 {
		f := w.pick(0)
		w.now += 5 * time.Millisecond
		f.FirstToken(w.now)
		f.Done(cut, w.now)
	}
	near(t, "whole response", w.predict(0).TTFTMs, before.TTFTMs, 0.03)
}

// TestC46_JustRemoved: a decision that began before an endpoint went may still ask about it. What it is told can be compared, and the
// request teaches nothing, neither of the endpoint that went nor of another one that has come in its place.
func TestC46_JustRemoved(t *testing.T) {
	for name, after := range map[string][]scheduling.EndpointSpec{
		"alone":            {{Address: address(1)}},
		"another instance": {{Address: address(0), UID: "2"}, {Address: address(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", 2)
			w.serve(0, 60, 400*time.Millisecond, good(1000, 0, 100))
			w.serve(1, 60, 200*time.Millisecond, good(1000, 0, 100))
			taught, busy := w.samples(), w.pick(0)
			before := w.pool.Snapshot()
			r := w.request
			r.ID = 1_000_000
			c := w.scheduler.Begin(before, &r, w.now)
			w.pool.Update(after)
			w.scheduler.Produce(t.Context(), c)
			f, err := w.scheduler.Commit(c)
			if err != nil {
				t.Fatal(err)
			}
			guess, ok := f.Predicted, f.Endpoint == before.Endpoints[0]
			w.scheduler.End(c)
			if !ok || !guess.Usable() || math.IsInf(guess.TTFTP90Ms, 0) || !(guess.TTFTP90Ms > 0) {
				t.Errorf("picked the one that went: %t; predicted %+v", ok, guess)
			}
			for _, f := range []*scheduling.Flight{busy, f} {
				f.FirstToken(w.now + time.Millisecond)
				f.Done(good(1000, 0, 100), w.now+time.Second)
			}
			if n := w.samples(); n != taught {
				t.Errorf("%d requests of an endpoint that went taught something", n-taught)
			}
			for i, in := range w.plugin.known.endpoints.All() {
				if in != nil && (len(in.Value.work.queue) != 0 || in.Value.work.decoding != 0) {
					t.Errorf("endpoint %d is left with %d requests waiting and %d decoding", i, len(in.Value.work.queue), in.Value.work.decoding)
				}
			}
		})
	}
}
