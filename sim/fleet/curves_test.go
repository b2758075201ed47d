package fleet

import (
	"math"
	"testing"
	"time"
)

// TestCurvesOfLongTimes: times whose sums are no time.Duration are drawn as they are.
func TestCurvesOfLongTimes(t *testing.T) {
	const long = time.Duration(math.MaxInt64)
	r := &Result{}
	for _, at := range []time.Duration{0, long / 2, long, long, long} {
		r.Samples = append(r.Samples, Sample{At: at, TTFT: long, PromptTokens: 10})
	}
	c := r.Curves(0)
	want := rounded(long.Seconds())
	if c.Over[0] != want || c.Over[TimeBins/2] != want || c.Over[TimeBins-1] != want || c.Over[1] != -1 || c.Span != want {
		t.Errorf("%v over %v, want %v", c.Over, c.Span, want)
	}
	if c := (&Result{Samples: []Sample{{At: -1, PromptTokens: 1}}}).Curves(0); c.Over[0] != 0 || c.Over[1] != -1 {
		t.Errorf("before the beginning: %v", c.Over)
	}
}
