package latency

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// class is what endpoints of one kind have in common.
type class struct {
	mu       sync.Mutex
	ttft     regression
	tpot     regression
	residual residual
	above    [regimes]quantile // of log(seen over predicted): the ninth of ten
	tpotOver quantile
	error    accuracy
	level    float64 // mean of the logarithms of the endpoints' slowness, by samples: slowness is meant against that
	seen     int

	known atomic.Pointer[model]
	heard atomic.Int64 // when the latest sample came, in ns
	asked asked        // guarded by knowledge.mu
	lead  lead         // by the same
}

// model is what predictions are made with. It is not changed once published.
type model struct {
	ttft, tpot terms
	forest     *forest // nil: none is worth having
	trial      *forest // the newest, whether worth having or not
	above      [regimes]float64
	tpotAbove  float64
	weight     float64 // samples that the coefficients come from
	error      float64 // mean of |seen − predicted| over seen
	tokenMs    float64 // for an uncached token, everything included
}

// The regimes that errors are told apart by: what part of a TTFT is the wait.
const (
	regimeIdle = iota // less than a fifth
	regimeShared
	regimeQueued // more than three fifths
	regimes
)

func regimeOf(share float64) int {
	switch {
	case share < 0.2:
		return regimeIdle
	case share < 0.6:
		return regimeShared
	default:
		return regimeQueued
	}
}

const (
	// startAbove is where a ninth of ten begins: half as long again.
	startAbove = 0.4
	// startWorth is how many samples that is worth: the first ones err most, and would send it far off.
	startWorth = 20
)

// newClass returns a class of which nothing is known but how many tokens per ms it is taken to prefill. whole says that what is to be
// predicted is the time to the end of a response.
func newClass(perMs float64, whole bool) *class {
	prior := ttftPrior(perMs)
	if !whole {
		prior = prior[:ttftAnswer]
	}
	c := &class{ttft: newRegression(prior), tpot: newRegression(tpotPrior(perMs)), tpotOver: quantile{at: startAbove, n: startWorth}}
	for i := range c.above {
		c.above[i] = c.tpotOver
	}
	c.publish()
	return c
}

func (c *class) publish() {
	m := &model{
		ttft: c.ttft.theta, tpot: c.tpot.theta, trial: c.residual.grown, tpotAbove: math.Exp(max(0, c.tpotOver.at)),
		weight: c.ttft.weight, error: c.error.share, tokenMs: c.ttft.theta[ttftOwn] / shareTokens,
	}
	if c.residual.worth() {
		m.forest = m.trial
	}
	for i := range m.above {
		m.above[i] = math.Exp(max(0, c.above[i].at))
	}
	c.known.Store(m)
}

// learnTTFT takes a time to a first token. Where a forest has become ripe that is still growing it waits for it: what is predicted
// follows from what was seen alone. Others go on learning meanwhile.
func (c *class) learnTTFT(f *flight, now time.Duration, ttftMs float64, spawn func(func())) {
	ripe := c.takeTTFT(f, now, ttftMs, spawn)
	if ripe == nil {
		return
	}
	grown := <-ripe
	c.mu.Lock()
	defer c.mu.Unlock()
	c.residual.take(grown)
	c.publish()
}

func (c *class) takeTTFT(f *flight, now time.Duration, ttftMs float64, spawn func(func())) (ripe <-chan *forest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.Store(int64(now))
	c.error.add(ttftMs, f.ttftMs)
	c.above[regimeOf(f.wait)].add(0.9, math.Log(ttftMs/f.ttftMs))
	if f.judged {
		alone := math.Log(ttftMs / f.linearMs)
		c.residual.judge(alone, alone-f.residual)
	}
	c.seen++
	c.level += (math.Log(f.slow) - c.level) * max(levelShare, 1/float64(c.seen))
	if c.ttft.add(&f.x, ttftMs/c.apart(f)) {
		c.publish()
	}
	return c.residual.add(&sample{z: f.z, x: f.x, slow: f.slow, ttftMs: ttftMs}, &c.ttft.theta, c.ttft.n, spawn)
}

// levelShare is how much of the level a sample makes.
const levelShare = 1. / 64

// apart is by what factor an endpoint's times are another's: what is the endpoint's own is taken out of what its class learns from.
// What all of a class have in common is none of it, else where the class begins would stay what it is for ever.
func (c *class) apart(f *flight) float64 { return f.slow / math.Exp(c.level) }

// learnTPOT takes a time per output token.
func (c *class) learnTPOT(f *flight, tpotMs float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.tpotMs > 0 {
		c.tpotOver.add(0.9, math.Log(tpotMs/f.tpotMs))
	}
	if c.tpot.add(&f.y, tpotMs/c.apart(f)) {
		c.publish()
	}
}
