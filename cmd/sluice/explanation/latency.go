package explanation

import (
	"fmt"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// latency is what is known of how long it takes, and how long it took.
func (p *page) latency() {
	if len(p.d.GetPicks()) == 0 {
		return
	}
	p.section("Latency")
	e := p.byOrdinal[p.d.GetPicks()[0]]
	p.predicted(e)
	rates, breakEven := notYet, notYet
	for _, now := range p.Endpoints {
		if now.GetOrdinal() != e.GetOrdinal() || now.GetGeneration() != e.GetGeneration() || now.Rates == nil {
			continue
		}
		rates, breakEven = Rates(now.GetRates(), notYet)
	}
	p.field("learnt rates", rates)
	p.field("break-even", breakEven)
	for _, pressure := range p.d.GetPoolPressures() {
		p.field("pool", Pressure(pressure))
	}
}

// predicted is what was predicted of the pick and of the next best one, what was asked, and what came.
func (p *page) predicted(e *decisionv1.Candidate) {
	l, ok := explain.LatencyOf(p.d, e)
	if !ok {
		p.field("predicted TTFT", notYet)
		return
	}
	what := "TTFT"
	if l.Predicted.WholeResponse {
		what = "whole" // as the outcome has it
	}
	p.field("predicted "+what, fmt.Sprintf("%s%s%s (confidence %s)",
		display.Millis(l.Predicted.TTFTMs), parts(&l.Predicted), below(l.Predicted.TTFTP90Ms), display.Percent(l.Predicted.Confidence)))
	if tpot, ok := l.Predicted.PerTokenMs(); ok {
		p.field("predicted TPOT", display.Millis(tpot)+below(l.Predicted.TPOTP90Ms))
	}
	p.seen("seen "+what, l.Seen.TTFTMs, l.Predicted.TTFTMs)
	p.say("seen "+what, l.Unseen)
	p.seen("seen TPOT", l.Seen.TPOTMs, l.Predicted.TPOTMs)
	p.say("asked TTFT", l.AskedTTFT(display.Millis))
	p.say("asked TPOT", l.AskedTPOT(display.Millis))
	next := p.next()
	if m, ok := explain.LatencyOf(p.d, next); ok {
		p.field("beside it", fmt.Sprintf("%s on %s%s%s", display.Millis(m.Predicted.TTFTMs), p.name(next.GetOrdinal()), parts(&m.Predicted), below(m.Predicted.TTFTP90Ms)))
	}
}

// parts are what a prediction is made of, where that is recorded.
func parts(l *scheduling.LatencyPrediction) string {
	if l.WaitMs == 0 && l.PrefillMs == 0 {
		return ""
	}
	s := fmt.Sprintf(": %s of waiting, %s of %s", display.Millis(l.WaitMs), display.Millis(l.PrefillMs), explain.OwnPart(l))
	if r := l.Residual; r > 0 && r != 1 {
		s += fmt.Sprintf(", times %s for what such requests took more or less", display.Score(r))
	}
	return s
}

func below(p90 float64) string {
	if p90 <= 0 {
		return ""
	}
	return "; nine of ten below " + display.Millis(p90)
}

// seen sets what came beside what was predicted.
func (p *page) seen(name string, took, predicted float64) {
	if took > 0 {
		p.field(name, fmt.Sprintf("%s, %s times what was predicted", display.Millis(took), display.Score(took/predicted)))
	}
}

// say sets what there are words for.
func (p *page) say(name, words string) {
	if words != "" {
		p.field(name, words)
	}
}

// next is the best of those that were not picked.
func (p *page) next() (best *decisionv1.Candidate) {
	if picks := p.d.GetPicks(); len(picks) > 1 {
		return p.byOrdinal[picks[1]]
	}
	for _, e := range p.d.GetCandidates() {
		if len(e.GetScores()) > 0 && e.GetOrdinal() != p.d.GetPicks()[0] && (best == nil || e.GetTotal() > best.GetTotal()) {
			best = e
		}
	}
	return best
}
