package scheduling

import "math"

// Usable reports whether there is a prediction to compare at all: one that is absent, or whose TTFTMs is not a number, infinite
// or not above 0, says nothing.
func (p *LatencyPrediction) Usable() bool { return p != nil && usableTime(p.TTFTMs) }

// FirstTokenMs is the predicted time to the first token, in ms; ok is false where there is none: the prediction is not
// usable, or is of the time to the end of the response.
func (p *LatencyPrediction) FirstTokenMs() (ms float64, ok bool) {
	if !p.Usable() || p.WholeResponse {
		return 0, false
	}
	return p.TTFTMs, true
}

// PerTokenMs is the predicted time per output token after the first, in ms; ok is false where there is none.
func (p *LatencyPrediction) PerTokenMs() (ms float64, ok bool) {
	if !p.Usable() || !usableTime(p.TPOTMs) {
		return 0, false
	}
	return p.TPOTMs, true
}

func usableTime(ms float64) bool { return ms > 0 && !math.IsInf(ms, 1) }

// Headroom is by how much the 90th percentile of a prediction stays below what is asked, in ms: negative where it exceeds it, NaN
// where it is not asked, or not predicted. It is the prediction's own figure: a producer may hold a reserve of what is asked
// back.
type Headroom struct{ TTFT, TPOT float64 }

// Known reports whether anything that is asked can be compared.
func (h Headroom) Known() bool { return !math.IsNaN(h.TTFT) || !math.IsNaN(h.TPOT) }

// Negative reports whether something that is asked is predicted to be exceeded.
func (h Headroom) Negative() bool { return h.TTFT < 0 || h.TPOT < 0 } // false for NaN

// Shares are the headrooms as shares of what is asked, which compare with each other: 0.25 where a quarter of it is left.
func (h Headroom) Shares(of LatencyObjective) (ttft, tpot float64) {
	return h.TTFT / of.TTFTMs, h.TPOT / of.TPOTMs // NaN where it is not asked
}

// HeadroomOf is what the prediction leaves of an objective.
func (p *LatencyPrediction) HeadroomOf(o LatencyObjective) Headroom {
	h := Headroom{TTFT: math.NaN(), TPOT: math.NaN()}
	if _, ok := p.FirstTokenMs(); ok && o.TTFTMs > 0 {
		h.TTFT = finiteOrNaN(p.TTFTHeadroomMs)
	}
	if _, ok := p.PerTokenMs(); ok && o.TPOTMs > 0 {
		h.TPOT = finiteOrNaN(p.TPOTHeadroomMs)
	}
	return h
}

// finiteOrNaN is NaN for what is no number that can be compared.
func finiteOrNaN(headroom float64) float64 {
	if math.IsInf(headroom, 0) {
		return math.NaN()
	}
	return headroom
}
