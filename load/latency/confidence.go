package latency

import "time"

const (
	// halfTrusted is the number of samples at which they are trusted as much as the prior.
	halfTrusted = 50
	// halfStale is the time without a sample after which those that there are count half.
	halfStale = 10 * time.Minute
	// sharedError is how many samples of an endpoint say as much about how far predictions are off as its class does.
	sharedError = 8
	// mostErrors is how many of an endpoint's samples count for that at most.
	mostErrors = 64
)

// confidence is how far what a model says of an endpoint is measured, 0 to 1. It is less where samples are few or old, where there are
// none of the endpoint itself, so that only its class speaks for it, and where predictions have been off.
func (e *endpoint) confidence(m *model, now time.Duration) float64 {
	age := max(0, now-time.Duration(e.class.heard.Load()))
	weight := m.weight / (1 + float64(age)/float64(halfStale))
	own := float64(min(e.error.n, mostErrors))
	off := (own*e.error.share + sharedError*m.error) / (own + sharedError)
	return weight / (weight + halfTrusted) * (e.slow.n + slownessPrior) / (e.slow.n + 2*slownessPrior) / (1 + off)
}

// accuracy is how far predictions were off.
type accuracy struct {
	n     int
	share float64 // mean of |seen − predicted| over seen
}

func (a *accuracy) add(seen, predicted float64) {
	a.n++
	off := min(furthest, max(seen-predicted, predicted-seen)/seen)
	a.share += (off - a.share) * max(1./64, 1/float64(a.n))
}
