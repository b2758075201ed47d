package explain

import (
	"cmp"
	"math"
	"slices"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Input is what a flip changes.
type Input uint8

// The inputs.
const (
	InFlight      Input = iota + 1 // the tokens in flight on an endpoint
	Cached                         // the blocks of the prompt that an endpoint's cache holds
	Weight                         // the weight of a scorer
	Tie                            // the draw among equals
	PredictedTTFT                  // the time to the first token that is predicted of an endpoint
)

// Flip is the smallest change of one input that makes the pick another one.
type Flip struct {
	// Input is what changes.
	Input Input
	// Ordinal is the endpoint whose input it is; -1 where it is nobody's.
	Ordinal int
	// Scorer is the one whose weight it is.
	Scorer string
	// From is the value that there was, To the one from which on the pick is another one: tokens, blocks, a weight, or ms.
	From, To float64
	// Pick is the ordinal of that one.
	Pick int
}

// Size is how large the change is: the difference as a share of the larger value, 0 to 1.
func (f Flip) Size() float64 {
	if f.From == f.To {
		return 0
	}
	return min(1, math.Abs(f.To-f.From)/max(math.Abs(f.From), math.Abs(f.To)))
}

// The bounds of what is tried.
const (
	maxTokens = 1 << 24 // in flight; more than any engine takes
	maxTTFT   = time.Hour
	rivals    = 3 // endpoints beside the pick whose inputs are changed
)

// Flips finds the changes that would have made the pick of a recorded decision another one, the smallest first: each is
// tried on the record with s, the scheduler that made it. One input changes at a time. There are none for a decision
// without an alternative. The error says why s cannot decide it again.
func Flips(s *scheduling.Scheduler, d *decisionv1.Decision) ([]Flip, error) {
	if len(d.GetPicks()) == 0 {
		return nil, nil
	}
	t, err := record.NewTrial(s, d)
	if err != nil {
		return nil, err
	}
	x := &search{Trial: t, scheduler: s, decision: d, pick: int(d.GetPicks()[0])}
	x.tokens()
	x.blocks()
	x.predictions()
	x.weights()
	x.tie()
	slices.SortStableFunc(x.found, func(a, b Flip) int { return cmp.Compare(a.Size(), b.Size()) })
	return x.found, nil
}

// search is the search for one decision's flips.
type search struct {
	*record.Trial
	scheduler *scheduling.Scheduler
	decision  *decisionv1.Decision
	pick      int
	found     []Flip
}

// tokens tries more tokens in flight on the pick, and fewer on its rivals.
func (x *search) tokens() {
	columns := x.Columns(scheduling.DataTypeOf[scheduling.InFlightLoad]())
	if len(columns) == 0 {
		return
	}
	try := func(ordinal int, tokens int64) int {
		return x.try(func(c *scheduling.Cycle) {
			for _, info := range columns {
				column := scheduling.ColumnAt[scheduling.InFlightLoad](c, info)
				load, _ := column.Get(ordinal)
				load.Tokens = tokens
				column.Set(ordinal, load)
			}
		})
	}
	for _, e := range x.contenders() {
		if len(e.GetInFlightLoads()) == 0 {
			continue
		}
		ordinal, from := int(e.GetOrdinal()), e.GetInFlightLoads()[0].GetTokens()
		to := int64(maxTokens)
		if ordinal != x.pick {
			to = 0
		}
		x.add(InFlight, ordinal, from, to, func(v int64) int { return try(ordinal, v) })
	}
}

// blocks tries fewer cached blocks on the pick, and more on its rivals.
func (x *search) blocks() {
	columns := x.Columns(scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]())
	uncached := x.Columns(scheduling.DataTypeOf[scheduling.UncachedRequestTokens]())
	if len(columns)+len(uncached) == 0 {
		return
	}
	for _, e := range x.contenders() {
		if len(e.GetPrefixCacheMatches()) == 0 {
			continue
		}
		ordinal, match := int(e.GetOrdinal()), e.GetPrefixCacheMatches()[0]
		to := match.GetTotalBlocks()
		if ordinal == x.pick {
			to = 0
		}
		x.add(Cached, ordinal, match.GetCachedBlockCount(), to, func(blocks int64) int {
			return x.try(func(c *scheduling.Cycle) {
				for _, info := range columns {
					setBlocks(scheduling.ColumnAt[scheduling.PrefixCacheMatchInfo](c, info), ordinal, int(blocks))
				}
				more := scheduling.UncachedRequestTokens((match.GetCachedBlockCount() - blocks) * match.GetBlockSizeTokens())
				for _, info := range uncached {
					column := scheduling.ColumnAt[scheduling.UncachedRequestTokens](c, info)
					tokens, _ := column.Get(ordinal)
					column.Set(ordinal, max(0, tokens+more))
				}
			})
		})
	}
}

// setBlocks makes an endpoint hold so many blocks, each of the weight that those that it holds have.
func setBlocks(column *scheduling.Column[scheduling.PrefixCacheMatchInfo], ordinal, blocks int) {
	info, _ := column.Get(ordinal)
	if info.CachedBlockCount > 0 {
		info.MatchBlocks = info.MatchBlocks * blocks / info.CachedBlockCount
	} else {
		info.MatchBlocks = blocks
	}
	info.CachedBlockCount = blocks
	column.Set(ordinal, info)
}

// try is the pick after a change; the pick itself where the decision cannot be made.
func (x *search) try(change func(*scheduling.Cycle)) int {
	pick, err := x.Pick(change)
	if err != nil || pick < 0 {
		return x.pick
	}
	return pick
}

// add finds the value nearest to from, on the way to to, at which the pick is another one.
func (x *search) add(input Input, ordinal int, from, to int64, try func(v int64) int) {
	direction := int64(1)
	if to < from {
		direction = -1
	}
	// Steps that double, up to the first at which the pick is another one; then halves.
	same, other, pick := from, from, x.pick
	for step := int64(1); same != to; step *= 2 {
		other = from + direction*min(step, direction*(to-from))
		if pick = try(other); pick != x.pick {
			break
		}
		same = other
	}
	if pick == x.pick {
		return
	}
	for direction*(other-same) > 1 {
		middle := same + (other-same)/2
		if p := try(middle); p == x.pick {
			same = middle
		} else {
			other, pick = middle, p
		}
	}
	x.found = append(x.found, Flip{Input: input, Ordinal: ordinal, From: float64(from), To: float64(other), Pick: pick})
}

// Compared are the ordinals of the endpoints whose loads the decision's gates compared.
func Compared(d *decisionv1.Decision) map[uint32]bool {
	compared := map[uint32]bool{}
	for _, g := range d.GetGates() {
		for _, ordinal := range []*uint32{g.Sticky, g.Other} {
			if ordinal != nil {
				compared[*ordinal] = true
			}
		}
	}
	return compared
}

// contenders are the pick and the endpoints that come nearest to it: those that passed the filters by their totals, and
// those that a gate held against it.
func (x *search) contenders() []*decisionv1.Candidate {
	var picked *decisionv1.Candidate
	var others []*decisionv1.Candidate
	compared := Compared(x.decision)
	for _, e := range x.decision.GetCandidates() {
		switch {
		case int(e.GetOrdinal()) == x.pick:
			picked = e
		case e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_UNSPECIFIED, compared[e.GetOrdinal()]:
			others = append(others, e)
		}
	}
	slices.SortStableFunc(others, func(a, b *decisionv1.Candidate) int {
		if c := compared[b.GetOrdinal()]; c != compared[a.GetOrdinal()] {
			return map[bool]int{true: 1, false: -1}[c]
		}
		return cmp.Compare(b.GetTotal(), a.GetTotal())
	})
	if picked == nil {
		return nil
	}
	return append([]*decisionv1.Candidate{picked}, others[:min(rivals, len(others))]...)
}
