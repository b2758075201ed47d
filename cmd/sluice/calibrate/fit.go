package calibrate

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Interval is a measured value and the bounds between which the true one is with a confidence of 95 %.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Wide is by how much of the value the interval reaches from it, on its wider side.
func (i Interval) Wide() float64 { return max(i.High-i.Value, i.Value-i.Low) / math.Abs(i.Value) }

// sample is one request's time to the first token and the work before it.
type sample struct {
	at       int64   // nanoseconds since the Unix epoch
	uncached float64 // prompt tokens of its own that were computed
	ahead    float64 // tokens in flight when it came
	ms       float64
}

// terms are a fit's coefficients: ms, ms per own token, ms per token ahead.
type terms [3]float64

func (t terms) of(s sample) float64 { return t[0] + t[1]*s.uncached + t[2]*s.ahead }

// model is
//
//	TTFT = base + own · uncached tokens + wait · tokens in flight ahead
//
// with coefficients that are not negative, by least squares of the errors relative to the expected time. Huber's weights
// (Huber 1964, "Robust estimation of a location parameter") bound what requests count that were held up by something else.
type model struct {
	terms
	tied bool // nothing was ever ahead: a token ahead is taken to cost what an own one does
}

// The constants of the regression.
const (
	rounds      = 12
	huber       = 1.345 // times the spread: 95 % as good as least squares where errors are normal
	leastSpread = 0.01
	resamples   = 200
	blocks      = 50
)

// fitModel fits to samples, starting from where an earlier fit ended; nil starts anew.
func fitModel(samples []sample, from *model, rounds int) model {
	m := model{}
	own, ahead := 0.0, 0.0
	for _, s := range samples {
		own, ahead = own+s.uncached, ahead+s.ahead
	}
	m.tied = ahead < 0.02*own
	expected := func(s sample) float64 { return max(1e-3, s.ms) }
	if from != nil {
		m.terms = from.terms
		expected = func(s sample) float64 { return max(1e-3, m.of(s)) }
	}
	spread := math.Inf(1)
	residuals := make([]float64, len(samples))
	for round := range rounds {
		if round > 0 {
			expected = func(s sample) float64 { return max(1e-3, m.of(s)) }
		}
		if round > 0 || from != nil {
			for i, s := range samples {
				residuals[i] = math.Abs(s.ms/expected(s) - 1)
			}
			spread = max(leastSpread, median(residuals)*1.4826)
		}
		before := m.terms
		m.solve(samples, expected, spread)
		if round > 1 && close2(before, m.terms) {
			break
		}
	}
	return m
}

func close2(a, b terms) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-5*max(a[i], b[i]) {
			return false
		}
	}
	return true
}

// solve minimises the weighted squares by coordinate descent, which keeps the coefficients from below 0.
func (m *model) solve(samples []sample, expected func(sample) float64, spread float64) {
	var xx [3][3]float64
	var xy [3]float64
	for _, s := range samples {
		e := expected(s)
		w := 1 / (e * e)
		if r := math.Abs(s.ms/e - 1); r > huber*spread {
			w *= huber * spread / r
		}
		x := [3]float64{1, s.uncached, s.ahead}
		if m.tied {
			x = [3]float64{1, s.uncached + s.ahead, 0}
		}
		for i := range x {
			for j := range x {
				xx[i][j] += w * x[i] * x[j]
			}
			xy[i] += w * x[i] * s.ms
		}
	}
	for range 2000 {
		moved := 0.0
		for i := range m.terms {
			if xx[i][i] == 0 {
				m.terms[i] = 0
				continue
			}
			rest := xy[i]
			for j := range m.terms {
				if j != i {
					rest -= xx[i][j] * m.terms[j]
				}
			}
			next := max(0, rest/xx[i][i])
			moved = max(moved, math.Abs(next-m.terms[i])/max(next, m.terms[i], 1e-12))
			m.terms[i] = next
		}
		if moved < 1e-7 {
			break
		}
	}
	if m.tied {
		m.terms[2] = m.terms[1]
	}
}

// resampled calls with fits to samples that are drawn anew, in blocks of neighbours: what follows each other is alike
// (Künsch 1989, "The jackknife and the bootstrap for general stationary observations"). samples are in the order of time.
func resampled(samples []sample, m model, each func(model, *rand.Rand)) {
	rng := rand.New(rand.NewPCG(1, uint64(len(samples))))
	length := max(1, len(samples)/blocks)
	drawn := make([]sample, 0, len(samples)+length)
	for range resamples {
		drawn = drawn[:0]
		for len(drawn) < len(samples) {
			at := rng.IntN(len(samples) - length + 1)
			drawn = append(drawn, samples[at:at+length]...)
		}
		each(fitModel(drawn[:len(samples)], &m, 3), rng)
	}
}

// intervalOf is a value with the bounds that its resampled values give.
func intervalOf(value float64, all []float64) Interval {
	slices.Sort(all)
	if len(all) == 0 {
		return Interval{Value: value, Low: value, High: value}
	}
	at := func(q float64) float64 { return all[min(len(all)-1, int(q*float64(len(all))))] }
	return Interval{Value: value, Low: min(value, at(0.025)), High: max(value, at(0.975))}
}

// median is the middle of numbers, which it may put into another order; NaN of none.
func median(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
