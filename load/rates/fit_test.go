package rates

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// about reports whether got is within a share of want.
func about(got, want, share float64) bool { return math.Abs(got-want) <= share*math.Abs(want) }

// queue makes samples of an engine with so many ms per token, of which a token ahead costs part; the noise is 10 %.
type queue struct {
	perToken, ahead, base float64
	random                *rand.Rand
}

func (q *queue) sample() (x vector, y float64) {
	x = vector{1, float64(q.random.IntN(4)) * 3000 * q.random.Float64(), math.Exp(4 + 5*q.random.Float64())}
	y = q.base + q.perToken*(q.ahead*x[ttftAhead]+x[ttftOwn])
	return x, y * math.Exp(0.1*q.random.NormFloat64())
}

func newQueue(throughput, ahead, base float64) *queue {
	return &queue{1000 / throughput, ahead, base, rand.New(rand.NewPCG(1, uint64(throughput)))}
}

// The measured peaks of eight deployments range from 743 to 27,261 tokens per second; the constant is 15,928.
func TestFindsTheRatesOfAnyDeployment(t *testing.T) {
	for _, throughput := range []float64{743, 3000, 15928, 27261} {
		for _, ahead := range []float64{0.5, 0.9} {
			c, q := newClass(1000./15928), newQueue(throughput, ahead, 30)
			for range 200 {
				c.learn(q.sample())
			}
			known := c.known.Load()
			if !about(known.PrefillMsPerToken, 1000/throughput, 0.15) || !about(known.WaitMsPerToken, ahead*1000/throughput, 0.25) {
				t.Errorf("%v tok/s, ahead %v: prefill %v ms a token, wait %v, want %v and %v",
					throughput, ahead, known.PrefillMsPerToken, known.WaitMsPerToken, 1000/throughput, ahead*1000/throughput)
			}
			if known.Confidence < 0.85 || known.Confidence >= 1 {
				t.Errorf("confidence %v after 200 samples", known.Confidence)
			}
		}
	}
}

func TestFollowsAShift(t *testing.T) {
	c, q := newClass(1000./15928), newQueue(15928, 0.8, 30)
	for range 500 {
		c.learn(q.sample())
	}
	q.perToken *= 3
	for range 500 {
		c.learn(q.sample())
	}
	if got := c.known.Load().PrefillMsPerToken; !about(got, 3000./15928, 0.15) {
		t.Errorf("500 requests after an engine became three times slower: %v ms a token, want %v", got, 3000./15928)
	}
}

// One sample, however strange, is one sample.
func TestOneOutlierMovesLittle(t *testing.T) {
	c, q := newClass(1000./15928), newQueue(15928, 0.8, 30)
	for range 300 {
		c.learn(q.sample())
	}
	before := c.known.Load().PrefillMsPerToken
	for range solveEvery {
		x, y := q.sample()
		c.learn(x, y)
	}
	c.learn(vector{1, 0, 5000}, 1e9)
	for range solveEvery {
		c.learn(q.sample())
	}
	if after := c.known.Load().PrefillMsPerToken; !about(after, before, 0.3) {
		t.Errorf("an hour for one request moved the rate from %v to %v ms a token", before, after)
	}
}

// Where all requests are alike their terms cannot be told apart. The rates must stay near each other and explain what is seen.
func TestRequestsThatAreAllAlike(t *testing.T) {
	c := newClass(1000. / 15928)
	for range 1000 {
		c.learn(vector{1, 0, 400}, 55)
	}
	c.mu.Lock()
	got := c.fit.theta
	c.mu.Unlock()
	if expected := got.dot(vector{1, 0, 400}); !about(expected, 55, 0.05) {
		t.Errorf("expects %v ms of what always takes 55", expected)
	}
	if got[ttftAhead] <= 0 || got[ttftAhead] > got[ttftOwn] || !about(got[ttftOwn], 1000./15928, 1) {
		t.Errorf("rates %v", got)
	}
}

// A wait that grows with anything but tokens is not blamed on them: a token ahead never counts for more than an own one.
func TestWaitsThatAreNotOfTokens(t *testing.T) {
	c, random := newClass(1000./15928), rand.New(rand.NewPCG(3, 4))
	for range 500 {
		ahead := 100 * random.Float64()
		c.learn(vector{1, ahead, 400}, 50+ahead*100)
	}
	if known := c.known.Load(); known.WaitMsPerToken > known.PrefillMsPerToken {
		t.Errorf("wait %v, prefill %v ms a token", known.WaitMsPerToken, known.PrefillMsPerToken)
	}
}

func TestDecodesAreTaken(t *testing.T) {
	var d decodes
	d.begin()
	random := rand.New(rand.NewPCG(5, 6))
	for range 600 {
		tokens, company := 20+random.IntN(1000), 60*random.Float64()
		n, busy := float64(tokens-1), 0.4*random.Float64()
		// 12 ms a token, 0.4 more for each in its company, and of each ms of prefill 0.8 lost.
		took := n * (12 + 0.4*company) / (1 - 0.8*busy)
		d.learn(float64(tokens), took*math.Exp(0.05*random.NormFloat64()), busy*took, company*took)
	}
	known := d.known.Load()
	if !about(known.DecodeStall, 0.8, 0.15) {
		t.Errorf("stall %v, want 0.8", known.DecodeStall)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !about(d.fit.theta[decodeToken], 12, 0.15) || !about(d.fit.theta[decodeCompany], 0.4, 0.15) {
		t.Errorf("%v, want 12 ms a token and 0.4 for each in its company", d.fit.theta)
	}
	if want := 1.5 * 520 * 0.4; !about(known.CompanyMs, want, 0.25) {
		t.Errorf("company %v ms, want about %v", known.CompanyMs, want)
	}
}

// Requests that are slow for other reasons than their tokens (a grammar is compiled, an image is fetched) are few and may be far
// off. Tokens still cost what they cost, about, and a request without any is not free of others.
func TestFewSlowRequestsDoNotMakeTokensCostNothing(t *testing.T) {
	for _, tc := range []struct {
		own, ms, share float64
	}{{50, 1000, 0.01}, {1, 300, 0.05}, {1, 300, 0.02}, {1, 1000, 0.003}, {500, 2000, 0.02}, {0, 5000, 0.1}, {50, 5000, 0.3}, {8000, 1, 0.1}} {
		c, random := newClass(1000./15928), rand.New(rand.NewPCG(7, 8))
		for range 3000 {
			own := 500 + 8000*random.Float64()
			x, y := vector{1, 0, own}, 20+own/15.928
			if random.Float64() < tc.share {
				x[ttftOwn], y = tc.own, tc.ms
			}
			c.learn(x, y)
		}
		// A tenth of all requests is a lot; a few percent must not move the rate by a half.
		factor := 1.4
		if tc.share >= 0.1 {
			factor = 2.5
		}
		if r := c.known.Load().PrefillMsPerToken * 15.928; !(r > 1/factor && r < factor) {
			t.Errorf("%v of the requests with %v tokens and %v ms: a token costs %v times what it does", tc.share, tc.own, tc.ms, r)
		}
	}
}

// What an engine says of one answer's length cannot be more than one answer's worth.
func TestOneAnswerSaysLittle(t *testing.T) {
	for _, lie := range []float64{1e6, 1e9, 1 << 40} {
		var d decodes
		d.begin()
		honest := func() { d.learn(200, 200*12, 0, 200*12) }
		for range 256 {
			honest()
		}
		before := d.known.Load().CompanyMs
		d.learn(lie, 1000, 0, 1000)
		for range 2 * solveEvery {
			honest()
		}
		if after := d.known.Load().CompanyMs; !(after < 1.5*before && after > before/1.5) {
			t.Errorf("one answer of %v tokens: company from %v to %v ms", lie, before, after)
		}
	}
}

// Whatever comes, coefficients are numbers, not negative, and in their order.
func TestFitsStaySane(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClass(rapid.SampledFrom([]float64{0.001, 0.06, 10}).Draw(rt, "prior"))
		positive := rapid.Float64Range(0, 1e12)
		for range rapid.IntRange(1, 100).Draw(rt, "samples") {
			x := vector{1, positive.Draw(rt, "ahead"), positive.Draw(rt, "own")}
			c.learn(x, rapid.SampledFrom([]float64{1e-9, 1, 50, 1e4, 1e12, 0, -1, math.Inf(1), math.NaN()}).Draw(rt, "y"))
		}
		known := c.known.Load()
		for i, v := range []float64{known.PrefillMsPerToken, known.WaitMsPerToken, known.Confidence} {
			if !(v >= 0) || math.IsInf(v, 1) || i == 0 && v == 0 {
				rt.Fatalf("%+v", *known)
			}
		}
		if known.WaitMsPerToken > known.PrefillMsPerToken {
			rt.Fatalf("%+v", *known)
		}
	})
}
