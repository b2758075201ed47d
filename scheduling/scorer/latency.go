package scorer

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// latencyParameters are the parameters of latency-scorer.
type latencyParameters struct {
	// LatencyPredictionInfoProducerName names the producer of the predictions and of what the request asks; empty means the
	// only one.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
	// TTFTWeight is what the time to the first token counts; at least 0, and not 0 together with tpotWeight.
	TTFTWeight float64 `yaml:"ttftWeight"`
	// TPOTWeight is what the time per output token counts.
	TPOTWeight float64 `yaml:"tpotWeight"`
}

func latencyDefaults() latencyParameters { return latencyParameters{TTFTWeight: 0.8, TPOTWeight: 0.2} }

func (p *latencyParameters) validate() error {
	const most = 1e6
	err := errors.Join(within("ttftWeight", p.TTFTWeight, 0, most), within("tpotWeight", p.TPOTWeight, 0, most))
	if err == nil && p.TTFTWeight+p.TPOTWeight == 0 {
		return fmt.Errorf("parameters.ttftWeight and parameters.tpotWeight are both 0: nothing is left to score by")
	}
	return err
}

func latencyType() scheduling.PluginType {
	defaults := latencyDefaults()
	return scheduling.PluginType{
		Type:       "latency-scorer",
		Summary:    "Prefers the endpoint with the shortest predicted latency, or the tightest one that meets what the request asks.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := latencyDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if err := p.validate(); err != nil {
				return nil, err
			}
			const param = "latencyPredictionInfoProducerName"
			return &Latency{
				predictions: scheduling.ConsumeColumn[scheduling.LatencyPrediction](b, param, p.LatencyPredictionInfoProducerName),
				objective:   scheduling.ConsumeValue[scheduling.LatencyObjective](b, param, p.LatencyPredictionInfoProducerName),
				ttft:        p.TTFTWeight, tpot: p.TPOTWeight,
			}, nil
		},
	}
}

// Latency scores by predicted latency. Without an objective an endpoint's score is the inverse of its mean slowdown:
//
//	1 / (w · (1 + TTFT)/(1 + least TTFT) + v · TPOT/least TPOT)        w + v = 1
//
// with the least among the candidates, in ms: 1 for an endpoint that is the best in both, 0.5 for one that takes twice as long.
// Where an endpoint's TPOT is not predicted its TTFT counts alone. The slowdown is a ratio rather than a place between the best
// and the worst candidate, so that a score says how much longer a request takes there: 100 ms beside 101 ms are 1 and 0.99,
// whichever other candidates there are. That matters where the order is not all that counts. Beside other scorers a difference
// that nobody notices does not outvote one that matters, and a random picker weighted by score shares requests evenly among
// equals and seldom picks a slow one. The added ms does the same for times that are too short to tell apart.
//
// With an objective (scheduling.LatencyObjective) the endpoints come first whose headroom is not negative in anything that is
// asked, the one with the least headroom at the head: requests are packed where they still fit, and room is left for tighter
// ones. Then come those that exceed it, by how far. Headroom is counted in shares of what is asked, so that a ms of TTFT and a
// ms of TPOT compare:
//
//	meets it:    0.5 + 0.5 / (1 + h)    h: the weighted mean of the headrooms, at least 0
//	exceeds it:        0.5 / (1 + d)    d: the weighted mean of the excesses
//
// Headroom in one does not make up for excess in the other. Where one of the two is asked, the other's weight drops out. Where
// no candidate's headroom is known, the scores are those without an objective.
//
// An endpoint without a usable prediction, or of unknown headroom beside known ones, scores 0, and every other one above 0.
type Latency struct {
	predictions scheduling.Key[scheduling.LatencyPrediction]
	objective   scheduling.ValueKey[scheduling.LatencyObjective]
	ttft, tpot  float64 // weights
}

// leastScore keeps the score of a prediction above that of none, however bad it is.
const leastScore = 1e-9

// Score implements scheduling.Scorer.
func (s *Latency) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	predictions := s.predictions.In(c)
	if asked, ok := s.objective.In(c).Get(); ok && s.byHeadroom(predictions, asked, candidates, scores) {
		return
	}
	s.bySlowdown(predictions, candidates, scores)
}

func (s *Latency) bySlowdown(predictions *scheduling.Column[scheduling.LatencyPrediction], candidates scheduling.Set, scores []float64) {
	leastTTFT, leastTPOT := math.Inf(1), math.Inf(1)
	for e := range candidates.All() {
		p := predictions.At(e)
		if p.Usable() && p.TTFTMs < leastTTFT {
			leastTTFT = p.TTFTMs
		}
		if tpot, ok := p.PerTokenMs(); ok && tpot < leastTPOT {
			leastTPOT = tpot
		}
	}
	for e := range candidates.All() {
		p := predictions.At(e)
		if !p.Usable() {
			scores[e] = 0
			continue
		}
		slowdown := (1 + p.TTFTMs) / (1 + leastTTFT)
		if tpot, ok := p.PerTokenMs(); ok {
			slowdown = (s.ttft*slowdown + s.tpot*min(tpot/leastTPOT, 1/leastScore)) / (s.ttft + s.tpot)
		}
		scores[e] = max(leastScore, 1/slowdown)
	}
}

// byHeadroom reports whether the headroom of any candidate is known; where none is, it scores nothing.
func (s *Latency) byHeadroom(predictions *scheduling.Column[scheduling.LatencyPrediction], asked scheduling.LatencyObjective,
	candidates scheduling.Set, scores []float64,
) bool {
	known := false
	for e := range candidates.All() {
		h := predictions.At(e).HeadroomOf(asked)
		ttft, tpot := h.Shares(asked)
		switch {
		case !h.Known():
			scores[e] = 0
			continue
		case h.Negative():
			scores[e] = max(leastScore, 0.5/(1+s.mean(max(0, -ttft), max(0, -tpot))))
		default:
			scores[e] = 0.5 + 0.5/(1+s.mean(ttft, tpot))
		}
		known = true
	}
	return known
}

// mean is the weighted mean of two parts, of which one may be NaN: the other is the mean then, whatever its weight.
func (s *Latency) mean(ttft, tpot float64) float64 {
	switch {
	case math.IsNaN(tpot), s.tpot == 0 && !math.IsNaN(ttft): // 0 × ∞ would be no number
		return ttft
	case math.IsNaN(ttft), s.ttft == 0:
		return tpot
	}
	return (s.ttft*ttft + s.tpot*tpot) / (s.ttft + s.tpot)
}
