package rates

import "math"

// terms is the number of terms of a fit.
const terms = 3

// vector is a value for each term.
type vector [terms]float64

func (v vector) dot(w vector) float64 {
	s := 0.0
	for i := range v {
		s += v[i] * w[i]
	}
	return s
}

// fit is a linear regression with coefficients that are not negative, learnt online:
//
//	y ≈ Σ θᵢ·xᵢ, θᵢ ≥ 0
//
// Errors are relative: a sample counts by 1/(prior·x)², with a bound for the smallest. Not by 1/y², which would make quick answers count for more than slow
// ones, nor by what is expected, which would make what came before an engine became slower count for more than what comes
// since. Older samples fade. What samples do not tell apart stays near the prior, which does not fade: a regression whose
// own choices make its samples must not run away.
type fit struct {
	prior vector // θ where nothing is known; all above 0
	ridge vector // how many samples the prior of each is worth
	// scaled says that the prior is good for the coefficients' ratios to each other only: their scale is learnt first. Term 0 is
	// then a constant, which no more than lowest of the samples fall short of, and no other coefficient becomes less than its
	// prior over mostOff.
	scaled bool
	// least is the term whose coefficient may not exceed that of most; the same one where there is no such bound.
	least, most int

	n      float64 // samples that count, faded ones as parts
	xx     [terms]vector
	xy     vector
	ratio  quantile // the median of y over what the prior says
	low    quantile // what few samples fall short of
	size   quantile // the median of what the prior says
	theta  vector
	unseen int // samples since the last solution
}

const (
	// window is over how many samples their weight falls to 1/e.
	window = 256
	// solveEvery is how many samples come between two solutions, once there are many.
	solveEvery = 8
	// outlier is by what factor a sample may differ from the median, or from what was expected; beyond that it counts as that much.
	outlier = 8
	// leverage bounds what the smallest of requests weigh: no more than one that many times smaller than the median.
	leverage = 3
	// lowest is the share of the samples that are less than a fit's constant, at least.
	lowest = 0.1
	// mostOff is by what factor a coefficient may be less than the scaled prior says. Requests that are slow for other reasons than
	// their tokens must not make tokens cost nothing.
	mostOff = 8
	// halfTrusted is the number of samples at which they are trusted as much as the prior.
	halfTrusted = 20
)

// add learns from a sample; x must not be negative, y above 0. It reports whether the coefficients are new.
func (f *fit) add(x vector, y float64) bool {
	byPrior := f.prior.dot(x)
	if !(byPrior > 0) || !(y > 0) || math.IsInf(byPrior, 1) || math.IsInf(y, 1) {
		return false
	}
	f.ratio.add(0.5, math.Log(y/byPrior))
	f.low.add(lowest, math.Log(y))
	f.size.add(0.5, math.Log(byPrior))
	// The median is of half of the samples: a few cannot move what they are held against, however far off they are.
	middle := byPrior * math.Exp(f.ratio.at)
	y = min(max(y, middle/outlier), middle*outlier)
	const keep = 1 - 1./window
	w := math.Pow(max(byPrior, math.Exp(f.size.at)/leverage), -2)
	f.n = f.n*keep + 1
	for i := range terms {
		for j := range terms {
			f.xx[i][j] = f.xx[i][j]*keep + w*x[i]*x[j]
		}
		f.xy[i] = f.xy[i]*keep + w*x[i]*y
	}
	if f.unseen++; f.unseen < solveEvery && f.n >= 4*solveEvery {
		return false
	}
	f.unseen = 0
	f.solve()
	return true
}

// solve finds the coefficients by coordinate descent, which keeps each within its bounds exactly.
func (f *fit) solve() {
	toward := f.prior
	var least vector
	most := vector{math.Inf(1), math.Inf(1), math.Inf(1)}
	if f.scaled {
		scale := math.Exp(f.ratio.at * f.n / (f.n + 1)) // the 1 is one sample that the prior explains
		for i := range toward {
			toward[i] *= scale
			least[i] = toward[i] / mostOff
		}
		least[0], most[0] = 0, math.Exp(f.low.at)
	}
	for range 30 {
		moved := 0.0
		for i := range terms {
			rest := f.xy[i]
			for j := range terms {
				if j != i {
					rest -= f.xx[i][j] * f.theta[j]
				}
			}
			// A ridge of 1 weighs as much as a sample that this term alone explains.
			ridge := f.ridge[i] / (f.prior[i] * f.prior[i])
			next := min(max(least[i], (rest+ridge*toward[i])/(f.xx[i][i]+ridge)), most[i])
			moved = max(moved, math.Abs(next-f.theta[i])/toward[i])
			f.theta[i] = next
		}
		if moved < 1e-4 {
			break
		}
	}
	f.theta[f.least] = min(f.theta[f.least], f.theta[f.most])
}

// quantile follows a quantile of logarithms by small steps, so that a sample counts by its side and not by its distance.
type quantile struct {
	at float64
	n  int
}

// add takes a sample; share is what part of the samples is less.
func (q *quantile) add(share, l float64) {
	if q.n == 0 {
		q.at = l
	}
	q.n++
	step := max(0.1, 1/float64(q.n))
	if l < q.at {
		q.at -= step * (1 - share)
	} else if l > q.at {
		q.at += step * share
	}
}

// confidence is how far the coefficients are the samples' rather than the prior's, 0 to 1.
func (f *fit) confidence() float64 { return f.n / (f.n + halfTrusted) }
