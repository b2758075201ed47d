package explanation

import (
	"fmt"
	"math"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// outcome is how the request ended, and how well that was foreseen.
func (p *page) outcome() {
	o := p.d.Outcome
	if p.Tried || o == nil && len(p.d.GetPicks()) == 0 {
		return
	}
	p.section("Outcome")
	if o == nil {
		p.text("It has not ended yet.")
		return
	}
	end := o.GetReason()
	if o.GetStatus() != 0 {
		end += fmt.Sprintf(", HTTP status %d", o.GetStatus())
	}
	if o.GetServedBy() != "" {
		end += ", served by " + o.GetServedBy() + " instead of the pick"
	}
	p.field("end", end)
	if o.TtftMs != nil {
		p.field("first token", display.Millis(o.GetTtftMs())+" after the pick")
	}
	p.field("whole", display.Millis(o.GetTotalMs()))
	if o.PromptTokens != nil {
		p.field("prompt", display.Things(float64(o.GetPromptTokens()), "token")+p.cached(o))
	}
	if o.CompletionTokens != nil {
		p.field("answer", display.Things(float64(o.GetCompletionTokens()), "token"))
	}
}

// cached compares the cached tokens that the engine counted with those that were predicted.
func (p *page) cached(o *decisionv1.Outcome) string {
	s := ""
	if o.CachedTokens != nil {
		s = ", of which the engine had " + display.Count(float64(o.GetCachedTokens())) + " cached"
	}
	if o.GetServedBy() != "" || len(p.d.GetPicks()) == 0 {
		return s
	}
	matches := p.byOrdinal[p.d.GetPicks()[0]].GetPrefixCacheMatches()
	if len(matches) == 0 {
		return s
	}
	predicted := predictedCached(matches[0], o.GetPromptTokens())
	s += fmt.Sprintf("; %s had been predicted", display.Count(float64(predicted)))
	if o.CachedTokens != nil && predicted != o.GetCachedTokens() {
		s += fmt.Sprintf(" (%s %s)", display.Count(abs(float64(o.GetCachedTokens())-float64(predicted))), map[bool]string{true: "more", false: "fewer"}[o.GetCachedTokens() > predicted])
	}
	return s
}

// predictedCached is how many tokens of a prompt an engine is expected to take out of its cache: vLLM computes the last token
// anew, so that of a prompt that it holds whole the last block does not count.
func predictedCached(m *decisionv1.PrefixCacheMatch, promptTokens uint64) uint64 {
	size := m.GetBlockSizeTokens()
	if size <= 0 || promptTokens == 0 {
		return 0
	}
	return uint64(min(m.GetCachedBlockCount(), (int64(promptTokens)-1)/size) * size)
}

func abs(v float64) float64 { return max(v, -v) }

// verdicts says what each verdict meant for the candidates.
var verdicts = map[decisionv1.GateVerdict]string{
	decisionv1.GateVerdict_GATE_VERDICT_NONE:                "it did not run",
	decisionv1.GateVerdict_GATE_VERDICT_EXPLORED:            "all passed, to seed a cache elsewhere",
	decisionv1.GateVerdict_GATE_VERDICT_NO_STICKY:           "nobody holds enough of the prompt, all passed",
	decisionv1.GateVerdict_GATE_VERDICT_HELD:                "only who holds the prompt passed",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC:     "the gap in time is above its bar, all passed",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_MATCHED:    "the gap in tokens is above what the match saves, all passed",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_CEILING:    "the gap in time is above the ceiling, all passed",
	decisionv1.GateVerdict_GATE_VERDICT_RELEASED_BREAK_EVEN: "the gap costs more than the match saves, all passed",
	decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL:      "one side's load is unknown, only who holds the prompt passed",
}

// gates are the load gates' verdicts and what they rest on.
func (p *page) gates() {
	for _, g := range p.d.GetGates() {
		p.section("Gate")
		means := verdicts[g.GetVerdict()]
		if g.GetVerdict() == decisionv1.GateVerdict_GATE_VERDICT_NO_STICKY && !explain.HeldKnown(p.d) {
			means = "what anybody holds of the prompt is not known, all passed"
		}
		if g.GetVerdict() == decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL && g.GetPredicted() {
			means = "of one side nothing is predicted, only who holds the prompt passed"
		}
		p.field("verdict", fmt.Sprintf("%s by %s: %s", record.Verdict(g.GetVerdict()), g.GetFilter(), means))
		if g.Sticky != nil {
			p.field("holds it", p.name(g.GetSticky())+", the best of those that do")
		}
		if g.Other != nil {
			p.field("other", p.name(g.GetOther())+", the best of those that do not")
		}
		if g.GapMs != nil || g.GapTokens != nil && !g.GetPredicted() {
			p.field("gap", gap(g))
		}
		bar := g.BarMs
		if g.GetBarMs() == 0 {
			bar = nil // none applies
		}
		switch {
		case bar != nil || g.BarTokens != nil:
			p.field("bar", amounts(bar, "", g.BarTokens))
		case g.GapMs != nil:
			p.field("bar", "none is set")
		}
	}
}

// gap is by how much more is ahead on the endpoint that holds the prompt.
func gap(g *decisionv1.GateReport) string {
	if g.GetPredicted() {
		return predictedGap(g)
	}
	word, sign := "more", 1.0
	if g.GetGapMs() < 0 || g.GetGapTokens() < 0 {
		word, sign = "less", -1
	}
	signed := func(v *float64) *float64 {
		if v == nil {
			return nil
		}
		w := sign * *v
		return &w
	}
	return amounts(signed(g.GapMs), " of prefill", signed(g.GapTokens)) + " " + word + " on the one that holds it"
}

// predictedGap is by how much later the first token is predicted there; the tokens say nothing of that.
func predictedGap(g *decisionv1.GateReport) string {
	word := "later"
	if g.GetGapMs() < 0 {
		word = "sooner"
	}
	s := fmt.Sprintf("the first token %s %s on the one that holds it, as predicted", display.Millis(math.Abs(g.GetGapMs())), word)
	if g.GapTokens == nil {
		return s
	}
	word = "more"
	if g.GetGapTokens() < 0 {
		word = "fewer"
	}
	return fmt.Sprintf("%s; %s %s in flight there", s, display.Things(math.Abs(g.GetGapTokens()), "token"), word)
}

// amounts writes a time and a number of tokens, those of them that are known.
func amounts(ms *float64, of string, tokens *float64) string {
	switch {
	case ms == nil && tokens == nil:
		return ""
	case ms == nil:
		return display.Things(*tokens, "token") + " in flight"
	case tokens == nil:
		return display.Millis(*ms) + of
	}
	return display.Millis(*ms) + of + ", " + display.Things(*tokens, "token") + " in flight"
}
