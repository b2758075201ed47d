package gatereport

import (
	"maps"
	"slices"
	"time"

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

// periods are tallies by time: hours, and where there would be too many of them, twice, four times, … as long.
type periods struct {
	length time.Duration
	all    map[int64]*tally
}

func newPeriods() *periods { return &periods{length: time.Hour, all: map[int64]*tally{}} }

// at is the tally of a time, in nanoseconds since the Unix epoch.
func (p *periods) at(unixNano int64) *tally {
	for {
		key := floorDiv(unixNano, int64(p.length))
		if t := p.all[key]; t != nil {
			return t
		}
		if len(p.all) < maxPeriods {
			t := &tally{}
			p.all[key] = t
			return t
		}
		p.lengthen()
	}
}

// lengthen doubles the periods.
func (p *periods) lengthen() {
	all := map[int64]*tally{}
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		if t := all[floorDiv(key, 2)]; t != nil {
			t.merge(p.all[key])
		} else {
			all[floorDiv(key, 2)] = p.all[key]
		}
	}
	p.all, p.length = all, 2*p.length
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

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
