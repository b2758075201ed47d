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

// TestOthersComeAndGo: what is known of an endpoint stays.
func TestOthersComeAndGo(t *testing.T) {
	w := newWorld(t, "", 2)
	for range 100 {
		w.serve(0, 1, 400*time.Millisecond, good(1000, 0, 100))
		w.serve(1, 1, 1600*time.Millisecond, good(1000, 0, 100))
	}
	e := &w.plugin.known.endpoints.All()[1].Value
	slow, errors := e.slow, e.error
	w.pool.Update([]scheduling.EndpointSpec{{Address: address(1)}, {Address: address(2)}})
	if e != &w.plugin.known.endpoints.All()[1].Value || e.slow != slow || e.error != errors || e.gone || slow.n == 0 {
		t.Errorf("%+v and %+v, want %+v and %+v", e.slow, e.error, slow, errors)
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
	if begun, failed := k.forests.Load(), k.failed.Load(); begun != 1 || failed != 1 {
		t.Errorf("%d begun and %d faults, want 1 each", begun, failed)
	}
}

func TestConfidenceOf(t *testing.T) {
	const heard = time.Hour
	for _, test := range []struct {
		name         string
		weight, slow float64
		error        accuracy
		class        float64 // error of its class
		after        time.Duration
		want         float64
	}{
		{"nothing", 0, 0, accuracy{}, 0, 0, 0},
		{"as many as are trusted like the prior", halfTrusted, 1e12, accuracy{}, 0, 0, 1. / 2},
		{"any number", 1e12, 1e12, accuracy{}, 0, 0, 1},
		{"none of its own", 1e12, 0, accuracy{}, 0, 0, 1. / 2},
		{"two of its own", 1e12, 2, accuracy{}, 0, 0, 2. / 3},
		{"old", 2 * halfTrusted, 1e12, accuracy{}, 0, halfStale, 1. / 2},
		{"by a clock that lags behind", halfTrusted, 1e12, accuracy{}, 0, -halfStale, 1. / 2},
		{"its class is off", 1e12, 1e12, accuracy{}, 1, 0, 1. / 2},
		{"it is off, its class is not", 1e12, 1e12, accuracy{n: sharedError, share: 2}, 0, 0, 1. / 2},
		{"it is right, its class is not", 1e12, 1e12, accuracy{n: sharedError}, 2, 0, 1. / 2},
		{"of many not all count", 1e12, 1e12, accuracy{n: 100 * mostErrors, share: 1}, 10, 0, 1 / (1 + (64+80)/72.)},
	} {
		e := &endpoint{class: newClass(1, false), slow: slowness{n: test.slow}, error: test.error}
		e.class.heard.Store(int64(heard))
		got := e.confidence(&model{weight: test.weight, error: test.class}, heard+test.after)
		near(t, test.name, got, test.want, 1e-9)
	}
}

// TestAccuracy is the mean of errors, the latest 64 most, and of those beyond the bound as that.
func TestAccuracy(t *testing.T) {
	var a accuracy
	a.add(200, 300)
	near(t, "too much by half", a.share, 0.5, 1e-12)
	a.add(200, 50)
	near(t, "and too little by three quarters", a.share, 0.625, 1e-12)
	a.add(1, 1000)
	near(t, "and far off", a.share, (0.5+0.75+furthest)/3, 1e-12)
	a = accuracy{n: 1000}
	a.add(100, 200)
	near(t, "one of many", a.share, 1./64, 1e-12)
}
