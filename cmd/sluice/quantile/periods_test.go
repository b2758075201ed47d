package quantile

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the times, nothing is lost, periods are few and everything lies in its own.
func TestPeriods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPeriods(4, func(to, from *[]int64) { *to = append(*to, *from...) })
		times := rapid.SliceOf(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1e14, 1e14))).Draw(t, "times")
		for _, at := range times {
			kept := p.At(at)
			*kept = append(*kept, at)
		}
		n := 0
		for begin, kept := range p.All() {
			for _, at := range *kept {
				if second := floorDiv(at, int64(time.Second)); second < begin.Unix() || second >= begin.Add(p.Length()).Unix() {
					t.Fatalf("%d lies in the period from %v", at, begin)
				}
			}
			n += len(*kept)
		}
		if n != len(times) || len(p.all) > 4 {
			t.Fatalf("%d of %d in %d periods", n, len(times), len(p.all))
		}
	})
}

func TestHours(t *testing.T) {
	p := NewPeriods(3, func(to, from *int) { *to += *from })
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for i := range 3 {
		*p.At(day.Add(time.Duration(i) * time.Hour).UnixNano())++
	}
	if p.Length() != time.Hour {
		t.Errorf("three hours are of %v", p.Length())
	}
	*p.At(day.Add(3 * time.Hour).UnixNano())++
	for begin, n := range p.All() {
		if p.Length() != 2*time.Hour || *n != 2 || begin.Hour()%2 != 0 {
			t.Errorf("from %v there are %d", begin, *n)
		}
	}
}
