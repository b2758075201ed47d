package rates

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// speed is by how much an endpoint is slower than its class: the geometric mean of what was seen over what was expected.
type speed struct {
	mu     sync.Mutex
	n, sum float64 // faded samples, and their logarithms
	last   time.Duration

	factor atomic.Uint64 // bits of the factor as of the last reading or sample
	due    atomic.Int64  // when it has faded so much that it has to be computed anew
}

const (
	// speedWindow is over how many samples their weight falls to 1/e.
	speedWindow = 48
	// speedPrior is how many samples say as much as the assumption that a class's endpoints are alike.
	speedPrior = 8
	// speedChance is the logarithm of a factor that chance explains. Endpoints within it are alike to the bit: on idle ones a new
	// prefix then goes to any, and not always to the one that seems a little faster.
	speedChance = 0.25
	// speedForget is the time after which a sample's weight has fallen to 1/e: an endpoint that nobody picks because it was
	// slow gets another chance.
	speedForget = 2 * time.Minute
)

// add learns from a sample.
func (s *speed) add(now time.Duration, ratio float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fade(now)
	s.n = s.n*(1-1./speedWindow) + 1
	s.sum = s.sum*(1-1./speedWindow) + math.Log(min(max(ratio, 1./outlier), outlier))
	s.publish(now)
}

// at is the factor at a moment.
func (s *speed) at(now time.Duration) float64 {
	if int64(now) >= s.due.Load() {
		s.mu.Lock()
		s.fade(now)
		s.publish(now)
		s.mu.Unlock()
	}
	return s.latest()
}

// latest is the factor as it was last computed; 1 where it never was.
func (s *speed) latest() float64 {
	if bits := s.factor.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1
}

func (s *speed) fade(now time.Duration) {
	if dt := now - s.last; dt > 0 {
		keep := math.Exp(-float64(dt) / float64(speedForget))
		s.n, s.sum, s.last = s.n*keep, s.sum*keep, now
	}
}

func (s *speed) publish(now time.Duration) {
	mean := s.sum / (s.n + speedPrior)
	if math.Abs(mean) < speedChance {
		mean = 0
	}
	s.factor.Store(math.Float64bits(math.Exp(mean)))
	s.due.Store(int64(max(now, s.last) + speedForget/32))
}
