package latency

import (
	"math"
	"testing"
	"time"
)

// times is what so many samples of one factor come to.
func times(n, factor float64) slowness {
	l := math.Log(factor)
	return slowness{n: n, sum: n * l, square: n * l * l, recent: l}
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name string
		s    slowness
		want float64
	}{
		{"nothing", slowness{}, usualSpread},
		{"one", times(1, 5), usualSpread / math.Sqrt2},
		{"all alike", times(99, 5), usualSpread / 10},
		{"1 and 3 twice each", slowness{n: 4, sum: 8, square: 20}, math.Sqrt((4 + usualSpread*usualSpread) / 5)},
		{"less than rounding", slowness{n: 4, sum: 8, square: 15.9}, usualSpread / math.Sqrt(5)},
	} {
		near(t, test.name, test.s.spread(), test.want, 1e-12)
	}
}

// TestFactor: two samples more that say 1, and 1 to the bit within three standard errors.
func TestFactor(t *testing.T) {
	for _, test := range []struct {
		name string
		s    slowness
		want float64
	}{
		{"one as slow as counts", times(1, 8), 2},
		{"one that may be chance", times(1, 6), 1},
		{"one that is fast", times(1, 1./8), 0.5},
		{"six of them", times(6, 16), 8},
		{"wide apart", slowness{n: 9, sum: 9, square: 90}, 1},
		{"just beyond chance", slowness{n: 98, sum: 31, square: 98}, math.Exp(0.31)},
		{"just within it", slowness{n: 98, sum: 28, square: 98}, 1},
	} {
		test.s.compute()
		near(t, test.name, test.s.latest(), test.want, 1e-9)
		if test.want == 1 && test.s.factor != 1 {
			t.Errorf("%s: %v, want 1 to the bit", test.name, test.s.factor)
		}
	}
	var s slowness
	if s.latest() != 1 || s.at(time.Hour) != 1 {
		t.Errorf("%v of an endpoint of which nothing was seen", s.latest())
	}
}

// TestSamplesFade: by 1/e with 32 more, and by 1/e in two minutes.
func TestSamplesFade(t *testing.T) {
	var s slowness
	for range 32 * 20 {
		s.add(time.Second, 2)
	}
	near(t, "samples", s.n, 32, 1e-6)
	near(t, "mean", s.sum/s.n, math.Ln2, 1e-6)
	near(t, "mean of the squares", s.square/s.n, math.Ln2*math.Ln2, 1e-6)
	before := s.at(time.Second)
	if got := s.at(4 * time.Second); got != before || s.n < 31.9 {
		t.Errorf("%v of %v samples three seconds later, want %v: it is not computed at each look", got, s.n, before)
	}
	s.at(time.Second + 2*time.Minute)
	near(t, "samples two minutes later", s.n, 32/math.E, 1e-6)
	near(t, "their mean", s.sum/s.n, math.Ln2, 1e-6)
	near(t, "of the squares", s.square/s.n, math.Ln2*math.Ln2, 1e-6)
	near(t, "factor", s.latest(), math.Exp(math.Ln2*s.n/(s.n+2)), 1e-9)
	n := s.n
	if s.at(0); s.n != n {
		t.Errorf("%v samples by a clock that lags behind, want %v", s.n, n)
	}
}

// TestChangeIsSeenAtOnce: what was before no longer counts where the last few are off by more than chance, and counts where not.
func TestChangeIsSeenAtOnce(t *testing.T) {
	usual := slowness{n: 32, square: 32 * 0.04}
	s := usual
	if s.add(0, 3); s.n < 30 {
		t.Errorf("%v samples after one that is slow, want all", s.n)
	}
	s.add(0, 3)
	near(t, "samples after two", s.n, 2*(1-1./32)+1, 0.001)
	mean := math.Log(3) * (1 - 0.75*0.75)
	near(t, "sum", s.sum, 2*(1-1./32)*mean+math.Log(3), 0.001)
	for range 8 {
		s.add(0, 3)
	}
	if f := s.latest(); f < 2.2 || f > 3 {
		t.Errorf("factor %v after ten that are thrice as slow", f)
	}
	s = usual
	for range 20 {
		s.add(0, 1.1)
	}
	if s.n < 30 {
		t.Errorf("%v samples after twenty that are a little slow, want all", s.n)
	}
}

// TestChangeKeepsTheSpread, so that what is chance stays so.
func TestChangeKeepsTheSpread(t *testing.T) {
	s := slowness{n: 30, sum: 0, square: 30 * 0.04}
	before := s.spread()
	s.recent = 1
	s.add(0, math.E)
	mean := 1.0
	square := 2*(1-1./32)*(mean+before*before) + 1
	near(t, "squares", s.square, square, 1e-9)
}

// TestFarthestSampleIsBounded.
func TestFarthestSampleIsBounded(t *testing.T) {
	for ratio, want := range map[float64]float64{1e9: math.Log(8), 0: -math.Log(8), math.Inf(1): math.Log(8), 4: math.Log(4), 0.25: -math.Log(4)} {
		var s slowness
		s.add(0, ratio)
		near(t, "logarithm", s.sum, want, 1e-12)
		near(t, "mean of the last few", s.recent, want/4, 1e-12)
	}
}
