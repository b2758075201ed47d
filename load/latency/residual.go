package latency

import "math"

// sample is what the residual is learnt from.
type sample struct {
	z      sight
	x      terms
	slow   float64 // the endpoint's slowness at the pick
	ttftMs float64
}

const (
	// kept are the newest samples that trees are grown from.
	kept = 4096
	// firstGrowth is how many samples make the first forest. Between two come a quarter of all that came before, at least growEvery and at
	// most growSeldom: what forests cost stays a small part of a core at any rate.
	firstGrowth = 512
	growEvery   = 1024
	growSeldom  = 8192
	// ripeAfter is how many samples after its growth has begun a forest is taken in. Samples decide that and no clock: what is
	// predicted follows from what was seen alone.
	ripeAfter = 64
	// triedOn is how many predictions the first forest is tried on before it counts.
	triedOn = 32
	// mostResidual bounds the residual's logarithm.
	mostResidual = 2
)

// residual is what the linear model leaves: a forest, the samples that it is grown from, and whether it is worth having.
type residual struct {
	ring    []sample
	next    int
	seen    uint64
	growAt  uint64       // the sample at which the next forest begins; 0: the first one
	growing chan *forest // nil: none is
	ripeAt  uint64
	waiting bool // for one that is ripe and still growing
	grown   *forest
	// alone and helped are the mean errors |log(seen/predicted)| without and with the forest.
	alone, helped float64
	judged        int
}

// add takes a sample in, and begins the growth of a forest where it is time. spawn runs a function beside the caller. Where a forest
// has become ripe it returns where that comes from; the caller hands it to take.
func (r *residual) add(s *sample, theta *terms, n int, spawn func(func())) (ripe <-chan *forest) {
	if len(r.ring) < kept {
		r.ring = append(r.ring, *s)
	} else {
		r.ring[r.next] = *s
		r.next = (r.next + 1) % kept
	}
	r.seen++
	if r.growing != nil && r.seen >= r.ripeAt {
		ripe, r.growing, r.waiting = r.growing, nil, true
	}
	if r.growing == nil && !r.waiting && r.seen >= max(firstGrowth, r.growAt) {
		r.growAt = r.seen + min(max(r.seen/4, growEvery), growSeldom)
		r.begin(theta, n, spawn)
	}
	return ripe
}

// take takes in a forest that was grown, nil where that failed: the one before stays.
func (r *residual) take(grown *forest) {
	r.waiting = false
	if grown != nil {
		r.grown = grown
	}
}

// begin grows a forest over what the linear model leaves of the samples.
func (r *residual) begin(theta *terms, n int, spawn func(func())) {
	z, y := make([]sight, len(r.ring)), make([]float32, len(r.ring))
	for i := range r.ring {
		s := &r.ring[i]
		z[i] = s.z
		y[i] = float32(bounded(math.Log(s.ttftMs / (s.x.dot(theta, n) * s.slow))))
	}
	done, seed := make(chan *forest, 1), r.seen
	r.growing, r.ripeAt = done, r.seen+ripeAfter
	spawn(func() {
		defer close(done)
		done <- grow(z, y, seed)
	})
}

// judge notes by how much a prediction was off without the forest and with it.
func (r *residual) judge(alone, helped float64) {
	r.judged++
	step := max(1./256, 1/float64(r.judged))
	r.alone += (math.Abs(bounded(alone)) - r.alone) * step
	r.helped += (math.Abs(bounded(helped)) - r.helped) * step
}

// worth reports whether predictions with the forest have been better than without.
func (r *residual) worth() bool {
	return r.grown != nil && r.judged >= triedOn && r.helped <= 0.98*r.alone
}

func bounded(l float64) float64 { return min(max(l, -mostResidual), mostResidual) }
