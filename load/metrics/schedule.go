package metrics

import (
	"math"
	"time"
)

// pace is how often a plugin reads pages where no interval is configured: every endpoint once per
// max(least, endpoints × perEndpoint), so that the cost of a large pool stays the same per second.
type pace struct{ least, perEndpoint time.Duration }

var (
	loadPace = pace{200 * time.Millisecond, 4 * time.Millisecond}
	infoPace = pace{5 * time.Second, 20 * time.Millisecond}
)

func (p pace) interval(endpoints int) time.Duration {
	return max(p.least, time.Duration(endpoints)*p.perEndpoint)
}

// maxBackoff is the longest pause between two scrapes of an endpoint whose page cannot be read, unless the interval is
// longer still.
const maxBackoff = 10 * time.Second

// backoff is the pause after a number of failures in a row: the interval, doubled with each.
func backoff(interval time.Duration, failures int) time.Duration {
	limit := max(interval, maxBackoff)
	for range failures {
		if interval *= 2; interval >= limit {
			return limit
		}
	}
	return interval
}

// phaseOf is an endpoint's place within the interval, in [0, 1). The multiples of the golden ratio lie evenly whatever
// their number: n of them leave no gap wider than 1.62/n or narrower than 0.38/n (the three-distance theorem). So an
// endpoint keeps its phase while others come and go. offset is the process's own, so that the pickers of one pool do not
// ask at the same moments.
func phaseOf(ordinal int, offset float64) float64 {
	const golden = 0.6180339887498949
	_, phase := math.Modf(float64(ordinal)*golden + offset)
	return phase
}

// nextAt is the first moment of an endpoint's phase that is at least half a pause after now: with a pause of one
// interval and a prompt answer exactly one interval after the last.
func nextAt(now, interval, pause time.Duration, phase float64) time.Duration {
	earliest := now + pause - interval/2
	at := time.Duration(phase * float64(interval))
	if earliest > at {
		at += (earliest - at + interval - 1) / interval * interval
	}
	return at
}

// ticks is in how many moments an interval is divided at which pages are read. What is due between two of them waits for
// the next, so that the pages of a large pool are read several at a time: most of what a page costs a process that does
// nothing else is that it is woken for it (docs/performance.md).
const ticks = 32

// onTick is the first such moment that is not before at.
func onTick(at, interval time.Duration) time.Duration {
	tick := max(interval/ticks, 1)
	return (at + tick - 1) / tick * tick
}
