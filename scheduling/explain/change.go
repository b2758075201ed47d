package explain

import (
	"fmt"
	"math"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Cause is what made a decision come out otherwise when it was made again.
type Cause uint8

// The causes.
const (
	Unchanged  Cause = iota // it did not
	ByGate                  // a load gate's verdict: it kept the other pick out before or keeps it out now
	ByFilter                // a filter, in the same way
	ByScorer                // the scores
	ByDraw                  // equal totals, among which a draw decides
	ByPicker                // the picker: the scores speak for the old pick, or no more for the new one than before
	ByEndpoint              // an endpoint that could be picked then, and not now, or the other way round
)

var causeNames = [...]string{"unchanged", "gate", "filter", "scorer", "draw", "picker", "endpoint"}

// String is the cause's name as tables and metrics show it.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "unknown"
}

// Causes are all there are but Unchanged.
func Causes() []Cause { return []Cause{ByGate, ByFilter, ByScorer, ByDraw, ByPicker, ByEndpoint} }

// Change is how a decision that was made again differs from the recorded one.
type Change struct {
	// From and To are the first picks' ordinals, before and now; -1 for none.
	From, To int
	// Cause is what made the difference.
	Cause Cause
	// By is the name of the gate, filter or scorer.
	By string
	// Before and Now are a gate's verdicts; empty where it did not run.
	Before, Now string
	// Gain is by how much the scorer speaks more for the new pick than it did, as a share of all weights.
	Gain float64
}

// Flipped reports whether the pick is another one.
func (c Change) Flipped() bool { return c.From != c.To }

// Compare finds what made after, which is before decided again by another configuration, another pick.
func Compare(before, after *decisionv1.Decision) Change {
	c := Change{From: first(before), To: first(after)}
	if c.From == c.To {
		return c
	}
	if filter := c.keptOut(before, after); filter != "" {
		c.Cause, c.By = ByFilter, filter
		var gate bool
		c.Before, c.Now, gate = verdicts(before, after, filter)
		if gate {
			c.Cause = ByGate
		}
		return c
	}
	if c.From < 0 || c.To < 0 {
		c.Cause = ByEndpoint
		return c
	}
	c.scored(before, after)
	return c
}

func first(d *decisionv1.Decision) int {
	if len(d.GetPicks()) == 0 {
		return -1
	}
	return int(d.GetPicks()[0])
}

// keptOut is the filter that keeps the old pick out now, or kept the new one out before.
func (c *Change) keptOut(before, after *decisionv1.Decision) string {
	if e := candidate(after, c.From); e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_FILTER {
		return e.GetFilteredBy()
	}
	if e := candidate(before, c.To); e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_FILTER {
		return e.GetFilteredBy()
	}
	return ""
}

func candidate(d *decisionv1.Decision, ordinal int) *decisionv1.Candidate {
	for _, e := range d.GetCandidates() {
		if int(e.GetOrdinal()) == ordinal {
			return e
		}
	}
	return nil
}

// verdicts are what a filter said as a gate before and now; ok is false where it is no gate.
func verdicts(before, after *decisionv1.Decision, filter string) (was, is string, ok bool) {
	of := func(d *decisionv1.Decision) string {
		for _, g := range d.GetGates() {
			if g.GetFilter() == filter {
				return record.Verdict(g.GetVerdict())
			}
		}
		return ""
	}
	was, is = of(before), of(after)
	return was, is, was+is != ""
}

// scored finds the scorer that speaks more for the new pick against the old one than before.
func (c *Change) scored(before, after *decisionv1.Decision) {
	from, to := candidate(after, c.From), candidate(after, c.To)
	switch {
	case from == nil || to == nil:
		c.Cause = ByEndpoint
		return
	case from.GetTotal() == to.GetTotal():
		c.Cause = ByDraw
		return
	case from.GetTotal() > to.GetTotal():
		c.Cause = ByPicker
		return
	}
	names, gains := []string{}, map[string]float64{}
	add := func(d *decisionv1.Decision, sign float64) {
		weights := 0.0
		for _, s := range d.GetScorers() {
			weights += s.GetWeight()
		}
		old, now := candidate(d, c.From).GetScores(), candidate(d, c.To).GetScores()
		for i, s := range d.GetScorers() {
			if _, seen := gains[s.GetName()]; !seen {
				names = append(names, s.GetName())
				gains[s.GetName()] = 0
			}
			if i < len(old) && i < len(now) && weights > 0 {
				gains[s.GetName()] += sign * s.GetWeight() / weights * (now[i] - old[i])
			}
		}
	}
	add(after, 1)
	add(before, -1)
	c.Cause, c.Gain = ByPicker, rounding
	for _, name := range names {
		if gain := gains[name]; gain > c.Gain {
			c.Cause, c.By, c.Gain = ByScorer, name, gain
		}
	}
	if c.Cause == ByPicker {
		c.Gain = 0
	}
}

// Name is the cause with whose it is, such as "gate prefix-cache-affinity-filter: held → released_matched".
func (c Change) Name() string {
	name := c.Cause.String()
	if c.By != "" {
		name += " " + c.By
	}
	if c.Cause == ByGate && c.Before != c.Now {
		name += ": " + orNone(c.Before) + " → " + orNone(c.Now)
	}
	return name
}

func orNone(verdict string) string {
	if verdict == "" {
		return "not there"
	}
	return verdict
}

// Words says the change in words, but not the picks.
func (c Change) Words() string {
	switch c.Cause {
	case Unchanged:
		return "the pick is the same"
	case ByGate:
		if c.Before == c.Now {
			return fmt.Sprintf("%s says %s as before, of other endpoints", c.By, orNone(c.Now))
		}
		switch {
		case c.Now == "" && c.Before == "held":
			return fmt.Sprintf("the new configuration has no %s, which held it before", c.By)
		case c.Now == "":
			return fmt.Sprintf("the new configuration has no %s, which said %s before", c.By, c.Before)
		case c.Before == "":
			return fmt.Sprintf("the new configuration has %s, which says %s", c.By, c.Now)
		}
		return fmt.Sprintf("%s says %s, and was %s", c.By, c.Now, c.Before)
	case ByFilter:
		return c.By + " keeps other endpoints"
	case ByScorer:
		return fmt.Sprintf("%s speaks more for it than before, by %.1f %% of all weights", c.By, 100*math.Abs(c.Gain))
	case ByDraw:
		return "both have the same total now, and a draw decided"
	case ByPicker:
		return "the picker chose otherwise: no scorer speaks more for the new pick than before"
	case ByEndpoint:
		return "one of the two could not be picked before, or cannot now"
	}
	return ""
}
