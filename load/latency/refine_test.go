package latency

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// plant gives an endpoint's class a forest that asks one thing: is a feature above a value? It says the logarithms low and high.
func (w *world) plant(endpoint int, feature uint8, above float32, low, high float64) {
	f := &forest{}
	t := &f[0]
	for i := range t.above {
		t.feature[i], t.above[i] = feature, above
	}
	for i := range t.leaf {
		t.leaf[i] = float32(low)
	}
	t.leaf[leaves-1] = float32(high)
	c := w.plugin.known.endpoints.All()[endpoint].Value.class
	m := *c.known.Load()
	m.forest, m.trial = f, f
	c.known.Store(&m)
}

// spread gives each endpoint a prompt of its own length to compute: a thousand tokens, and so many more the further down it stands.
func (w *world) spread(step int) {
	for i := range w.table.Endpoints {
		w.table.Endpoints[i].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(1000 + step*i))
	}
	w.table.Prompt.Count = 1000 + step*len(w.table.Endpoints)
}

// all is what is predicted of a request on every endpoint now.
func (w *world) all() []scheduling.LatencyPrediction {
	w.Helper()
	c := w.begin(0)
	defer w.scheduler.End(c)
	w.scheduler.Preview(c)
	guesses := make([]scheduling.LatencyPrediction, len(w.table.Endpoints))
	for i := range guesses {
		guesses[i], _ = scheduling.ColumnOf[scheduling.LatencyPrediction](c).Get(i)
	}
	return guesses
}

// TestForestIsAskedAboutTheFastest: of the others what it said of these is taken for the truth, so that order stays where it says the same
// of all.
func TestForestIsAskedAboutTheFastest(t *testing.T) {
	w := newWorld(t, "", 40)
	w.spread(100)
	w.plant(0, seesUncached, 1750, math.Log(2), math.Log(4)) // 8 of the fastest 16 are below
	for i, guess := range w.all() {
		want := math.Sqrt(8) // the geometric mean
		switch {
		case i < 8:
			want = 2
		case i < refined:
			want = 4
		}
		near(t, "residual", guess.Residual, want, 1e-5)
		near(t, "sum of the parts", (guess.WaitMs+guess.PrefillMs)*guess.Residual, guess.TTFTMs, 1e-9)
	}
}

// TestNobodyOvertakesUnasked: however different what the forest says of those it is asked about, none of the others becomes the fastest.
func TestNobodyOvertakesUnasked(t *testing.T) {
	w := newWorld(t, "", 40)
	w.spread(1)
	for _, above := range []float32{999, 1000, 1007, 1014, 1015} {
		for _, high := range []float64{-2, 2} {
			w.plant(0, seesUncached, above, 0, high)
			guesses := w.all()
			best := slices.MinFunc(guesses[:refined], func(a, b scheduling.LatencyPrediction) int { return cmp.Compare(a.TTFTMs, b.TTFTMs) })
			for i, guess := range guesses[refined:] {
				if guess.TTFTMs < best.TTFTMs {
					t.Errorf("above %v: endpoint %d is predicted %v ms, the best of those that were asked about %v", above, refined+i, guess.TTFTMs, best.TTFTMs)
				}
			}
		}
	}
}

// TestLongestCacheIsAsked, wherever it stands: gates compare it with the others.
func TestLongestCacheIsAsked(t *testing.T) {
	for _, longest := range []int{0, 33} {
		w := newWorld(t, "", 40)
		w.spread(100)
		w.table.Endpoints[0].Uncached = w.table.Endpoints[39].Uncached
		w.table.Endpoints[longest].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(8, 10, 16))
		w.table.Endpoints[31].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(5, 10, 16))
		w.plant(0, seesScore, 0.7, 0, 1)
		guesses := w.all()
		near(t, "residual of the one that has most", guesses[longest].Residual, math.E, 1e-5)
		if guesses[31].Residual > 1.1 {
			t.Errorf("residual %v of another", guesses[31].Residual)
		}
	}
}

// TestForestSeesEachEndpointsWork.
func TestForestSeesEachEndpointsWork(t *testing.T) {
	w := newWorld(t, "", 4)
	f := w.pick(1)
	for feature, above := range map[uint8]float32{seesAhead: 500, seesQueue: 0, seesHeld: 500} {
		w.plant(0, feature, above, 0, math.Log(2))
		for i, guess := range w.all() {
			near(t, "residual", guess.Residual, map[bool]float64{false: 1, true: 2}[i == 1], 1e-5)
		}
	}
	f.Done(good(1000, 0, 10), w.now)
}

// TestNothingCachedIsNotAsked: where no cache has anything of the prompt none is the longest.
func TestNothingCachedIsNotAsked(t *testing.T) {
	w := newWorld(t, "", 40)
	w.spread(100)
	w.table.Endpoints[0].Uncached = w.table.Endpoints[39].Uncached
	w.plant(0, seesUncached, 4000, 0, 1)
	near(t, "residual of the slowest", w.all()[0].Residual, 1, 0)
}

// TestResidualsAreOfAClass: what the forest of one class says is not taken for another's where that has its own.
func TestResidualsAreOfAClass(t *testing.T) {
	w := newWorld(t, "classLabel: gpu", 40)
	specs := make([]scheduling.EndpointSpec, 40)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: address(i), Labels: map[string]string{"gpu": []string{"old", "new"}[i%2]}}
	}
	w.pool.Update(specs)
	w.spread(1)
	w.plant(0, seesTokens, 0, 0, math.Log(3))
	w.plant(1, seesTokens, 0, 0, math.Log(1.5))
	for i, guess := range w.all() {
		near(t, "residual", guess.Residual, []float64{3, 1.5}[i%2], 1e-5)
	}
}

// TestSlowClassIsAskedAboutToo: where none of a class is among the fastest its own forest speaks for it all the same.
func TestSlowClassIsAskedAboutToo(t *testing.T) {
	w := newWorld(t, "classLabel: gpu", 24)
	specs := make([]scheduling.EndpointSpec, 24)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: address(i), Labels: map[string]string{"gpu": []string{"old", "new"}[i/20]}}
	}
	w.pool.Update(specs)
	w.spread(1)
	w.table.Endpoints[20].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(1200))
	w.plant(0, seesTokens, 0, 0, math.Log(3))
	w.plant(20, seesUncached, 1021, math.Log(1.5), math.Log(1.8))
	for i, guess := range w.all() {
		want := 3.0
		if i >= 20 { // that of the fastest, which is the second of them
			want = 1.5
		}
		near(t, "residual", guess.Residual, want, 1e-5)
		near(t, "sum of the parts", (guess.WaitMs+guess.PrefillMs)*guess.Residual, guess.TTFTMs, 1e-9)
	}
}
