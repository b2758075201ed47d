package rates

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
)

// knowledge is what has been learnt. It outlives the plugin that made it: the one of the next configuration takes it over.
type knowledge struct {
	endpoints scheduling.Instances[endpoint]
	classes   *classes.Set[class]
	busy      utilisation
	decode    decodes

	samples, decodeSamples atomic.Uint64
	skipped                [skips]atomic.Uint64
}

// endpoint is what is known of one endpoint instance.
type endpoint struct {
	class atomic.Pointer[class]
	meter meter
	speed speed
}

// class is what endpoints of one kind have in common: how long a request takes to its first token.
type class struct {
	mu    sync.Mutex
	fit   fit
	known atomic.Pointer[scheduling.LearntRates]
}

// The terms of a TTFT.
const (
	ttftBase  = iota // ms
	ttftAhead        // ms per token in flight when the request came
	ttftOwn          // ms per uncached token of its own
)

// priorBaseMs is the part of a TTFT that does not depend on tokens, where nothing is known.
const priorBaseMs = 20

// newClass begins with one rate for all tokens. A token ahead never counts for more than one of the request's own: it is computed
// just so, or partly done already, and where an engine makes requests wait for other reasons than prefill that is not the
// tokens' doing.
func newClass(perToken float64) *class {
	c := &class{fit: fit{
		prior: vector{priorBaseMs, perToken, perToken}, ridge: vector{1, 4, 4}, scaled: true, least: ttftAhead, most: ttftOwn,
	}}
	c.fit.theta = c.fit.prior
	c.publish()
	return c
}

// learn takes a sample, and returns the TTFT that was expected, in ms.
func (c *class) learn(x vector, ttftMs float64) (expected float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	expected = c.fit.theta.dot(x)
	if c.fit.add(x, ttftMs) {
		c.publish()
	}
	return expected
}

func (c *class) publish() {
	c.known.Store(&scheduling.LearntRates{
		PrefillMsPerToken: c.fit.theta[ttftOwn], WaitMsPerToken: c.fit.theta[ttftAhead], Confidence: c.fit.confidence(),
	})
}

// decodes is what is known of how long answers take.
type decodes struct {
	mu     sync.Mutex
	fit    fit
	output float64 // tokens of an answer, on average
	n      float64 // answers that count, faded ones as parts
	known  atomic.Pointer[scheduling.PoolPressure]
}

// The terms of the time that an answer takes after its first token.
const (
	decodeToken   = iota // ms per token
	decodeCompany        // ms per token and request that decodes at the same time
	decodeStall          // ms per ms in which the endpoint had prompts to compute
)

// An answer where nothing is known, and how many answers that is worth.
const (
	priorOutputTokens  = 256
	priorOutputSamples = 8
)

// begin starts from an engine of usual size. Company costs little then, but not nothing: of engines that are idle alike, those that
// answer fewer requests get the next one, so that the prefixes which come first spread evenly.
func (d *decodes) begin() {
	d.fit = fit{prior: vector{20, 0.1, 1}, ridge: vector{0.1, 0.1, 2}}
	d.fit.theta = d.fit.prior
	d.output, d.n = priorOutputTokens, priorOutputSamples
	d.publish()
}

// learn takes an answer: its tokens, how long they took after the first, and what its endpoint did meanwhile, in ms.
func (d *decodes) learn(tokens, tookMs, busyMs, companyMs float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n = d.n*(1-1./window) + 1
	d.output += (min(tokens, d.output*outlier) - d.output) / d.n // one answer is one answer, whatever it says of itself
	n := tokens - 1
	if !d.fit.add(vector{n, n * companyMs / tookMs, busyMs}, tookMs) {
		return
	}
	d.publish()
}

func (d *decodes) publish() {
	d.known.Store(&scheduling.PoolPressure{
		DecodeStall: d.fit.theta[decodeStall],
		// Each of the two makes each token of the other so much later: all of the newcomer's, and on average half of those of one
		// that is there already.
		CompanyMs:  1.5 * d.output * d.fit.theta[decodeCompany],
		Confidence: d.fit.confidence(),
	})
}

// of is what is known of an endpoint.
func (k *knowledge) of(e *scheduling.Endpoint) *endpoint {
	known := &k.endpoints.Take(e).Value
	if known.class.Load() == nil {
		known.class.Store(k.classes.Of(e))
	}
	return known
}

// rates are an endpoint's at a moment.
func (e *endpoint) rates(now time.Duration) scheduling.LearntRates { return e.scaled(e.speed.at(now)) }

// latest are its rates as of the last decision or sample.
func (e *endpoint) latest() scheduling.LearntRates { return e.scaled(e.speed.latest()) }

func (e *endpoint) scaled(f float64) scheduling.LearntRates {
	r := *e.class.Load().known.Load()
	r.PrefillMsPerToken *= f
	r.WaitMsPerToken *= f
	return r
}
