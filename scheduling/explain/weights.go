package explain

import (
	"math"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
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

// weights finds, for each scorer, the weight nearest to its own at which another candidate's total is the highest. Filters
// do not look at weights, so that the recorded scores tell. A picker that draws is left alone.
func (x *search) weights() {
	if x.decision.RunnerUpMargin == nil || x.decision.GetRunnerUpMargin() <= 0 {
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
		to, pick := math.Inf(1), -1
		for _, e := range all {
			w := weightFor(all[best], e, j, scorer.GetWeight())
			if w > 0 && math.Abs(w-scorer.GetWeight()) < math.Abs(to-scorer.GetWeight()) {
				to, pick = w, int(e.GetOrdinal())
			}
		}
		if pick >= 0 {
			x.found = append(x.found, Flip{
				Input: Weight, Ordinal: -1, Scorer: scorer.GetName(), From: scorer.GetWeight(), To: to, Pick: pick,
			})
		}
	}
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
