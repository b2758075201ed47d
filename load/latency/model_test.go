package latency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// steps samples a TTFT of an engine of known costs.
func engineTTFT(x *terms, truth []float64) float64 {
	sum := 0.0
	for i, v := range truth {
		sum += v * x[i]
	}
	return sum
}

func randomTerms(random *rand.Rand) (x terms) {
	x = terms{ttftBase: 1, ttftOwn: float64(random.IntN(8000)), ttftAhead: float64(random.IntN(3) * random.IntN(8000))}
	x[ttftOwnPairs], x[ttftAheadPairs] = x[ttftOwn]*x[ttftOwn]/2, x[ttftAhead]*4000
	x[ttftSteps], x[ttftStepSeqs], x[ttftStepContext] = math.Floor(x[ttftOwn]/stepTokens), float64(random.IntN(60)), float64(random.IntN(400_000))
	x[ttftStepLeft] = random.Float64() * 20
	return x
}

// TestRegressionFindsTheEngine: of an engine of another speed than was assumed, with noise, from a few hundred requests.
func TestRegressionFindsTheEngine(t *testing.T) {
	for _, speed := range []float64{743, 15_928, 27_261} { // tokens per second, as deployments were measured to have
		random := rand.New(rand.NewPCG(1, uint64(speed)))
		var truth []float64
		for _, term := range ttftPrior(speed / 1000) {
			truth = append(truth, term.prior*(0.5+random.Float64()))
		}
		r := newRegression(ttftPrior(15.928))
		for range 400 {
			x := randomTerms(random)
			r.add(&x, engineTTFT(&x, truth)*math.Exp(0.1*random.NormFloat64()))
		}
		sum := 0.0
		for range 400 {
			x := randomTerms(random)
			want := engineTTFT(&x, truth)
			sum += math.Abs(r.theta.dot(&x, r.n)-want) / want
		}
		if off := sum / 400; off > 0.08 {
			t.Errorf("an engine of %v tokens per second is predicted with an error of %.1f %%, want at most 8", speed, off*100)
		}
	}
}

// TestRegressionStaysPossible: whatever it is told, its coefficients are finite and not negative, and a prompt's tokens never cost
// nothing.
func TestRegressionStaysPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegression(ttftPrior(15.928))
		value := rapid.OneOf(rapid.Float64Range(0, 1e6), rapid.SampledFrom([]float64{0, 1e-300, 1e300, math.Inf(1), math.NaN()}))
		for range rapid.IntRange(1, 120).Draw(t, "samples") {
			var x terms
			x[ttftBase] = 1
			for i := 1; i < ttftTerms; i++ {
				x[i] = rapid.Float64Range(0, 1e6).Draw(t, "x")
			}
			r.add(&x, value.Draw(t, "y"))
		}
		for i := range r.n {
			if v := r.theta[i]; !(v >= 0) || math.IsInf(v, 1) {
				t.Fatalf("coefficient %d is %v", i, v)
			}
		}
		if r.theta[ttftOwn] <= 0 || r.theta[ttftAhead] <= 0 {
			t.Fatalf("tokens cost %v and %v", r.theta[ttftOwn], r.theta[ttftAhead])
		}
	})
}

// TestRegressionForgets: an engine that becomes twice as slow is known to be so before long.
func TestRegressionForgets(t *testing.T) {
	r := newRegression(ttftPrior(15.928))
	x := terms{ttftBase: 1, ttftOwn: 4000}
	for range 2000 {
		r.add(&x, 250)
	}
	for range 3000 {
		r.add(&x, 500)
	}
	if got := r.theta.dot(&x, r.n); got < 400 || got > 520 {
		t.Errorf("%v ms after 3,000 requests of 500, want most of the way from 250", got)
	}
}

// TestForestFindsWhatIsNotLinear: a wait that begins beyond a bound of the KV cache, and an interaction.
func TestForestFindsWhatIsNotLinear(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	world := func(n int) (z []sight, y []float32) {
		z, y = make([]sight, n), make([]float32, n)
		for i := range z {
			z[i][seesKVUsage], z[i][seesQueue], z[i][seesTokens] = random.Float32(), float32(random.IntN(10)), random.Float32()*1e5
			if z[i][seesKVUsage] > 0.9 && z[i][seesQueue] > 4 {
				y[i] = 1.5
			}
			y[i] += float32(0.1 * random.NormFloat64())
		}
		return z, y
	}
	z, y := world(4000)
	f := grow(z, y, 1)
	z, y = world(2000)
	before, after := 0.0, 0.0
	for i := range z {
		before += math.Abs(float64(y[i]))
		after += math.Abs(float64(y[i]) - f.at(&z[i]))
	}
	if after > 0.75*before {
		t.Errorf("error %.3f with the forest, %.3f without: want at most three quarters", after/2000, before/2000)
	}
	if again := grow(z, y, 9); again.at(&z[0]) != grow(z, y, 9).at(&z[0]) {
		t.Error("the same samples grow other forests")
	}
}

// TestForestOfNothing: samples that are all alike, and hardly any, grow a forest that says next to nothing.
func TestForestOfNothing(t *testing.T) {
	for _, n := range []int{1, 30, 600} {
		z, y := make([]sight, n), make([]float32, n)
		if got := grow(z, y, 1).at(&z[0]); got != 0 {
			t.Errorf("%d samples of 0: %v", n, got)
		}
	}
}

// TestResidualIsBounded: in samples, in what it says, and in how many forests grow at a time; it is used only where it helps.
func TestResidualIsBounded(t *testing.T) {
	var r residual
	theta := terms{ttftBase: 100}
	growing, most, begun := 0, 0, 0
	var pending []func()
	spawn := func(f func()) {
		growing++
		begun++
		most = max(most, growing)
		pending = append(pending, func() { f(); growing-- })
	}
	for i := range 3 * kept {
		s := sample{x: terms{ttftBase: 1}, slow: 1, ttftMs: 1e9}
		if len(pending) > 0 && i%ripeAfter == 0 {
			pending[0]()
			pending = pending[1:]
		}
		if ripe := r.add(&s, &theta, ttftTerms, spawn); ripe != nil {
			r.take(<-ripe)
		}
	}
	if len(r.ring) != kept || most != 1 {
		t.Errorf("%d samples, %d forests at a time", len(r.ring), most)
	}
	// At 512, 1,536, 2,560, 3,584, 4,608, 5,760, 7,200, 9,000 and 11,250 samples.
	if begun != 9 {
		t.Errorf("%d forests were begun, want 9", begun)
	}
	if got := bounded(r.grown.at(&sight{})); got > mostResidual {
		t.Errorf("residual %v", got)
	}
	for range triedOn - 1 {
		if r.judge(0.3, 0.1); r.worth() {
			t.Fatalf("a forest is used that was tried on %d samples", r.judged)
		}
	}
	before := r.grown
	if r.take(nil); r.grown != before {
		t.Error("a forest that did not grow takes the place of the one before")
	}
	for range 100 {
		r.judge(0.1, 0.3)
	}
	if r.worth() {
		t.Error("a forest is used that makes predictions worse")
	}
	for range 2000 {
		r.judge(0.3, 0.1)
	}
	if !r.worth() {
		t.Error("a forest is not used that makes predictions better")
	}
}

// TestSlownessIsNotChance: noise of alike endpoints is no difference, to the bit; a real one is.
func TestSlownessIsNotChance(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	off := 0
	for range 100 {
		var s slowness
		for i := range 200 {
			s.add(time.Duration(i)*100*time.Millisecond, math.Exp(0.2*random.NormFloat64()))
		}
		if s.factor != 1 {
			off++
		}
	}
	if off > 15 {
		t.Errorf("%d of 100 endpoints that are alike seem different", off)
	}
	var s slowness
	for i := range 60 {
		s.add(time.Duration(i)*100*time.Millisecond, 1.5*math.Exp(0.2*random.NormFloat64()))
	}
	if f := s.at(6 * time.Second); f < 1.3 || f > 1.7 {
		t.Errorf("factor %v of an endpoint half as slow again", f)
	}
	if s.add(7*time.Second, math.Inf(1)); math.IsInf(s.factor, 1) || math.IsNaN(s.factor) {
		t.Errorf("factor %v", s.factor)
	}
}

// TestStepClock: pieces of one step's answers come together; a pause between requests is no step.
func TestStepClock(t *testing.T) {
	var c stepClock
	now := time.Second
	for range 200 {
		now += 25 * time.Millisecond
		for range 5 {
			c.tick(now)
			now += 100 * time.Microsecond
		}
		now -= 500 * time.Microsecond
	}
	if left := c.left(now + 10*time.Millisecond); left < 12 || left > 18 {
		t.Errorf("%v ms of a step of 25 are left after 10", left)
	}
	if left := c.left(now + 200*time.Millisecond); left < 1 || left > 5 {
		t.Errorf("%v ms are left of a step that is late", left)
	}
	before := c.left(now)
	now += time.Minute
	c.tick(now)
	if after := c.left(now); math.Abs(after-before) > 1 {
		t.Errorf("a pause makes a step %v ms long, before %v", after, before)
	}
}

// TestQuantile follows its share.
func TestQuantile(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	q := quantile{at: startAbove}
	below := 0
	for i := range 4000 {
		v := random.NormFloat64() * 0.5
		if i > 1000 && v < q.at {
			below++
		}
		q.add(0.9, v)
	}
	if share := float64(below) / 2999; share < 0.87 || share > 0.93 {
		t.Errorf("%.2f of the samples are below the 90th percentile", share)
	}
}
