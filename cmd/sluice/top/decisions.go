package top

import (
	"fmt"
	"strings"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// picked is the first pick; nil where there is none.
func picked(d *decisionv1.Decision) *decisionv1.Candidate {
	for _, e := range d.GetCandidates() {
		if len(d.GetPicks()) > 0 && e.GetOrdinal() == d.GetPicks()[0] {
			return e
		}
	}
	return nil
}

// matched are the blocks of the prompt that an endpoint holds, and all of them.
func matched(e *decisionv1.Candidate) (cached, total uint64) {
	for _, m := range e.GetPrefixCacheMatches() {
		if m.GetTotalBlocks() > 0 && m.GetCachedBlockCount() >= 0 {
			return uint64(m.GetCachedBlockCount()), uint64(m.GetTotalBlocks())
		}
	}
	return 0, 0
}

// meant says what the verdicts meant for the prompt's prefix; empty where the match says it.
var meant = map[decisionv1.GateVerdict]string{
	decisionv1.GateVerdict_GATE_VERDICT_EXPLORED:            "seeds a cache",
	decisionv1.GateVerdict_GATE_VERDICT_NO_STICKY:           "",
	decisionv1.GateVerdict_GATE_VERDICT_HELD:                "stays warm",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC:     "warm is busy",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_MATCHED:    "warm is busy",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_CEILING:    "warm is busy",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_BREAK_EVEN: "warm is busy",
	decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL:      "stays warm",
}

// gateOf is the last gate that ran.
func gateOf(d *decisionv1.Decision) decisionv1.GateVerdict {
	verdict := decisionv1.GateVerdict_GATE_VERDICT_NONE
	for _, g := range d.GetGates() {
		if _, ran := meant[g.GetVerdict()]; ran {
			verdict = g.GetVerdict()
		}
	}
	return verdict
}

// why is a decision's reason in a few words: of the prompt's prefix, then of the scores.
func why(s shown) string {
	d := s.explanation.GetDecision()
	pick := picked(d)
	if pick == nil {
		return strings.TrimSuffix(strings.TrimPrefix(s.explanation.GetReason(), "No endpoint was picked: "), ".")
	}
	warmth := meant[gateOf(d)]
	if cached, total := matched(pick); warmth == "" && total > 0 {
		warmth = "cold"
		if cached > 0 {
			warmth = "partly warm"
		}
	}
	var scores string
	switch m := d.RunnerUpMargin; {
	case m == nil:
		scores = "alone"
	case *m == 0:
		scores = "a draw"
	case *m < 0:
		scores = "drawn"
	default:
		scores = "score +" + display.Score(*m)
	}
	if warmth == "" {
		return scores
	}
	return warmth + ", " + scores
}

// decisionColumns are the columns of the stream of decisions; those of the highest rank are the first to go where there is
// no room.
var decisionColumns = []column[shown]{
	{head: "time", rank: 1, cell: func(s shown, t *table) string { return made(s).In(t.now.Location()).Format(time.TimeOnly) }},
	{head: "request", rank: 5, max: 11, grow: true, cell: func(s shown, _ *table) string {
		id := s.explanation.GetDecision().GetClientRequestId()
		return known(id != "", id)
	}},
	{head: "model", rank: 6, max: 7, grow: true, cell: func(s shown, _ *table) string {
		model := s.explanation.GetDecision().GetRequest().GetModel()
		return known(model != "", model)
	}},
	{head: "pick", rank: 0, max: 12, grow: true, cell: func(s shown, _ *table) string {
		if e := picked(s.explanation.GetDecision()); e != nil {
			return called(e.GetName(), e.GetAddress())
		}
		return "(none)"
	}},
	{head: "match", rank: 3, right: true, cell: func(s shown, _ *table) string {
		cached, total := matched(picked(s.explanation.GetDecision()))
		return display.Percent(float64(cached) / float64(total))
	}},
	{head: "gate", rank: 4, cell: func(s shown, _ *table) string {
		v := gateOf(s.explanation.GetDecision())
		return known(v != decisionv1.GateVerdict_GATE_VERDICT_NONE, record.Verdict(v))
	}},
	{head: "why", rank: 2, max: 16, grow: true, words: true, cell: func(s shown, _ *table) string { return why(s) }},
}

// made is when a decision was made, by its server's clock.
func made(s shown) time.Time { return time.Unix(0, s.explanation.GetDecision().GetTimeUnixNano()) }

// called is what people call an endpoint.
func called(name, address string) string {
	if name != "" {
		return name
	}
	return address
}

// counted says how many decisions there were, and how many of them are not known.
func counted(v *view) string {
	s := fmt.Sprintf("%s seen", display.Things(float64(v.seen), "decision"))
	if v.missed > 0 {
		s += fmt.Sprintf(", %s missed (too many at once)", display.Count(float64(v.missed)))
	}
	return s
}
