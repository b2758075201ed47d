package latency

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSampleCounts by 1/(y·expected), within bounds of what is expected and of how little that may be.
func TestSampleCounts(t *testing.T) {
	for _, test := range []struct {
		name   string
		theta  float64
		y      float64
		xx, xy float64
	}{
		{"as expected", 1, 10, 4. / 100, 2. / 10},
		{"more than expected", 1, 20, 4. / 200, 2. / 10},
		{"far more", 1, 1e6, 4. / (80 * 10), 2. / 10},
		{"far less", 1, 1e-6, 4. / (10. / 8 * 10), 2. / 10},
		{"expected is next to nothing, which is a quarter of what the prior says", 0, 10, 4. / (10 * 2.5), 2. / 2.5},
		{"the prior is scaled by what has been seen", 0, 20, 4. / (20 * 2.5 * math.Sqrt(math.E)), 2. / (2.5 * math.Sqrt(math.E))},
		{"expected is a third of what the prior says", 1. / 3, 10, 4. / (10 * 10. / 3), 2. * 3 / 10},
	} {
		r := newRegression([]term{{prior: 5, ridge: 1}})
		r.theta[0] *= test.theta
		if x := (terms{2}); !r.add(&x, test.y) {
			t.Errorf("%s: no new coefficients", test.name)
		}
		near(t, test.name+": xx", r.xx[0][0], test.xx, 1e-12)
		near(t, test.name+": xy", r.xy[0], test.xy, 1e-12)
		near(t, test.name+": weight", r.weight, 1, 0)
	}
}

// TestOldSamplesFade: after 2,000 more a sample weighs 1/e.
func TestOldSamplesFade(t *testing.T) {
	r := newRegression([]term{{prior: 1, ridge: 1}, {prior: 1, ridge: 1}})
	old, later := terms{1, 1}, terms{1, 0}
	r.add(&old, 2)
	xx, xy := r.xx[1][0], r.xy[1]
	for range 2000 {
		r.add(&later, 1)
	}
	near(t, "product of terms", r.xx[1][0]/xx, math.Exp(-1), 0.001)
	near(t, "product with the time", r.xy[1]/xy, math.Exp(-1), 0.001)
	near(t, "weight", r.weight, 2000*(1-math.Exp(-1)), 0.001)
}

// TestImpossibleSamplesTeachNothing.
func TestImpossibleSamplesTeachNothing(t *testing.T) {
	for _, test := range []struct{ x, y float64 }{{1, 0}, {1, -1}, {1, math.NaN()}, {1, math.Inf(1)}, {0, 1}, {math.Inf(1), 1}, {math.NaN(), 1}} {
		r := newRegression([]term{{prior: 1, ridge: 1}})
		before := r
		if x := (terms{test.x}); r.add(&x, test.y) || r != before {
			t.Errorf("%v of %v teaches %v", test.y, test.x, r.theta[0])
		}
	}
}

// TestSolvesOftenAtFirst: after each of the first fifty samples, then after every 25th.
func TestSolvesOftenAtFirst(t *testing.T) {
	r := newRegression([]term{{prior: 1, ridge: 1}})
	x := terms{1}
	solved := map[bool]int{}
	for i := range 350 {
		if r.add(&x, 2) {
			solved[i < 50]++
		}
	}
	if solved[true] != 50 || solved[false] != 12 {
		t.Errorf("solved %d times of 50 and %d of 300, want 50 and 12", solved[true], solved[false])
	}
}

// TestScaledPrior: what is the engine's becomes as slow as it was seen to be, the more samples say so; what is a time itself does not.
func TestScaledPrior(t *testing.T) {
	for weight, want := range map[float64]float64{0: 3, 1: 3 * 2, 1e12: 3 * 4} {
		r := newRegression([]term{{prior: 3, ridge: 1}, {prior: 5, ridge: 1, exact: true}})
		r.ratio.at, r.weight = math.Log(4), weight
		toward := r.scaled()
		near(t, "scaled", toward[0], want, 1e-9)
		near(t, "exact", toward[1], 5, 0)
	}
}

// TestTokensAlwaysCost: a quarter of the scaled prior at least, whatever samples say.
func TestTokensAlwaysCost(t *testing.T) {
	r := newRegression([]term{{prior: 100, ridge: 1}, {prior: 1, ridge: 4, least: 0.25}, {prior: 1, ridge: 4}})
	for i := range 1000 {
		x := terms{1, float64(i % 2 * 400), float64(i % 2 * 4000)}
		r.add(&x, 400-float64(i%2*200))
	}
	toward := r.scaled()
	near(t, "a term with a least part", r.theta[1], toward[1]/4, 1e-12)
	near(t, "one without", r.theta[2], 0, 0)
}

// TestSolutionIsTheBest: no coefficient can be moved within its bounds to where errors and the distance from the prior are less.
func TestSolutionIsTheBest(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	bounded := 0
	for range 50 {
		r := newRegression([]term{{prior: 2, ridge: 3}, {prior: 1, ridge: 2, least: 0.25}, {prior: 4, ridge: 1, exact: true}, {prior: 0.5, ridge: 0.5}})
		truth := terms{1 + 6*random.Float64(), 2 * random.Float64(), 3 * random.Float64(), -1}
		for range 400 {
			x := terms{1, random.Float64(), random.Float64(), random.Float64()}
			r.add(&x, truth.dot(&x, 4)*math.Exp(0.1*random.NormFloat64()))
		}
		toward := r.scaled()
		for i := range r.n {
			ridge := r.ridge[i] / (toward[i] * toward[i])
			pull, weight := r.xy[i]+ridge*toward[i], ridge
			for j := range r.n {
				pull -= r.xx[max(i, j)][min(i, j)] * r.theta[j]
			}
			pull -= ridge * r.theta[i]
			weight += r.xx[i][i]
			move := pull / weight / toward[i]
			if r.theta[i] == toward[i]*r.least[i] {
				bounded++
				move = max(move, 0)
			}
			if math.Abs(move) > 0.005 {
				t.Errorf("coefficient %d of %v wants to move by %v of its prior", i, r.theta[:4], move)
			}
		}
	}
	if bounded == 0 {
		t.Error("no coefficient is at its bound: the test shows nothing")
	}
}

// TestRidgeIsSamples: as many that a term alone explains weigh as much as its prior.
func TestRidgeIsSamples(t *testing.T) {
	r := newRegression([]term{{prior: 1, ridge: 4, exact: true}})
	r.xx[0][0], r.xy[0] = 4, 8 // four samples of a coefficient of 2
	r.solve()
	near(t, "coefficient", r.theta[0], 1.5, 1e-12)
}

// TestQuantileStep: long at first, and never short.
func TestQuantileStep(t *testing.T) {
	for _, test := range []struct {
		n    int
		v    float64
		want float64
	}{
		{0, 9, 1 + 0.9}, {0, -9, 1 - 0.1}, {0, 1, 1}, {3, 9, 1 + 0.9/4}, {19, -9, 1 - 0.1/20}, {1000, 9, 1 + 0.9/20}, {1000, -9, 1 - 0.1/20},
	} {
		q := quantile{at: 1, n: test.n}
		q.add(0.9, test.v)
		near(t, "quantile", q.at, test.want, 1e-12)
	}
}
