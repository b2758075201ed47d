package page

import (
	"math"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// latencyFacts are what was predicted of the first pick, what was asked, and what came; none where nothing was predicted.
func latencyFacts(d *decisionv1.Decision) []fact {
	if len(d.GetPicks()) == 0 {
		return nil
	}
	var l explain.Latency
	known := false
	for _, c := range d.GetCandidates() {
		if c.GetOrdinal() == d.GetPicks()[0] {
			l, known = explain.LatencyOf(d, c)
		}
	}
	if !known {
		return nil
	}
	what := timed(&l.Predicted)
	var facts []fact
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, fact{name, value})
		}
	}
	add("Predicted "+what, duration(l.Predicted.TTFTMs)+below(l.Predicted.TTFTP90Ms))
	add("Made of", partsOf(&l.Predicted))
	if tpot, ok := l.Predicted.PerTokenMs(); ok {
		add("Predicted TPOT", duration(tpot)+below(l.Predicted.TPOTP90Ms))
	}
	add("Confidence", percent(l.Predicted.Confidence))
	add("Asked TTFT", l.AskedTTFT(duration))
	add("Asked TPOT", l.AskedTPOT(duration))
	add("Seen "+what, beside(l.Seen.TTFTMs, l.Predicted.TTFTMs))
	add("Seen "+what, l.Unseen)
	add("Seen TPOT", beside(l.Seen.TPOTMs, l.Predicted.TPOTMs))
	return facts
}

// timed is what a prediction is the time of.
func timed(p *scheduling.LatencyPrediction) string {
	if p.WholeResponse {
		return "response"
	}
	return "TTFT"
}

// partsOf are what a predicted time is made of, where that is recorded.
func partsOf(p *scheduling.LatencyPrediction) string {
	if !(p.WaitMs > 0) && !(p.PrefillMs > 0) {
		return ""
	}
	s := duration(p.WaitMs) + " of waiting, " + duration(p.PrefillMs) + " of " + explain.OwnPart(p)
	if p.Residual > 0 && p.Residual != 1 {
		s += ", times " + number(p.Residual)
	}
	return s
}

func below(p90 float64) string {
	if !(p90 > 0) {
		return ""
	}
	return "; nine of ten below " + duration(p90)
}

// beside is what came beside what was predicted.
func beside(took, predicted float64) string {
	if !(took > 0) {
		return ""
	}
	return duration(took) + ", " + number(took/predicted) + " times what was predicted"
}

// predicted is what a candidate's row says of its latency: the time, and what else there is of it.
func predicted(d *decisionv1.Decision, c *decisionv1.Candidate) (words string, more []string) {
	l, ok := explain.LatencyOf(d, c)
	if !ok {
		return unknown, nil
	}
	p := &l.Predicted
	confidence := "confidence " + percent(p.Confidence)
	if tpot, ok := p.PerTokenMs(); ok {
		confidence = "TPOT " + duration(tpot) + "; " + confidence
	}
	for _, s := range []string{
		strings.TrimPrefix(below(p.TTFTP90Ms), "; "), partsOf(p), confidence, leaves("TTFT", l.Headroom.TTFT), leaves("TPOT", l.Headroom.TPOT),
	} {
		if s != "" {
			more = append(more, s)
		}
	}
	return duration(p.TTFTMs), more
}

// leaves says what a prediction leaves of what is asked; empty where that is not known.
func leaves(what string, headroom float64) string {
	switch {
	case math.IsNaN(headroom):
		return ""
	case headroom < 0:
		return "asked " + what + " exceeded by " + duration(-headroom)
	}
	return "asked " + what + " met by " + duration(headroom)
}
