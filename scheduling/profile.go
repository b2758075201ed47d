package scheduling

import "math"

// profile is an ordered list of filters, weighted scorers and one picker.
type profile struct {
	name    string
	filters []namedFilter
	scorers []namedScorer
	picker  Picker
}

type namedFilter struct {
	name string
	Filter
	preference bool
}

type namedScorer struct {
	name   string
	weight float64
	Scorer
}

// Preference marks a Filter that only prefers: what it leaves out may still serve as a later pick in an ordered list.
type Preference interface{ Preference() }

// decide is the pure step: filters, scorers, picker. It reads the cycle's columns and writes its Candidates, Steps,
// Scores, Totals, Gates and Picks.
func (p *profile) decide(c *Cycle) {
	c.enter(PhaseFilter)
	c.Considered.CopyFrom(c.Candidates)
	c.fallback.CopyFrom(c.Candidates)
	for i := range p.filters {
		p.filters[i].Filter.Filter(c, c.Candidates)
		c.Steps[i].Left.CopyFrom(c.Candidates)
		if !p.filters[i].preference {
			p.narrowFallback(i, c)
		}
	}
	if c.Candidates.Empty() {
		return
	}
	c.enter(PhaseScore)
	p.score(c, c.Candidates)
	c.enter(PhasePick)
	c.Picks = p.picker.Pick(c, c.Candidates, c.Totals, c.Picks)
	if len(c.Picks) < c.MaxPicks {
		p.backfill(c)
	}
}

// narrowFallback applies a filter that is not a preference to the endpoints that preferences left out before it.
func (p *profile) narrowFallback(i int, c *Cycle) {
	for j := range i {
		if p.filters[j].preference {
			p.filters[i].Filter.Filter(c, c.fallback)
			return
		}
	}
	c.fallback.CopyFrom(c.Candidates)
}

// backfill lengthens the ordered list with endpoints that only a preference left out, so that a retry has somewhere to
// go when a single endpoint holds the prompt.
func (p *profile) backfill(c *Cycle) {
	c.fallback.Subtract(c.Candidates)
	if c.fallback.Empty() {
		return
	}
	p.score(c, c.fallback)
	want := c.MaxPicks
	c.MaxPicks -= len(c.Picks)
	c.Picks = p.picker.Pick(c, c.fallback, c.Totals, c.Picks)
	c.MaxPicks = want
}

func (p *profile) score(c *Cycle, candidates Set) {
	totals := c.Totals
	for i := range p.scorers {
		raw, weight := c.Scores[i].Raw, p.scorers[i].weight
		p.scorers[i].Score(c, candidates, raw)
		for e := range candidates.All() {
			v := clamp01(raw[e])
			raw[e] = v
			totals[e] += weight * v
		}
	}
}

// clamp01 makes v a score: not-a-number is no credit.
func clamp01(v float64) float64 {
	switch { // false for NaN; cheaper than min, which must tell zeros apart
	case v > 1:
		return 1
	case v > 0:
		return v
	}
	return 0
}

// NeutralScore gives every candidate whose score is not a number the mean score of the others: a scorer writes NaN for
// what it does not know, which then gets neither credit nor blame. With nothing known all scores become 0.
func NeutralScore(candidates Set, scores []float64) {
	sum, known, unknown := 0.0, 0, 0
	for e := range candidates.All() {
		if math.IsNaN(scores[e]) {
			unknown++
			continue
		}
		sum += scores[e]
		known++
	}
	if unknown == 0 {
		return
	}
	mean := 0.0
	if known > 0 {
		mean = sum / float64(known)
	}
	for e := range candidates.All() {
		if math.IsNaN(scores[e]) {
			scores[e] = mean
		}
	}
}
