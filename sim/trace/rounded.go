package trace

import (
	"math"
	"slices"
	"time"
)

// The bounds of what Rounded takes for rounded times.
const (
	// leastRounded is how many requests a trace has at least that is judged, and leastStep the shortest step that matters: within
	// less than it an engine does a single step.
	leastRounded = 100
	leastStep    = 10 * time.Millisecond
	// perInstant is how many requests come at the same instant on average, at least, and evenShare how many of the instants
	// follow each other by the same time, to a twentieth.
	perInstant = 2
	evenShare  = 0.5
)

// Rounded is the step that the times of a trace are rounded to; 0: they do not look rounded. They do where several requests come
// at each instant on average, and most instants are equally far apart. Bursts at odd times are taken for what they are.
func (t *Trace) Rounded() time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(t.Requests); i++ {
		if gap := t.Requests[i].At - t.Requests[i-1].At; gap > 0 {
			gaps = append(gaps, gap)
		}
	}
	if len(t.Requests) < leastRounded || len(gaps) < leastRounded/10 || perInstant*(len(gaps)+1) > len(t.Requests) {
		return 0
	}
	slices.Sort(gaps)
	step, even := gaps[len(gaps)/2], 0
	for _, gap := range gaps {
		if math.Abs(float64(gap-step)) <= float64(step)/20 {
			even++
		}
	}
	if step < leastStep || float64(even) < evenShare*float64(len(gaps)) {
		return 0
	}
	unit := time.Duration(math.Pow(10, math.Floor(math.Log10(float64(step)))-1)) // 2,999 ms are 3 s
	return step.Round(unit)
}
