package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-epp/sluice/sim"
)

// fit is one under way.
type fit struct {
	rows     []row
	options  Options
	defaults [count]float64
	free     [count]bool // costs that the samples are to tell; the others are the defaults
	why      [count]string
	value    [count]float64
	scale    float64 // of the relative errors
}

const (
	medianSteps = 30
	tukeySteps  = 30
	tukey       = 4.685 // errors of so many scales have no say; 95 % efficient on normal ones
	// loose is how wide an interval's half may be, beside the cost or its default, for the cost to count as identified.
	loose = 0.5
	// alike is from which correlation on the columns of two costs are said to be alike.
	alike = 0.95
)

// run fits, and gives up one cost after the other that the samples do not tell.
func (f *fit) run() {
	for i := range count {
		if !slices.ContainsFunc(f.rows, func(r row) bool { return r.x[i] > 0 }) {
			f.free[i], f.why[i] = false, "no sample has any"
		}
	}
	for f.anyFree() {
		f.median()
		f.refine()
		worst, ratio := -1, loose
		for i, half := range f.halves() {
			if f.free[i] && half > ratio*max(f.value[i], f.defaults[i]) {
				worst, ratio = i, half/max(f.value[i], f.defaults[i])
			}
		}
		if worst < 0 {
			return
		}
		f.why[worst] = f.reason(worst)
		f.free[worst] = false
	}
}

func (f *fit) anyFree() bool { return slices.Contains(f.free[:], true) }

// rest is what a measured time leaves for the free costs, relative to it.
func (f *fit) rest(r *row) float64 {
	y := 1.0
	for i := range count {
		if !f.free[i] {
			y -= r.x[i] * f.defaults[i]
		}
	}
	return y
}

// fault is the relative error of a row.
func (f *fit) fault(r *row) float64 {
	e := 1.0
	for i := range count {
		e -= r.x[i] * f.value[i]
	}
	return e
}

// least solves for the free costs with the rows' weights.
func (f *fit) least() {
	var g gram
	for i := range f.rows {
		g.add(&f.rows[i], f.rest(&f.rows[i]), f.rows[i].weight)
	}
	f.value = g.solve(f.free)
	for i := range count {
		if !f.free[i] {
			f.value[i] = f.defaults[i]
		}
	}
}

// median fits to the least sum of absolute errors, by weights that follow from the errors: half of the samples may be wrong.
func (f *fit) median() {
	for i := range f.rows {
		f.rows[i].weight = 1
	}
	f.least()
	for range medianSteps {
		for i := range f.rows {
			f.rows[i].weight = 1 / max(1e-4, math.Abs(f.fault(&f.rows[i])))
		}
		f.least()
	}
}

// refine goes on with Tukey's weights, which make the most of the samples that are near.
func (f *fit) refine() {
	for range tukeySteps {
		f.scale = f.spread()
		for i := range f.rows {
			u := f.fault(&f.rows[i]) / (tukey * f.scale)
			f.rows[i].weight = 0
			if math.Abs(u) < 1 {
				f.rows[i].weight = (1 - u*u) * (1 - u*u)
			}
		}
		f.least()
	}
}

// spread is the scale of the errors: their median, made comparable with a standard deviation.
func (f *fit) spread() float64 {
	all := make([]float64, len(f.rows))
	for i := range f.rows {
		all[i] = math.Abs(f.fault(&f.rows[i]))
	}
	slices.Sort(all)
	return max(1e-4, 1.4826*all[len(all)/2])
}

// halves are half the widths of the costs' intervals as least squares say, infinite where columns cannot be told apart.
func (f *fit) halves() (halves [count]float64) {
	var of []int
	for i := range count {
		if f.free[i] {
			of = append(of, i)
			halves[i] = math.Inf(1)
		}
	}
	var g gram
	errors, weights := 0.0, 0.0
	for i := range f.rows {
		r := &f.rows[i]
		g.add(r, 0, r.weight)
		errors += r.weight * f.fault(r) * f.fault(r)
		weights += r.weight
	}
	inverse, ok := g.invert(of)
	if !ok {
		return f.alone(&g, halves)
	}
	variance := errors / max(1, weights-float64(len(of)))
	for a, i := range of {
		halves[i] = 1.96 * math.Sqrt(variance*inverse.At(a, a))
	}
	return halves
}

// alone spares, of columns that cannot be told apart, the cost that explains most.
func (f *fit) alone(g *gram, halves [count]float64) [count]float64 {
	best, most := -1, -1.0
	for i := range count {
		if v := f.value[i] * math.Sqrt(g.xx[i][i]); f.free[i] && v > most {
			best, most = i, v
		}
	}
	halves[best] = 0
	return halves
}

// reason says why a cost is not identified.
func (f *fit) reason(i int) string {
	var g gram
	for k := range f.rows {
		g.add(&f.rows[k], 0, f.rows[k].weight)
	}
	other, most := -1, 0.0
	for j := range count {
		if j == i || !f.free[j] {
			continue
		}
		a, b := min(i, j), max(i, j)
		if r := g.xx[a][b] / math.Sqrt(g.xx[i][i]*g.xx[j][j]); r > most {
			other, most = j, r
		}
	}
	if other >= 0 && most > alike {
		return fmt.Sprintf("too little spread to tell it from %s", Params[other])
	}
	return "its share of the measured times is below their noise"
}

// intervals are those of the free costs, from fits to samples drawn anew. What has no say in the fit has none there.
func (f *fit) intervals() (low, high [count]float64) {
	low, high = f.value, f.value
	if f.options.Resamples == 0 {
		return low, high
	}
	random := rand.New(rand.NewPCG(f.options.Seed, 0xf17))
	all := make([][count]float64, f.options.Resamples)
	for k := range all {
		var g gram
		for range f.rows {
			r := &f.rows[random.IntN(len(f.rows))]
			g.add(r, f.rest(r), r.weight)
		}
		all[k] = g.solve(f.free)
	}
	drawn := make([]float64, len(all))
	for i := range count {
		if !f.free[i] {
			continue
		}
		for k := range all {
			drawn[k] = all[k][i]
		}
		slices.Sort(drawn)
		n := float64(len(drawn) - 1)
		low[i], high[i] = min(f.value[i], drawn[int(math.Round(0.025*n))]), max(f.value[i], drawn[int(math.Round(0.975*n))])
	}
	return low, high
}

func (f *fit) result() *Result {
	r := &Result{Cost: f.options.Default}
	for i, at := range []*float64{&r.Cost.Base, &r.Cost.PrefillToken, &r.Cost.Attention, &r.Cost.DecodeSeq, &r.Cost.DecodeContext} {
		*at = f.value[i]
	}
	low, high := f.intervals()
	for i, name := range Params {
		r.Estimates = append(r.Estimates, Estimate{
			Name: name, Value: f.value[i], Low: low[i], High: high[i], Identified: f.free[i], Why: f.why[i],
		})
	}
	r.Peak = Peak(r.Cost, f.options.Budget)
	f.judge(r)
	return r
}

// judge says how well the fit describes the samples.
func (f *fit) judge(r *Result) {
	n, sum, squares, left, apart := 0.0, 0.0, 0.0, 0.0, 0.0
	kept := 0
	for i := range f.rows {
		row := &f.rows[i]
		if row.tpot {
			r.TPOTs++
		} else {
			r.TTFTs++
		}
		e := f.fault(row)
		p := Point{Measured: row.y, Fitted: row.y * (1 - e), TPOT: row.tpot, Outlier: row.weight < 0.1}
		r.Points = append(r.Points, p)
		if p.Outlier {
			r.Outliers++
			continue
		}
		kept++
		apart += math.Abs(e)
		if !p.TPOT {
			n, sum, squares = n+1, sum+p.Measured, squares+p.Measured*p.Measured
			left += (p.Measured - p.Fitted) * (p.Measured - p.Fitted)
		}
	}
	if kept > 0 {
		r.MAPE = apart / float64(kept)
	}
	if variance := squares - sum*sum/max(1, n); variance > 0 {
		r.R2 = 1 - left/variance
	}
}

// Peak is the throughput, in tokens per second, of a cold prefill that fills a step of so many tokens.
func Peak(c sim.StepCost, budget int) float64 {
	b := float64(budget)
	return b / (c.Base + c.PrefillToken*b + c.Attention*b*b/2)
}
