package fit

import (
	"math"

	"gonum.org/v1/gonum/mat"
)

// gram are the sums that least squares need: XᵀWX and XᵀWy, where y is 1 less what fixed costs explain.
type gram struct {
	xx [count][count]float64
	xy [count]float64
}

func (g *gram) add(r *row, y, weight float64) {
	for i := range r.x {
		wx := weight * r.x[i]
		g.xy[i] += wx * y
		for j := i; j < count; j++ {
			g.xx[i][j] += wx * r.x[j]
		}
	}
}

// invert returns the inverse of XᵀWX for some of the costs, in their order. The columns are scaled before; ok is false where
// they cannot be told apart even so.
func (g *gram) invert(of []int) (inverse *mat.SymDense, ok bool) {
	n := len(of)
	scale := make([]float64, n)
	for a, i := range of {
		if !(g.xx[i][i] > 0) {
			return nil, false
		}
		scale[a] = math.Sqrt(g.xx[i][i])
	}
	m := mat.NewSymDense(n, nil)
	for a, i := range of {
		for b := a; b < n; b++ {
			m.SetSym(a, b, g.xx[i][of[b]]/scale[a]/scale[b])
		}
	}
	var c mat.Cholesky
	if !c.Factorize(m) || c.Cond() > 1e12 {
		return nil, false
	}
	inverse = mat.NewSymDense(n, nil)
	if c.InverseTo(inverse) != nil {
		return nil, false
	}
	for a := range n {
		for b := a; b < n; b++ {
			inverse.SetSym(a, b, inverse.At(a, b)/scale[a]/scale[b])
		}
	}
	return inverse, true
}

// solve is the least-squares solution over the free costs of which none is negative. There are few: every subset is tried, and
// the best of those without a negative value is the solution.
func (g *gram) solve(free [count]bool) (best [count]float64) {
	least := 0.0
	for subset := 1; subset < 1<<count; subset++ {
		var of []int
		allowed := true
		for i := range count {
			if subset>>i&1 == 1 {
				of = append(of, i)
				allowed = allowed && free[i]
			}
		}
		if !allowed {
			continue
		}
		inverse, ok := g.invert(of)
		if !ok {
			continue
		}
		var b [count]float64
		gain, feasible := 0.0, true
		for a, i := range of {
			for c, j := range of {
				b[i] += inverse.At(a, c) * g.xy[j]
			}
			feasible = feasible && b[i] >= 0
		}
		for _, i := range of {
			gain -= b[i] * g.xy[i]
		}
		if feasible && gain < least {
			best, least = b, gain
		}
	}
	return best
}
