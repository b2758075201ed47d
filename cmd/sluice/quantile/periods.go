package quantile

import (
	"iter"
	"maps"
	"slices"
	"time"
)

// Periods keeps something for each period of time: for each hour at first, and where there would be too many hours, for
// twice, four times, … as long.
type Periods[T any] struct {
	length time.Duration
	most   int
	merge  func(to, from *T)
	all    map[int64]*T
}

// NewPeriods makes periods of which there are never more than most, at least 2. merge adds what one holds to another.
func NewPeriods[T any](most int, merge func(to, from *T)) *Periods[T] {
	return &Periods[T]{length: time.Hour, most: max(2, most), merge: merge, all: map[int64]*T{}}
}

// At is what is kept for the period of a time, in nanoseconds since the Unix epoch.
func (p *Periods[T]) At(unixNano int64) *T {
	for {
		key := floorDiv(unixNano, int64(p.length))
		if t := p.all[key]; t != nil {
			return t
		}
		if len(p.all) < p.most {
			t := new(T)
			p.all[key] = t
			return t
		}
		p.lengthen()
	}
}

// lengthen doubles the periods.
func (p *Periods[T]) lengthen() {
	all := map[int64]*T{}
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		if t := all[floorDiv(key, 2)]; t != nil {
			p.merge(t, p.all[key])
		} else {
			all[floorDiv(key, 2)] = p.all[key]
		}
	}
	p.all, p.length = all, 2*p.length
}

// Length is how long each period is.
func (p *Periods[T]) Length() time.Duration { return p.length }

// All yields the periods' begins, in UTC and in order, and what is kept for each.
func (p *Periods[T]) All() iter.Seq2[time.Time, *T] {
	return func(yield func(time.Time, *T) bool) {
		for _, key := range slices.Sorted(maps.Keys(p.all)) {
			if !yield(time.Unix(key*int64(p.length/time.Second), 0).UTC(), p.all[key]) {
				return
			}
		}
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
