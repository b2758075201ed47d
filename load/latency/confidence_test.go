package latency

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestConfidence: nothing is known at first; then it is what was seen of the endpoint itself, lately, and how far it was off.
func TestConfidence(t *testing.T) {
	w := newWorld(t, "", 3)
	usual := good(1000, 0, 100)
	if c := w.predict(0).Confidence; c != 0 {
		t.Errorf("%v before anything was seen", c)
	}
	for range 300 {
		w.serve(0, 1, 400*time.Millisecond, usual)
		w.serve(1, 1, 400*time.Millisecond, usual)
	}
	seen := w.predict(0).Confidence
	if seen < 0.75 || seen >= 1 {
		t.Errorf("%v after 300 alike requests", seen)
	}
	if class := w.predict(2).Confidence; class < 0.4*seen || class > 0.6*seen {
		t.Errorf("%v of an endpoint that only its class speaks for, %v of the others", class, seen)
	}
	for i := range 40 { // now and then one is much slower, on one of them
		w.serve(0, 1, time.Duration(400+2000*(i%2))*time.Millisecond, usual)
		w.serve(1, 1, 400*time.Millisecond, usual)
	}
	off, right := w.predict(0).Confidence, w.predict(1).Confidence
	if off > 0.85*right || right > seen {
		t.Errorf("%v where predictions were off, %v where not, %v before", off, right, seen)
	}
	w.now += 10 * time.Minute
	if stale := w.predict(1).Confidence; stale > 0.75*right || stale == 0 {
		t.Errorf("%v ten minutes later, %v before", stale, right)
	}
	w.now += 24 * time.Hour
	if old := w.predict(1).Confidence; old > 0.1 {
		t.Errorf("%v a day later", old)
	}
}

// TestRelabelledEndpointStartsLikeItsClass: by what factor it was slower than others was meant against those it no longer is with.
func TestRelabelledEndpointStartsLikeItsClass(t *testing.T) {
	w := newWorld(t, "classLabel: gpu", 2)
	label := func(gpu string) {
		w.pool.Update([]scheduling.EndpointSpec{
			{Address: address(0), Labels: map[string]string{"gpu": "new"}}, {Address: address(1), Labels: map[string]string{"gpu": gpu}},
		})
	}
	label("new")
	for range 100 {
		w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 100))
		w.serve(1, 1, 1600*time.Millisecond, good(1000, 0, 100))
	}
	e := &w.plugin.known.endpoints.All()[1].Value
	if e.slow.latest() < 1.5 {
		t.Fatalf("slowness %v", e.slow.latest())
	}
	f := w.pick(1)
	label("old")
	if e.slow.latest() != 1 || e.error.n != 0 || e.fresh != 0 {
		t.Errorf("slowness %v, %d errors, %d first answers to skip", e.slow.latest(), e.error.n, e.fresh)
	}
	w.now += 1600 * time.Millisecond
	f.FirstToken(w.now)
	f.Done(good(1000, 0, 100), w.now+time.Second)
	if e.slow.n != 0 || e.error.n != 0 {
		t.Errorf("%v samples, %d errors of what was picked in the other class", e.slow.n, e.error.n)
	}
}

// TestFaultWhileGrowing: it is counted, and ends nothing.
func TestFaultWhileGrowing(t *testing.T) {
	w := newWorld(t, "", 1)
	k := w.plugin.known
	done := make(chan struct{})
	k.spawn(func() { defer close(done); panic("of a test") })
	<-done
	if err := w.plugin.Close(); err != nil {
		t.Error(err)
	}
	if n := k.failed.Load(); n != 1 {
		t.Errorf("%d faults, want 1", n)
	}
}
