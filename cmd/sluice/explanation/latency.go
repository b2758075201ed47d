package explanation

import (
	"fmt"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
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
	l := predictionOf(e)
	if l == nil {
		p.field("predicted TTFT", notYet)
		return
	}
	what := "TTFT"
	if l.GetWholeResponse() {
		what = "response"
	}
	p.field("predicted "+what, fmt.Sprintf("%s%s%s (confidence %s)",
		display.Millis(l.GetTtftMs()), parts(l), below(l.GetTtftP90Ms()), display.Percent(l.GetConfidence())))
	if l.GetTpotMs() > 0 {
		p.field("predicted TPOT", display.Millis(l.GetTpotMs())+below(l.GetTpotP90Ms()))
	}
	p.seen(l)
	p.asked(l)
	if next := p.next(); next != nil {
		if m := predictionOf(next); m != nil {
			p.field("beside it", fmt.Sprintf("%s on %s%s%s", display.Millis(m.GetTtftMs()), p.name(next.GetOrdinal()), parts(m), below(m.GetTtftP90Ms())))
		}
	}
}

func predictionOf(e *decisionv1.Candidate) *decisionv1.LatencyPrediction {
	if l := e.GetLatencyPredictions(); len(l) > 0 {
		return l[0]
	}
	return nil
}

// parts are what a prediction is made of, where that is recorded.
func parts(l *decisionv1.LatencyPrediction) string {
	if l.GetWaitMs() == 0 && l.GetPrefillMs() == 0 {
		return ""
	}
	s := fmt.Sprintf(": %s of waiting, %s of prefill", display.Millis(l.GetWaitMs()), display.Millis(l.GetPrefillMs()))
	if r := l.GetResidual(); r > 0 && r != 1 {
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

// seen sets what came beside what was predicted. A prediction is of the endpoint that was picked.
func (p *page) seen(l *decisionv1.LatencyPrediction) {
	o := p.d.Outcome
	if o == nil || o.GetServedBy() != "" {
		return
	}
	took := o.TtftMs
	if l.GetWholeResponse() {
		total := o.GetTotalMs()
		took = &total
	}
	if took != nil && l.GetTtftMs() > 0 {
		p.field("seen", fmt.Sprintf("%s, %s times what was predicted", display.Millis(*took), display.Score(*took/l.GetTtftMs())))
	}
	tokens := float64(o.GetCompletionTokens()) / float64(max(1, p.d.GetRequest().GetChoices()))
	if o.TtftMs == nil || tokens <= 1 || l.GetTpotMs() <= 0 {
		return
	}
	tpot := (o.GetTotalMs() - o.GetTtftMs()) / (tokens - 1)
	p.field("seen TPOT", fmt.Sprintf("%s, %s times what was predicted", display.Millis(tpot), display.Score(tpot/l.GetTpotMs())))
}

// asked is what the request asks, and how far the prediction stays below it.
func (p *page) asked(l *decisionv1.LatencyPrediction) {
	all := p.d.GetRequest().GetLatencyObjectives()
	if len(all) == 0 {
		return
	}
	if o := all[0]; o.GetTtftMs() > 0 {
		p.field("asked TTFT", headroom(o.GetTtftMs(), l.GetTtftHeadroomMs()))
	}
	if o := all[0]; o.GetTpotMs() > 0 {
		p.field("asked TPOT", headroom(o.GetTpotMs(), l.GetTpotHeadroomMs()))
	}
}

func headroom(asked, left float64) string {
	if left < 0 {
		return fmt.Sprintf("%s; the bound of nine in ten is %s above it", display.Millis(asked), display.Millis(-left))
	}
	return fmt.Sprintf("%s; the bound of nine in ten is %s below it", display.Millis(asked), display.Millis(left))
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
