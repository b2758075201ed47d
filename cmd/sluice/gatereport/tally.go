package gatereport

import (
	"slices"

	"github.com/sluice-epp/sluice/cmd/sluice/quantile"
)

// The bounds of what is kept: models and hours beyond them are put together with others.
const (
	maxModels  = 32
	maxPeriods = 96
	maxSeen    = 8 // distinct bars, throughputs and configurations
)

// others is the model that stands for all beyond maxModels.
const others = "(others)"

// tally counts decisions in which a gate had something to compare.
type tally struct {
	compared, released, pinned uint64
	ms, tokens                 quantile.Sketch
}

func (t *tally) add(gapMs, gapTokens float64, released, pinned bool) {
	t.compared++
	if released {
		t.released++
	}
	if pinned {
		t.pinned++
	}
	t.ms.Add(gapMs)
	t.tokens.Add(gapTokens)
}

func (t *tally) merge(o *tally) {
	t.compared, t.released, t.pinned = t.compared+o.compared, t.released+o.released, t.pinned+o.pinned
	t.ms.Merge(&o.ms)
	t.tokens.Merge(&o.tokens)
}

// models are tallies by model.
type models map[string]*tally

func (m models) of(name string) *tally {
	if m[name] == nil && len(m) >= maxModels {
		name = others
	}
	if m[name] == nil {
		m[name] = &tally{}
	}
	return m[name]
}

// newPeriods are tallies by time.
func newPeriods() *quantile.Periods[tally] { return quantile.NewPeriods(maxPeriods, (*tally).merge) }

// seen are the distinct values of something, the first few of them.
type seen[T comparable] struct {
	values []T
	more   bool
}

func (s *seen[T]) add(v T) {
	switch {
	case slices.Contains(s.values, v):
	case len(s.values) < maxSeen:
		s.values = append(s.values, v)
	default:
		s.more = true
	}
}
