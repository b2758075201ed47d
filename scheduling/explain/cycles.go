package explain

import "github.com/sluice-epp/sluice/scheduling"

// CompareCycles is the cause that Compare finds, without records: what made a decision that was made again another one. The
// cycles are of two schedulers.
func CompareCycles(before, after *scheduling.Cycle) Cause {
	from, to := firstOf(before), firstOf(after)
	if from == to {
		return Unchanged
	}
	filter := removed(after, from)
	if filter == "" {
		filter = removed(before, to)
	}
	switch {
	case filter != "":
		if isGate(before, filter) || isGate(after, filter) {
			return ByGate
		}
		return ByFilter
	case from < 0 || to < 0:
		return ByEndpoint
	case after.Totals[from] == after.Totals[to]:
		return ByDraw
	case after.Totals[from] > after.Totals[to] || !speaksMore(before, after, from, to):
		return ByPicker
	}
	return ByScorer
}

func firstOf(c *scheduling.Cycle) int {
	if len(c.Picks) == 0 {
		return -1
	}
	return c.Picks[0]
}

// removed is the filter that left a considered endpoint out; empty where none did.
func removed(c *scheduling.Cycle, endpoint int) string {
	if endpoint < 0 || !c.Considered.Has(endpoint) {
		return ""
	}
	for i := range c.Steps {
		if !c.Steps[i].Left.Has(endpoint) {
			return c.Steps[i].Filter
		}
	}
	return ""
}

func isGate(c *scheduling.Cycle, filter string) bool {
	for i := range c.Gates {
		if c.Gates[i].Filter == filter {
			return true
		}
	}
	return false
}

// speaksMore reports whether any scorer speaks more for one endpoint against another than before, as a share of all weights.
func speaksMore(before, after *scheduling.Cycle, from, to int) bool {
	weightsBefore, weightsAfter := weightsOf(before), weightsOf(after)
	ahead := func(c *scheduling.Cycle, i int, weights float64) float64 {
		if i < 0 || weights <= 0 {
			return 0
		}
		s := &c.Scores[i]
		return s.Weight / weights * (s.Raw[to] - s.Raw[from])
	}
	for i := range after.Scores {
		if ahead(after, i, weightsAfter)-ahead(before, scorerOf(before, after.Scores[i].Scorer), weightsBefore) > rounding {
			return true
		}
	}
	for i := range before.Scores {
		if scorerOf(after, before.Scores[i].Scorer) < 0 && -ahead(before, i, weightsBefore) > rounding {
			return true
		}
	}
	return false
}

func weightsOf(c *scheduling.Cycle) (sum float64) {
	for i := range c.Scores {
		sum += c.Scores[i].Weight
	}
	return sum
}

func scorerOf(c *scheduling.Cycle, name string) int {
	for i := range c.Scores {
		if c.Scores[i].Scorer == name {
			return i
		}
	}
	return -1
}
