package rates

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestAnswersOfOneTokenTeachNoDecode: there is no time between tokens in them.
func TestAnswersOfOneTokenTeachNoDecode(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.serve(0, 5, 100*time.Millisecond, good(1000, 0, 1))
	w.choices = 4
	w.serve(0, 5, 100*time.Millisecond, good(1000, 0, 4)) // one each
	if first, decodes := w.plugin.Samples(); first != 10 || decodes != 0 {
		t.Errorf("%d first tokens, %d decodes, want 10 and 0", first, decodes)
	}
	w.choices = 0
	w.serve(0, 1, 100*time.Millisecond, good(1000, 0, 2))
	if _, decodes := w.plugin.Samples(); decodes != 1 {
		t.Errorf("%d decodes, want 1", decodes)
	}
}

// TestPiecesCountWhereNobodyDoes: streams have a usage only where the client asks for one.
func TestPiecesCountWhereNobodyDoes(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	uncounted := scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}
	for range 100 {
		f := w.pick(0)
		w.now += 100 * time.Millisecond
		f.FirstToken(w.now)
		for range 50 {
			w.now += 40 * time.Millisecond
			f.Chunk(w.now)
			f.Chunk(w.now + 100*time.Microsecond) // of the same step
		}
		f.Done(uncounted, w.now)
	}
	if _, decodes := w.plugin.Samples(); decodes != 100 {
		t.Errorf("%d decodes, want 100", decodes)
	}
	if got := w.plugin.known.decode.fit.theta[decodeToken]; math.Abs(got-40) > 2 {
		t.Errorf("a token takes %v ms, want 40", got)
	}
	f := w.pick(0)
	f.FirstToken(w.now)
	f.Chunk(w.now + time.Second)
	f.Done(uncounted, w.now+time.Second)
	if _, decodes := w.plugin.Samples(); decodes != 100 {
		t.Error("two pieces taught what a token takes")
	}
}

// TestMovedRequestsKeepTheirEndpointBusy, and no other.
func TestMovedRequestsKeepTheirEndpointBusy(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	busy := func() int { return w.plugin.known.busy.busy }
	a, b := w.pick(0), w.pick(0)
	if busy() != 1 {
		t.Fatalf("%d endpoints are busy, want 1", busy())
	}
	a.Served(w.pool.Snapshot().Endpoints[1], a.PickedAt)
	if busy() != 2 {
		t.Errorf("%d endpoints are busy after one of two moved, want 2", busy())
	}
	b.Served(w.pool.Snapshot().Endpoints[1], b.PickedAt)
	if busy() != 1 {
		t.Errorf("%d endpoints are busy after both moved, want 1", busy())
	}
	for _, f := range []*scheduling.Flight{a, b} {
		f.Done(good(1000, 0, 10), w.now+time.Second)
	}
	if busy() != 0 {
		t.Errorf("%d endpoints are busy at the end", busy())
	}
}

func TestUtilisationOfNoEndpoints(t *testing.T) {
	var u utilisation
	if got := u.move(time.Minute, 0); got != halfBusy {
		t.Errorf("%v of no endpoints, want %v", got, halfBusy)
	}
	u.resize(2)
	u.move(time.Minute, 1)
	if got := u.move(time.Hour, 0); math.Abs(got-0.5) > 1e-6 {
		t.Errorf("%v with one of two busy for an hour, want 0.5", got)
	}
}

// TestMeterAddsCompanyUp: every request that decodes counts for itself.
func TestMeterAddsCompanyUp(t *testing.T) {
	var m meter
	m.move(0, 0, 1)
	m.move(time.Second, 0, 2)
	r, _ := m.move(2*time.Second, 1, -3)
	if r.company != 4*time.Second || r.busy != 0 {
		t.Errorf("%+v, want 1 s of one and 1 s of three, and nothing busy", r)
	}
	if r, _ = m.move(5*time.Second, -1, 0); r.busy != 3*time.Second || r.company != 4*time.Second {
		t.Errorf("%+v, want 3 s busy", r)
	}
}

// TestSpeedIsBounded: one answer that took for ever, or no time, says no more than outlier.
func TestSpeedIsBounded(t *testing.T) {
	for ratio, want := range map[float64]float64{1e9: outlier, math.Inf(1): outlier, 0: 1. / outlier} {
		var s speed
		for i := range 500 {
			s.add(time.Duration(i)*time.Millisecond, ratio)
		}
		got := math.Log(s.latest()) / math.Log(want)
		if !(got > 0.8 && got <= 1) {
			t.Errorf("answers %v times as slow: a factor of %v, want close to %v and not beyond it", ratio, s.latest(), want)
		}
	}
}

// TestFitIsSolvedNowAndThen: at every sample at first, and at every eighth once there are many.
func TestFitIsSolvedNowAndThen(t *testing.T) {
	f := newClass(0.06).fit
	solved := 0
	for i := range 400 {
		if f.add(vector{1, float64(i % 7 * 100), float64(i % 11 * 300)}, 50+float64(i%5)) && i >= 200 {
			solved++
		}
	}
	if solved != 200/solveEvery {
		t.Errorf("solved %d times in the last 200 samples, want %d", solved, 200/solveEvery)
	}
}

// TestDecodesWithoutCompanySayNothingOfIt: its price stays what it was.
func TestDecodesWithoutCompanySayNothingOfIt(t *testing.T) {
	var d decodes
	d.begin()
	before := d.fit.theta[decodeCompany]
	for range 300 {
		d.learn(100, 99*20, 0, 0)
	}
	if after := d.fit.theta[decodeCompany]; math.Abs(after-before) > 1e-9 {
		t.Errorf("company costs %v after answers that had none, before %v", after, before)
	}
	for range 600 { // with four others each token takes 2 ms longer
		d.learn(100, 99*22, 0, 4*99*22)
		d.learn(100, 99*20, 0, 0)
	}
	if got := d.fit.theta[decodeCompany]; got < 0.15 || got > 0.5 { // on the way from 0.1 to 0.5; the prior does not fade
		t.Errorf("company costs %v ms a token, want more than before, and at most 0.5", got)
	}
}
