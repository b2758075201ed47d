package latency

import (
	"math"
	"time"
)

// slowness is by how much an endpoint is slower than its class: the geometric mean of what was seen over what was expected. It is
// guarded by knowledge.mu.
type slowness struct {
	n, sum, square float64 // faded samples, their logarithms and the squares of those
	recent         float64 // mean of the logarithms of the last few
	last           time.Duration
	factor         float64 // 0: never computed, which is 1
}

const (
	// slownessWindow is over how many samples their weight falls to 1/e.
	slownessWindow = 32
	// recently is over how many samples recent is taken. Where it is off by more than chance, what was before no longer counts.
	recently = 4
	// slownessPrior is how many samples say as much as the assumption that a class's endpoints are alike.
	slownessPrior = 2
	// slownessForget is the time after which a sample's weight has fallen to 1/e: an endpoint that nobody picks because it was
	// slow gets another chance.
	slownessForget = 2 * time.Minute
	// chance is how many standard errors the mean may be off for endpoints that are alike. Within that they are alike to the bit.
	chance = 3
)

// add learns from a sample.
func (s *slowness) add(now time.Duration, ratio float64) {
	s.fade(now)
	l := math.Log(min(max(ratio, 1./furthest), furthest))
	s.recent += (l - s.recent) / recently
	if spread := s.spread(); s.n > 0 && math.Abs(s.recent-s.sum/s.n) > chance*spread/math.Sqrt(recently) {
		s.n, s.sum, s.square = 2, 2*s.recent, 2*(s.recent*s.recent+spread*spread)
	}
	const keep = 1 - 1./slownessWindow
	s.n, s.sum, s.square = s.n*keep+1, s.sum*keep+l, s.square*keep+l*l
	s.compute()
}

// at is the factor at a moment.
func (s *slowness) at(now time.Duration) float64 {
	if now-s.last > slownessForget/32 && s.n > 0 {
		s.fade(now)
		s.compute()
	}
	return s.latest()
}

// latest is the factor as it was last computed; 1 where it never was.
func (s *slowness) latest() float64 {
	if s.factor == 0 {
		return 1
	}
	return s.factor
}

func (s *slowness) fade(now time.Duration) {
	if dt := now - s.last; dt > 0 {
		keep := math.Exp(-float64(dt) / float64(slownessForget))
		s.n, s.sum, s.square, s.last = s.n*keep, s.sum*keep, s.square*keep, now
	}
}

// spread is the standard deviation of the logarithms, with one sample more of a spread that is usual: a single one has none.
func (s *slowness) spread() float64 {
	if s.n == 0 {
		return usualSpread
	}
	square := max(0, s.square/s.n-(s.sum/s.n)*(s.sum/s.n))
	return math.Sqrt((square*s.n + usualSpread*usualSpread) / (s.n + 1))
}

func (s *slowness) compute() {
	mean := s.sum / (s.n + slownessPrior)
	if math.Abs(mean) < chance*s.spread()/math.Sqrt(s.n) {
		mean = 0
	}
	s.factor = math.Exp(mean)
}

// usualSpread is the standard deviation of the logarithms where few are known.
const usualSpread = 0.3
