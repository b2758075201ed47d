package explain

import (
	"fmt"
	"math"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Seen is what came of what was predicted, in ms; 0 where nothing came that compares.
type Seen struct {
	// TTFTMs stands beside LatencyPrediction.TTFTMs: it is the time to the first token or, where WholeResponse is set, to the end.
	TTFTMs float64
	// TPOTMs is the time per output token after the first.
	TPOTMs float64
}

// SeenOf is what came of a prediction for the first pick. A prediction is of an answer that the picked endpoint gives, and gives
// to its end: of one that failed, that the client gave up, or that another endpoint gave, nothing compares. Where the rest of
// the answer was not looked at, its first token does. choices are the answers that the request asked for.
func SeenOf(p *scheduling.LatencyPrediction, end *record.Ending, choices int) (s Seen) {
	ended := end.Reason == scheduling.EndComplete
	if !p.Usable() || end.ServedBy != "" || end.Status < 200 || end.Status > 299 || !ended && end.Reason != scheduling.EndUnseen {
		return s
	}
	switch {
	case !p.WholeResponse:
		s.TTFTMs = millisecondsOf(max(0, end.FirstToken))
	case ended:
		s.TTFTMs = millisecondsOf(end.Total)
	}
	if _, ok := p.PerTokenMs(); !ok || !ended || end.FirstToken < 0 {
		return s
	}
	if further := float64(end.Usage.CompletionTokens)/float64(max(1, choices)) - 1; further > 0 {
		s.TPOTMs = max(0, millisecondsOf(end.Total-end.FirstToken)/further)
	}
	return s
}

func millisecondsOf(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Latency is what a record says of a candidate's latency.
type Latency struct {
	// Predicted is the first prediction.
	Predicted scheduling.LatencyPrediction
	// Asked is what the request asks by the same producer, or zero.
	Asked scheduling.LatencyObjective
	// Headroom is what the prediction leaves of it.
	Headroom scheduling.Headroom
	// Seen is what came, of the first pick.
	Seen Seen
	// Unseen says why no time to a first token was seen of an answer that ended well; empty where one was, or none was to be.
	Unseen string
}

// OwnPart is what the part of a predicted time is that no other request causes: of a whole response most of it is no prefill.
func OwnPart(p *scheduling.LatencyPrediction) string {
	if p.WholeResponse {
		return "computing"
	}
	return "prefill"
}

// LatencyOf reads what was predicted of a candidate; ok is false where nothing was.
func LatencyOf(d *decisionv1.Decision, c *decisionv1.Candidate) (l Latency, ok bool) {
	if len(c.GetLatencyPredictions()) == 0 {
		return l, false
	}
	p := c.GetLatencyPredictions()[0]
	l.Predicted = record.PredictionFrom(p)
	for _, o := range d.GetRequest().GetLatencyObjectives() {
		if o.GetProducer() == p.GetProducer() {
			l.Asked = record.ObjectiveFrom(o)
		}
	}
	l.Headroom = l.Predicted.HeadroomOf(l.Asked)
	if o := d.GetOutcome(); o != nil && len(d.GetPicks()) > 0 && d.GetPicks()[0] == c.GetOrdinal() {
		end := record.EndingFrom(o)
		l.Seen = SeenOf(&l.Predicted, &end, int(min(d.GetRequest().GetChoices(), math.MaxInt32)))
		well := end.Reason == scheduling.EndComplete && end.Status >= 200 && end.Status <= 299 && end.ServedBy == ""
		if well && end.FirstToken < 0 && !d.GetRequest().GetStream() && l.Predicted.Usable() && !l.Predicted.WholeResponse {
			l.Unseen = "not seen: the answer was not streamed"
		}
	}
	return l, true
}

// AskedTTFT says what is asked of the time to the first token, and how the prediction stands to it; empty where nothing is asked.
// ms writes a time.
func (l *Latency) AskedTTFT(ms func(float64) string) string {
	why := "no time to the first token is predicted"
	if l.Predicted.WholeResponse {
		why = "what is predicted is the whole response"
	}
	return asked(l.Asked.TTFTMs, l.Headroom.TTFT, l.Predicted.TTFTP90Ms, why, ms)
}

// AskedTPOT is AskedTTFT for the time per output token.
func (l *Latency) AskedTPOT(ms func(float64) string) string {
	return asked(l.Asked.TPOTMs, l.Headroom.TPOT, l.Predicted.TPOTP90Ms, "no time per token is predicted", ms)
}

func asked(objective, headroom, p90 float64, unpredicted string, ms func(float64) string) string {
	if !(objective > 0) {
		return ""
	}
	s := ms(objective)
	if math.IsNaN(headroom) {
		return s + "; " + unpredicted
	}
	// A producer may hold the prediction against another time than the one that is asked.
	what := "it"
	if held := headroom + p90; p90 > 0 && math.Abs(held-objective) > 1e-6*objective {
		s += ", counted as " + ms(held)
		what = "that"
	}
	if headroom < 0 {
		return fmt.Sprintf("%s; the bound of nine in ten is %s above %s", s, ms(-headroom), what)
	}
	return fmt.Sprintf("%s; the bound of nine in ten is %s below %s", s, ms(headroom), what)
}
