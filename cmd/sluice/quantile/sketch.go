// Package quantile counts numbers so that their quantiles can be told in bounded memory: exactly while there are few, and
// within half a percent of the value after that.
package quantile

import (
	"math"
	"slices"
)

const (
	// Exact is how many numbers a Sketch keeps as they are. Beyond that it keeps counts.
	Exact = 4096
	// Error is by how much a quantile out of counts may be off, as a share of its value.
	Error = 0.005

	growth  = 1.01 // the ratio of a bucket's ends, of which Error is half
	least   = 1e-3 // what is nearer to 0 counts as 0
	largest = 1e18 // what is further away counts as that far
)

var logGrowth = math.Log(growth)

// Sketch counts numbers. Its buckets grow by one percent (as in "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with
// Relative-Error Guarantees", Masson et al., 2019), so that there are at most 4,900 of either sign. The zero value is empty.
type Sketch struct {
	values   []float64 // all of them, while few
	counts   map[int]uint64
	n        uint64
	min, max float64
}

// Add counts a number. One that is not a number is left out.
func (s *Sketch) Add(v float64) { s.add(v, 1) }

func (s *Sketch) add(v float64, n uint64) {
	if math.IsNaN(v) || n == 0 {
		return
	}
	v = min(largest, max(-largest, v))
	if s.n == 0 {
		s.min, s.max = v, v
	}
	s.min, s.max, s.n = min(s.min, v), max(s.max, v), s.n+n
	if s.counts == nil && n == 1 && len(s.values) < Exact {
		s.values = append(s.values, v)
		return
	}
	s.spill()
	s.counts[bucket(v)] += n
}

// spill turns the numbers into counts.
func (s *Sketch) spill() {
	if s.counts != nil {
		return
	}
	s.counts = make(map[int]uint64)
	for _, v := range s.values {
		s.counts[bucket(v)]++
	}
	s.values = nil
}

// bucket is a number's: 0 for 0, and from there on with its size, on either side.
func bucket(v float64) int {
	a := math.Abs(v)
	if a < least {
		return 0
	}
	i := 1 + int(math.Ceil(math.Log(a/least)/logGrowth))
	if v < 0 {
		return -i
	}
	return i
}

// middle is what a bucket's numbers are taken for: as far from either end in proportion.
func middle(bucket int) float64 {
	if bucket == 0 {
		return 0
	}
	i := max(bucket, -bucket)
	v := least * math.Exp(float64(i-1)*logGrowth) * 2 / (1 + growth)
	if bucket < 0 {
		return -v
	}
	return v
}

// Merge adds what another sketch has counted.
func (s *Sketch) Merge(o *Sketch) {
	for _, v := range o.values {
		s.Add(v)
	}
	for b, n := range o.counts {
		s.add(min(o.max, max(o.min, middle(b))), n)
	}
}

// N is how many numbers were counted.
func (s *Sketch) N() uint64 { return s.n }

// Exactly reports whether quantiles are exact rather than within Error.
func (s *Sketch) Exactly() bool { return s.counts == nil }

// Quantile is the smallest number that is at least as large as a share q of all, NaN where there is none.
func (s *Sketch) Quantile(q float64) float64 {
	if s.n == 0 {
		return math.NaN()
	}
	rank := uint64(max(1, math.Ceil(min(1, max(0, q))*float64(s.n)-1e-9)))
	if s.counts == nil {
		slices.Sort(s.values)
		return s.values[rank-1]
	}
	if rank == s.n {
		return s.max
	}
	for _, b := range s.buckets() {
		n := s.counts[b]
		if rank <= n {
			return min(s.max, max(s.min, middle(b)))
		}
		rank -= n
	}
	return s.max
}

// Above is the share of numbers larger than x; NaN where there is none.
func (s *Sketch) Above(x float64) float64 {
	if s.n == 0 {
		return math.NaN()
	}
	above := uint64(0)
	for _, v := range s.values {
		if v > x {
			above++
		}
	}
	at := bucket(min(largest, max(-largest, x)))
	for b, n := range s.counts {
		if b > at {
			above += n
		}
	}
	return float64(above) / float64(s.n)
}

// Range is the smallest and the largest number, exactly; NaN where there is none.
func (s *Sketch) Range() (smallest, largest float64) {
	if s.n == 0 {
		return math.NaN(), math.NaN()
	}
	return s.min, s.max
}

func (s *Sketch) buckets() []int {
	all := make([]int, 0, len(s.counts))
	for b := range s.counts {
		all = append(all, b)
	}
	slices.Sort(all)
	return all
}
