package quantile

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var numbers = rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.Float64Range(-2, 2), rapid.SampledFrom([]float64{0, 1, -1, 5000}))

// nearest is the quantile by its definition.
func nearest(sorted []float64, q float64) float64 {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))-1e-9))-1)]
}

func off(got, want float64) float64 { return math.Abs(got-want) - Error*math.Abs(want) }

// Whether exact, counted or put together from parts: quantiles are within the error that is stated.
func TestQuantilesAreWithinTheirError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(numbers, 1, 200).Draw(t, "numbers")
		var exact, counted, merged, part Sketch
		counted.spill()
		for i, v := range all {
			exact.Add(v)
			counted.Add(v)
			if i%3 == 0 {
				part.Add(v)
			} else {
				merged.Add(v)
			}
		}
		if rapid.Bool().Draw(t, "a part is counted") {
			part.spill()
		}
		merged.Merge(&part)
		slices.Sort(all)
		for _, q := range []float64{0, 0.1, 0.5, 0.9, 0.99, 1} {
			want := nearest(all, q)
			if got := exact.Quantile(q); got != want {
				t.Fatalf("exact: quantile %v is %v, want %v", q, got, want)
			}
			for name, s := range map[string]*Sketch{"counted": &counted, "merged": &merged} {
				if got := s.Quantile(q); off(got, want) > 2*least {
					t.Fatalf("%s: quantile %v is %v, want %v", name, q, got, want)
				}
			}
		}
		if counted.N() != uint64(len(all)) || merged.N() != counted.N() {
			t.Fatalf("%d and %d of %d were counted", counted.N(), merged.N(), len(all))
		}
		if low, high := counted.Range(); low != all[0] || high != all[len(all)-1] {
			t.Fatalf("range %v to %v", low, high)
		}
	})
}

func TestAbove(t *testing.T) {
	for _, counted := range []bool{false, true} {
		var s Sketch
		if counted {
			s.spill()
		}
		for i := range 100 {
			s.Add(float64(i)*100 - 1000)
		}
		for x, want := range map[float64]float64{-2000: 1, -50: 0.9, 0: 0.89, 4950: 0.4, 1e9: 0} {
			if got := s.Above(x); got != want {
				t.Errorf("counted %v: above %v are %v, want %v", counted, x, got, want)
			}
		}
	}
}

// However many numbers, the memory is bounded.
func TestMemoryIsBounded(t *testing.T) {
	var s Sketch
	for i := range 300_000 {
		v := math.Pow(10, float64(i%300)/10-6) // to 1e24
		s.Add(v)
		s.Add(-v)
	}
	if s.Exactly() || s.values != nil || len(s.counts) > 9_800 {
		t.Errorf("%d values and %d counts are kept", len(s.values), len(s.counts))
	}
	s.Add(math.NaN())
	s.Add(math.Inf(1))
	if got := s.Quantile(1); got != largest || s.N() != 600_001 {
		t.Errorf("the largest of %d is %v", s.N(), got)
	}
}

func TestNothing(t *testing.T) {
	var s Sketch
	low, high := s.Range()
	if !math.IsNaN(s.Quantile(0.5)) || !math.IsNaN(s.Above(1)) || !math.IsNaN(low) || !math.IsNaN(high) || !s.Exactly() {
		t.Error("nothing has quantiles")
	}
}
