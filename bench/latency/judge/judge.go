// Package judge says how far predictions of latency were off.
package judge

import (
	"fmt"
	"math"
	"slices"
)

// Errors are how far predictions were off what came.
type Errors struct {
	// Samples is how many there were.
	Samples int `json:"samples"`
	// MAPE and MedianAPE are the mean and the median of |predicted − actual| / actual, in percent.
	MAPE      float64 `json:"mape"`
	MedianAPE float64 `json:"median_ape"`
	// MAE is the mean of |predicted − actual|, in the unit of the values.
	MAE float64 `json:"mae_ms"`
	// Pinball50 is the pinball loss of the predictions as medians: half of MAE.
	Pinball50 float64 `json:"pinball50_ms"`
}

// Of compares predictions with what came; actual values are above 0.
func Of(actual, predicted []float64) (Errors, error) {
	e := Errors{Samples: len(actual)}
	if err := check(actual, predicted); err != nil {
		return e, err
	}
	shares := make([]float64, len(actual))
	for i, a := range actual {
		off := math.Abs(predicted[i] - a)
		shares[i] = 100 * off / a
		e.MAPE += shares[i]
		e.MAE += off
	}
	e.MAPE /= float64(len(actual))
	e.MAE /= float64(len(actual))
	e.MedianAPE = Median(shares)
	e.Pinball50 = pinball(actual, predicted, 0.5)
	return e, nil
}

// Pinball is the pinball loss of predictions of a quantile q, 0 to 1, in the unit of the values: the mean of
// q·(actual − predicted) where that is positive, of (1−q)·(predicted − actual) elsewhere (Koenker and Bassett 1978). The true
// quantile has the least.
func Pinball(actual, predicted []float64, q float64) (float64, error) {
	if !(q > 0 && q < 1) {
		return 0, fmt.Errorf("quantile: must be above 0 and below 1, got %v", q)
	}
	if err := check(actual, predicted); err != nil {
		return 0, err
	}
	return pinball(actual, predicted, q), nil
}

func pinball(actual, predicted []float64, q float64) float64 {
	sum := 0.0
	for i, a := range actual {
		d := a - predicted[i]
		sum += max(q*d, (q-1)*d)
	}
	return sum / float64(len(actual))
}

func check(actual, predicted []float64) error {
	if len(actual) == 0 || len(actual) != len(predicted) {
		return fmt.Errorf("%d predictions for %d values", len(predicted), len(actual))
	}
	for i, a := range actual {
		if p := predicted[i]; !(a > 0) || math.IsInf(a, 1) || math.IsNaN(p) || math.IsInf(p, 0) {
			return fmt.Errorf("value %d: %v cannot be held against %v", i+1, p, a)
		}
	}
	return nil
}

// Median is the middle of some numbers, of an even number the mean of the two in the middle; 0 of none. It sorts them.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
