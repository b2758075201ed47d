package latency

import "math"

// maxTerms is the most terms that a regression has.
const maxTerms = 12

// terms are a value for each term of a regression.
type terms [maxTerms]float64

// dot is the sum of products of the first n terms.
func (t *terms) dot(u *terms, n int) float64 {
	s := 0.0
	for i := range n {
		s += t[i] * u[i]
	}
	return s
}

// regression is a linear regression whose coefficients are not negative, learnt online:
//
//	y ≈ Σ θᵢ·xᵢ, θᵢ ≥ 0
//
// Errors are relative: a sample counts by 1/(y·ŷ), which is about the square of log(y/ŷ), so that neither long nor short times
// rule. Older samples fade. What samples do not tell apart stays near the prior, whose scale is learnt first, and which does
// not fade: a regression whose own choices make its samples must not run away.
type regression struct {
	n     int   // terms
	prior terms // θ where nothing is known; above 0
	ridge terms // how many samples the prior of each term is worth
	exact terms // 1 for the terms whose prior does not scale with the engine's speed, as those that are times themselves
	least terms // what part of its scaled prior a coefficient is at least

	weight float64 // samples that count, faded ones as parts
	xx     [maxTerms]terms
	xy     terms
	ratio  quantile // of log(y over what the prior says)
	theta  terms
	unseen int // samples since the last solution
}

const (
	// forget is a sample's weight after one more has come: after 2,000 more it is 1/e.
	forget = 0.9995
	// solveEvery is how many samples come between two solutions, once there are many.
	solveEvery = 25
	// furthest is by what factor a sample may differ from what is expected; beyond that it counts as that much.
	furthest = 8
	// mostShort is by what factor an expectation may fall short of the scaled prior, where it weighs a sample.
	mostShort = 4
)

// term describes a term of a regression.
type term struct {
	prior float64 // the coefficient where nothing is known; above 0
	ridge float64 // how many samples that is worth
	exact bool    // the prior does not scale with the engine's speed
	least float64 // what part of the scaled prior the coefficient is at least
}

func newRegression(all []term) regression {
	r := regression{n: len(all)}
	for i, t := range all {
		r.prior[i], r.ridge[i], r.least[i] = t.prior, t.ridge, t.least
		if t.exact {
			r.exact[i] = 1
		}
	}
	r.theta = r.prior
	return r
}

// add learns from a sample: terms that are not negative, and y above 0. It reports whether the coefficients are new.
func (r *regression) add(x *terms, y float64) bool {
	byPrior, expected := r.prior.dot(x, r.n), r.theta.dot(x, r.n)
	if !(byPrior > 0) || !(y > 0) || math.IsInf(byPrior, 1) || math.IsInf(y, 1) {
		return false
	}
	r.ratio.add(0.5, math.Log(y/byPrior))
	expected = max(expected, byPrior*math.Exp(r.ratio.at)/mostShort)
	y = min(max(y, expected/furthest), expected*furthest)
	w := 1 / (y * expected)
	r.weight = r.weight*forget + 1
	for i := range r.n {
		wx := w * x[i]
		row := &r.xx[i]
		for j := range i + 1 {
			row[j] = row[j]*forget + wx*x[j]
		}
		r.xy[i] = r.xy[i]*forget + wx*y
	}
	if r.unseen++; r.unseen < solveEvery && r.weight >= 2*solveEvery {
		return false
	}
	r.unseen = 0
	r.solve()
	return true
}

// scaled is the prior at the scale of what was seen. The 1 is one sample that the prior explains.
func (r *regression) scaled() (toward terms) {
	scale := math.Exp(r.ratio.at * r.weight / (r.weight + 1))
	for i := range r.n {
		toward[i] = r.prior[i]
		if r.exact[i] == 0 {
			toward[i] *= scale
		}
	}
	return toward
}

// solve finds the coefficients by coordinate descent, which keeps each within its bounds exactly.
func (r *regression) solve() {
	toward := r.scaled()
	for range 40 {
		moved := 0.0
		for i := range r.n {
			rest := r.xy[i]
			for j := range r.n {
				if j < i {
					rest -= r.xx[i][j] * r.theta[j]
				} else if j > i {
					rest -= r.xx[j][i] * r.theta[j]
				}
			}
			// A ridge of 1 weighs as much as a sample that this term alone explains.
			ridge := r.ridge[i] / (toward[i] * toward[i])
			next := max((rest+ridge*toward[i])/(r.xx[i][i]+ridge), toward[i]*r.least[i])
			moved = max(moved, math.Abs(next-r.theta[i])/toward[i])
			r.theta[i] = next
		}
		if moved < 1e-3 {
			break
		}
	}
}

// quantile follows a quantile by small steps, so that a sample counts by its side and not by its distance.
type quantile struct {
	at float64
	n  int // samples, and those that where it begins is worth
}

// quantileStep is how far a quantile of logarithms moves at a sample.
const quantileStep = 0.05

// add takes a sample; share is what part of the samples is less.
func (q *quantile) add(share, v float64) {
	q.n++
	step := max(quantileStep, 1/float64(q.n))
	if v < q.at {
		q.at -= step * (1 - share)
	} else if v > q.at {
		q.at += step * share
	}
}
