package zmtp

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff spaces the dials of a connection that is kept up. A field that is not positive stands for its default.
type Backoff struct {
	// Min is the first delay, 100 ms by default, and doubles with each failure up to Max, 5 s by default. Half of each
	// delay is left to chance, so that many do not dial at once.
	Min, Max time.Duration
	// Rand gives numbers in [0, 1); by default those of math/rand/v2.
	Rand func() float64
}

func (b Backoff) withDefaults() Backoff {
	b.Min = positive(b.Min, 100*time.Millisecond)
	b.Max = max(positive(b.Max, 5*time.Second), b.Min)
	if b.Rand == nil {
		b.Rand = rand.Float64
	}
	return b
}

// delay is the wait after so many failures in a row, the first being 0.
func (b Backoff) delay(failures int) time.Duration {
	d := b.Min
	for range failures {
		if d >= b.Max/2 {
			d = b.Max
			break
		}
		d *= 2
	}
	return d/2 + time.Duration(b.Rand()*float64(d/2))
}

// keepUp runs connect, which ends with the connection, until ctx ends. A connection that proved itself (useful) makes
// the next delay the first again.
func keepUp(ctx context.Context, b Backoff, connect func(ctx context.Context) (useful bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; failures++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if connect(ctx) {
			failures = 0
		}
		timer.Reset(b.delay(failures))
	}
}
