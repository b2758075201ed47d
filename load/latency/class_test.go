package latency

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// alone is the flight of a request that found an idle endpoint, which was predicted to take so long.
func alone(ms float64) flight {
	return flight{x: terms{ttftBase: 1, ttftOwn: ms}, y: terms{tpotBase: 1}, slow: 1, linearMs: ms, ttftMs: ms, tpotMs: ms}
}

// atOnce grows a forest where others grow it beside what goes on.
func atOnce(grow func()) { grow() }

func TestRegimeOf(t *testing.T) {
	for share, want := range map[float64]int{
		0: regimeIdle, 0.199: regimeIdle, 0.2: regimeShared, 0.599: regimeShared, 0.6: regimeQueued, 1: regimeQueued,
	} {
		if got := regimeOf(share); got != want {
			t.Errorf("a wait of %v is regime %d, want %d", share, got, want)
		}
	}
}

// TestTailIsLearntByRegime: one request of twenty takes six times as long on idle endpoints and four of twenty on busy ones, so that
// nine of ten stay near the median there and do not here.
func TestTailIsLearntByRegime(t *testing.T) {
	c := newClass(16, false)
	for i := range 2000 {
		idle, queued := alone(100), alone(100)
		idle.wait, queued.wait = 0.1, 0.8
		took := map[bool]float64{false: 100, true: 600}
		c.learnTTFT(&idle, 0, took[i%20 == 0], atOnce)
		c.learnTTFT(&queued, 0, took[i%20 < 4], atOnce)
	}
	above := c.known.Load().above
	near(t, "nine of ten on idle endpoints", above[regimeIdle], 1, 0.05)
	near(t, "nine of ten behind a queue", above[regimeQueued], 6, 0.15)
	near(t, "where nothing was seen", above[regimeShared], math.Exp(startAbove), 1e-12)
}

// TestTailIsNotBelowTheMedian, however much shorter all times are than predicted.
func TestTailIsNotBelowTheMedian(t *testing.T) {
	c := newClass(16, false)
	for range 300 {
		f := alone(100)
		c.learnTTFT(&f, 0, 20, atOnce)
		c.learnTPOT(&f, 20)
	}
	if m := c.known.Load(); m.above[regimeIdle] != 1 || m.tpotAbove != 1 {
		t.Errorf("nine of ten take %v of the median, and %v per token, want 1", m.above[regimeIdle], m.tpotAbove)
	}
}

// TestTailOfTokens follows one token in five that takes three times as long.
func TestTailOfTokens(t *testing.T) {
	c := newClass(16, false)
	near(t, "at first", c.known.Load().tpotAbove, math.Exp(startAbove), 1e-12)
	for i := range 2000 {
		f := alone(0.1)
		c.learnTPOT(&f, map[bool]float64{false: 0.1, true: 0.3}[i%5 == 0])
	}
	near(t, "nine of ten", c.known.Load().tpotAbove, 3, 0.15)
}

// TestUnpredictedTokensHaveNoTail: where no TPOT was predicted there is nothing to be above of.
func TestUnpredictedTokensHaveNoTail(t *testing.T) {
	c := newClass(16, false)
	for range 300 {
		f := alone(100)
		f.tpotMs = 0
		c.learnTPOT(&f, 300)
	}
	near(t, "nine of ten", c.known.Load().tpotAbove, math.Exp(startAbove), 1e-12)
}

func TestFinish(t *testing.T) {
	m := &model{above: [regimes]float64{1.1, 2, 3}, tpotAbove: 4}
	for _, test := range []struct {
		name      string
		guess     scheduling.LatencyPrediction
		objective scheduling.LatencyObjective
		want      scheduling.LatencyPrediction
	}{
		{"idle", scheduling.LatencyPrediction{TTFTMs: 100, WaitMs: 10, Residual: 1}, scheduling.LatencyObjective{},
			scheduling.LatencyPrediction{TTFTMs: 100, WaitMs: 10, Residual: 1, TTFTP90Ms: 110}},
		{"the residual changes the times and not the regime", scheduling.LatencyPrediction{TTFTMs: 100, WaitMs: 50, Residual: 4},
			scheduling.LatencyObjective{}, scheduling.LatencyPrediction{TTFTMs: 400, WaitMs: 50, Residual: 4, TTFTP90Ms: 800}},
		{"queued", scheduling.LatencyPrediction{TTFTMs: 100, WaitMs: 90, Residual: 0.5}, scheduling.LatencyObjective{},
			scheduling.LatencyPrediction{TTFTMs: 50, WaitMs: 90, Residual: 0.5, TTFTP90Ms: 150}},
		{"headroom is what the tail leaves", scheduling.LatencyPrediction{TTFTMs: 100, TPOTMs: 10, Residual: 2},
			scheduling.LatencyObjective{TTFTMs: 250, TPOTMs: 30},
			scheduling.LatencyPrediction{TTFTMs: 200, TPOTMs: 10, Residual: 2, TTFTP90Ms: 220, TPOTP90Ms: 40, TTFTHeadroomMs: 30, TPOTHeadroomMs: -10}},
		{"a whole response has no TPOT and no headroom of it", scheduling.LatencyPrediction{TTFTMs: 100, TPOTMs: 10, Residual: 1, WholeResponse: true},
			scheduling.LatencyObjective{TPOTMs: 30}, scheduling.LatencyPrediction{TTFTMs: 100, Residual: 1, TTFTP90Ms: 110, WholeResponse: true}},
	} {
		got := test.guess
		m.finish(&got, &test.objective)
		for _, v := range []*scheduling.LatencyPrediction{&got, &test.want} {
			v.TTFTP90Ms, v.TTFTHeadroomMs = math.Round(v.TTFTP90Ms*1e9)/1e9, math.Round(v.TTFTHeadroomMs*1e9)/1e9
		}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestBadForestIsNotUsed: it is tried on requests that it does not decide about, and used while it helps.
func TestBadForestIsNotUsed(t *testing.T) {
	c := newClass(16, false)
	c.residual.grown = &forest{}
	learn := func(n int, residual float64) *model {
		for range n {
			f := alone(100)
			f.judged, f.residual = true, residual
			c.learnTTFT(&f, 0, 150, atOnce)
		}
		return c.known.Load()
	}
	if m := learn(100, -0.4); m.trial == nil || m.forest != nil {
		t.Errorf("a forest that says the opposite of what comes is used: %v", m.forest != nil)
	}
	if m := learn(1000, 0.4); m.forest == nil || m.forest != m.trial {
		t.Error("a forest that says what comes is not used")
	}
	if m := learn(1000, -0.4); m.forest != nil {
		t.Error("a forest that no longer helps is still used")
	}
}

// TestUntriedForestIsNotJudged: a request that was predicted before there was a forest says nothing of it.
func TestUntriedForestIsNotJudged(t *testing.T) {
	c := newClass(16, false)
	f := alone(100)
	if c.learnTTFT(&f, 0, 150, atOnce); c.residual.judged != 0 {
		t.Errorf("judged on %d requests", c.residual.judged)
	}
}

// TestForestOnTrialChangesNothing that is predicted.
func TestForestOnTrialChangesNothing(t *testing.T) {
	w := newWorld(t, "", 2)
	before := w.predict(0)
	w.plant(0, seesTokens, 0, 1, 1)
	if used := w.predict(0); used.Residual == 1 {
		t.Error("a forest in use says nothing")
	}
	c := w.plugin.known.endpoints.All()[0].Value.class
	m := *c.known.Load()
	m.forest = nil
	c.known.Store(&m)
	if got := w.predict(0); got != before {
		t.Errorf("%+v with a forest on trial, %+v without", got, before)
	}
}

// TestSlownessIsTakenOut of what a class learns, but for what all of its endpoints have in common.
func TestSlownessIsTakenOut(t *testing.T) {
	for _, test := range []struct {
		name       string
		slow, ttft []float64
		own        float64 // the time that the class learns
	}{
		{"one of two is thrice as slow", []float64{1, 3}, []float64{200, 600}, 200 * math.Sqrt(3)},
		{"all are thrice as slow", []float64{3, 3}, []float64{600, 600}, 600},
	} {
		c := newClass(16, false)
		for range 2000 {
			for i, slow := range test.slow {
				f := alone(200)
				f.slow = slow
				c.learnTTFT(&f, 0, test.ttft[i], atOnce)
				c.learnTPOT(&f, test.ttft[i])
			}
		}
		m, x := c.known.Load(), alone(200)
		near(t, test.name+": TTFT", m.ttft.dot(&x.x, ttftTerms), test.own, 0.05)
		near(t, test.name+": TPOT", m.tpot.dot(&x.y, tpotTerms), test.own, 0.05)
	}
}

// TestModelSaysWhatATokenTakes, everything included, and how many samples it comes from and how far they were off.
func TestModelSaysWhatATokenTakes(t *testing.T) {
	c := newClass(16, false)
	near(t, "ms for a token at the start", c.known.Load().tokenMs, 1./16, 1e-12)
	for range 25 {
		f := alone(100)
		c.learnTTFT(&f, 3*time.Second, 200, atOnce)
	}
	m := c.known.Load()
	near(t, "samples", m.weight, 25, 0.01)
	near(t, "mean error of 100 ms in 200", m.error, 0.5, 1e-12)
	near(t, "when the latest one came", float64(c.heard.Load()), 3e9, 0)
}
