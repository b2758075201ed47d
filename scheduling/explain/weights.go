package explain

import (
	"math"
	"slices"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// passed are the candidates that passed the filters and were scored.
func passed(d *decisionv1.Decision) []*decisionv1.Candidate {
	var all []*decisionv1.Candidate
	for _, e := range d.GetCandidates() {
		if e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_UNSPECIFIED && len(e.GetScores()) == len(d.GetScorers()) {
			all = append(all, e)
		}
	}
	return all
}

// rounding is the share of a weight that may be no more than how totals were rounded.
const rounding = 1e-9

// weights finds, for each scorer, the weight nearest to its own at which another candidate's total is the highest. Filters
// do not look at weights, so that the recorded scores tell. A picker that draws is left alone.
func (x *search) weights() {
	if x.scheduler.Draws() || x.decision.RunnerUpMargin == nil || x.decision.GetRunnerUpMargin() <= 0 {
		return
	}
	all := passed(x.decision)
	best := -1
	for i, e := range all {
		if int(e.GetOrdinal()) == x.pick {
			best = i
		}
	}
	if best < 0 {
		return
	}
	for j, scorer := range x.decision.GetScorers() {
		if to, pick := nearest(all, best, j, scorer.GetWeight()); pick >= 0 {
			x.found = append(x.found, Flip{
				Input: Weight, Ordinal: -1, Scorer: scorer.GetName(), From: scorer.GetWeight(), To: to, Pick: x.drawn(all, pick),
			})
		}
	}
}

// nearest is the weight of scorer j nearest to its own at which another total reaches the best one, and the ordinal of the
// one that is ahead beyond it: of several that reach it together that which gains most. The ordinal is -1 where there is none.
func nearest(all []*decisionv1.Candidate, best, j int, weight float64) (to float64, pick int) {
	to, pick = math.Inf(1), -1
	gain := 0.0
	for _, e := range all {
		w := weightFor(all[best], e, j, weight)
		if w <= rounding*weight {
			continue
		}
		gains := math.Abs(e.GetScores()[j] - all[best].GetScores()[j])
		together := pick >= 0 && math.Abs(w-to) <= rounding*weight
		if together && gains > gain || !together && math.Abs(w-weight) < math.Abs(to-weight) {
			to, pick, gain = w, int(e.GetOrdinal()), gains
		}
	}
	return to, pick
}

// drawn is the one that the draw gives a pick to that has the same scores as others.
func (x *search) drawn(all []*decisionv1.Candidate, pick int) int {
	i := slices.IndexFunc(all, func(e *decisionv1.Candidate) bool { return int(e.GetOrdinal()) == pick })
	alike := slices.DeleteFunc(slices.Clone(all), func(e *decisionv1.Candidate) bool {
		return int(e.GetOrdinal()) == x.pick || !slices.Equal(e.GetScores(), all[i].GetScores())
	})
	if len(alike) == 1 {
		return pick
	}
	one, err := x.Pick(func(c *scheduling.Cycle) {
		only := c.Scratch()
		for _, e := range alike {
			only.Add(int(e.GetOrdinal()))
		}
		c.Restrict(only)
	})
	if err != nil || one < 0 {
		return pick
	}
	return one
}

// weightFor is the weight of scorer j at which two totals are equal; not above 0 where there is none that can be.
func weightFor(best, other *decisionv1.Candidate, j int, weight float64) float64 {
	ahead := best.GetScores()[j] - other.GetScores()[j]
	if best == other || ahead == 0 {
		return -1
	}
	return weight - (best.GetTotal()-other.GetTotal())/ahead
}

// tie notes that another candidate had the same total, so that a draw decided.
func (x *search) tie() {
	if x.decision.RunnerUpMargin == nil || x.decision.GetRunnerUpMargin() != 0 {
		return
	}
	total := math.NaN()
	all := passed(x.decision)
	for _, e := range all {
		if int(e.GetOrdinal()) == x.pick {
			total = e.GetTotal()
		}
	}
	for _, e := range all {
		if int(e.GetOrdinal()) != x.pick && e.GetTotal() == total {
			x.found = append(x.found, Flip{Input: Tie, Ordinal: -1, Pick: int(e.GetOrdinal())})
			return
		}
	}
}
