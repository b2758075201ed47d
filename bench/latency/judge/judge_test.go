package judge

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The figures are computed by hand: 100 for 80, 200 for 260, 50 for 50, 400 for 300 are off by 20, 60, 0 and 100, that is by 20, 30, 0
// and 25 percent.
var (
	actual    = []float64{100, 200, 50, 400}
	predicted = []float64{80, 260, 50, 300}
)

func TestErrors(t *testing.T) {
	got, err := Of(actual, predicted)
	want := Errors{Samples: 4, MAPE: 18.75, MedianAPE: 22.5, MAE: 45, Pinball50: 22.5}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-12)); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// Too low by 20 and 100 costs 0.9 of it, too high by 60 a tenth: (18 + 6 + 0 + 90) / 4.
func TestPinball(t *testing.T) {
	got, err := Pinball(actual, predicted, 0.9)
	if err != nil || math.Abs(got-28.5) > 1e-12 {
		t.Errorf("%v, %v, want 28.5", got, err)
	}
}

// TestPinballIsLeastAtTheQuantile: of all constants the 90th percentile has the least loss.
func TestPinballIsLeastAtTheQuantile(t *testing.T) {
	var values []float64
	for i := range 100 {
		values = append(values, float64(i+1))
	}
	best, at := math.Inf(1), 0.0
	for c := 0.5; c < 101; c++ {
		constant := make([]float64, len(values))
		for i := range constant {
			constant[i] = c
		}
		if loss, err := Pinball(values, constant, 0.9); err != nil {
			t.Fatal(err)
		} else if loss < best {
			best, at = loss, c
		}
	}
	if at != 90.5 {
		t.Errorf("the least loss is at %v", at)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string][2][]float64{
		"nothing":         {},
		"one missing":     {{1, 2}, {1}},
		"not a number":    {{1}, {math.NaN()}},
		"infinite":        {{1}, {math.Inf(1)}},
		"nothing to miss": {{0}, {1}},
	} {
		if _, err := Of(c[0], c[1]); err == nil {
			t.Errorf("%s: was compared", name)
		}
		if _, err := Pinball(c[0], c[1], 0.5); err == nil {
			t.Errorf("%s: has a loss", name)
		}
	}
	for _, q := range []float64{0, 1, -1, math.NaN()} {
		if _, err := Pinball(actual, predicted, q); err == nil {
			t.Errorf("quantile %v was taken", q)
		}
	}
	if m := Median(nil); m != 0 {
		t.Errorf("the median of nothing is %v", m)
	}
}
