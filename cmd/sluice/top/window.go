package top

import (
	"math"
	"time"
)

// The time that rates and shares look back.
const (
	rateSeconds = 10
	hitSeconds  = 60
)

var noShare = math.NaN()

// window counts what was decided in each of the last hitSeconds seconds.
type window struct {
	seconds [hitSeconds]second
}

type second struct {
	unix          int64
	picks         uint64
	cached, total uint64 // blocks
}

func (w *window) add(at time.Time, picks, cached, total uint64) {
	unix := at.Unix()
	s := &w.seconds[((unix%hitSeconds)+hitSeconds)%hitSeconds]
	if s.unix > unix {
		return // older than what is looked back to
	}
	if s.unix < unix {
		*s = second{unix: unix}
	}
	s.picks += picks
	s.cached += cached
	s.total += total
}

// rate is how many there were per second, of late; begin is since when they are counted.
func (w *window) rate(now, begin time.Time) float64 {
	var picks uint64
	for _, s := range w.seconds {
		if age := now.Unix() - s.unix; age >= 0 && age < rateSeconds {
			picks += s.picks
		}
	}
	covered := now.Sub(time.Unix(now.Unix()-rateSeconds+1, 0)).Seconds() // the seconds before, and what has passed of this one
	return float64(picks) / min(covered, max(1, now.Sub(begin).Seconds()))
}

// hit is the share of the blocks that were cached.
func (w *window) hit(now time.Time) float64 {
	var cached, total uint64
	for _, s := range w.seconds {
		if age := now.Unix() - s.unix; age >= 0 && age < hitSeconds {
			cached += s.cached
			total += s.total
		}
	}
	return float64(cached) / float64(total)
}
