package gate

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// contender is one endpoint's input to the gate.
type contender struct {
	ordinal int     // -1: nobody
	ttftMs  float64 // time to the first token, in ms: behind what is in flight, or as predicted
	tokens  float64 // tokens in flight
	matched float64 // weighted match in tokens
	costMs  float64 // what a pick costs everyone, in ms; what ranks it. The TTFT, except with breakEven
}

// noContender stands for a side without a known TTFT.
var noContender = contender{ordinal: -1, ttftMs: math.NaN(), tokens: math.NaN(), costMs: math.NaN()}

// cheaper returns whichever of the two costs less, by default the one with the lower TTFT; of equal ones the one with the
// longer match. What is not a number, infinite or negative is unknown and never the best.
func cheaper(best, next contender) contender {
	switch {
	case !scheduling.Finite(next.costMs):
		return best
	case best.ordinal < 0, next.costMs < best.costMs, next.costMs == best.costMs && next.matched > best.matched:
		return next
	}
	return best
}

// rule is when the load gate releases.
type rule struct {
	matchedTokens bool
	breakEven     bool
	predicted     bool    // the TTFT is a prediction
	penaltyMs     float64 // 0: no bound
	throughput    float64 // tokens per second
}

// contender makes the gate's input of what is known of an endpoint; load and p are nil where they are not. A load that cannot
// be is unknown, and so is a prediction of anything but a first token.
func (r rule) contender(
	ordinal int, load *scheduling.InFlightLoad, p *scheduling.LatencyPrediction, info *scheduling.PrefixCacheMatchInfo,
) contender {
	c := contender{ordinal: ordinal, ttftMs: math.NaN(), tokens: math.NaN(), matched: matchedTokens(info)}
	if load != nil {
		c.tokens = float64(load.Tokens)
		c.ttftMs = r.ms(c.tokens)
	}
	if r.predicted {
		c.ttftMs = math.NaN()
		if ms, ok := p.FirstTokenMs(); ok {
			c.ttftMs = ms
		}
		if c.tokens < 0 {
			c.tokens = math.NaN()
		}
	}
	c.costMs = c.ttftMs
	return c
}

// ms is the time that the engine needs for a number of tokens. It multiplies first: whole numbers of tokens then divide
// with one rounding, and a difference exactly at the limit compares equal to it.
func (r rule) ms(tokens float64) float64 { return tokens * 1000 / r.throughput }

// matchedTokens is the tier-weighted match in tokens: a block in a slower tier is cheaper to forfeit. Only whole blocks
// of the prompt count, so that it never exceeds the prompt; no or unusable info is 0.
func matchedTokens(info *scheduling.PrefixCacheMatchInfo) float64 {
	if info == nil || !info.Valid() {
		return 0
	}
	return float64(max(0, min(info.MatchBlocks, info.TotalBlocks))) * float64(info.BlockSizeTokens)
}

// judge compares the best sticky endpoint with the best other one:
//
//	static:         released when TTFT(sticky) − TTFT(other) > penalty
//	matchedTokens:  released when inFlight(sticky) − inFlight(other) > matched tokens of the sticky one,
//	                or when the static test, then a ceiling, fires
//	breakEven:      released when cost(sticky) > cost(other), or when the ceiling fires: when the wait that the sticky one
//	                has more is longer than what is saved there is worth (scheduling.PickPrice)
//
// A difference exactly at a bound holds. A penalty of 0 never fires, and no matched tokens skip their test. Where a side
// has no known TTFT there is nothing to compare, and the gate holds.
func (r rule) judge(sticky, other contender) scheduling.GateReport {
	report := scheduling.GateReport{
		Verdict: scheduling.GateHeld, BarMs: r.penaltyMs, BarTokens: math.NaN(),
		GapMs: math.NaN(), GapTokens: math.NaN(), Sticky: sticky.ordinal, Other: other.ordinal,
	}
	if sticky.ordinal < 0 || other.ordinal < 0 {
		report.Verdict, report.BarMs = scheduling.GateMissingSignal, 0
		return report
	}
	report.GapTokens = sticky.tokens - other.tokens
	if r.breakEven {
		return r.judgeCost(report, sticky, other)
	}
	report.GapMs = r.gapMs(sticky, other)
	if r.matchedTokens && sticky.matched > 0 {
		report.BarTokens = sticky.matched
		if report.GapTokens > report.BarTokens {
			report.Verdict = scheduling.GateReleasedMatched
			return report
		}
	}
	if r.penaltyMs > 0 && report.GapMs > r.penaltyMs {
		report.Verdict = scheduling.GateReleasedStatic
		if r.matchedTokens {
			report.Verdict = scheduling.GateReleasedCeiling
		}
	}
	return report
}

// gapMs is by how much the sticky one's TTFT is the longer. Tokens are subtracted before they are turned into time.
func (r rule) gapMs(sticky, other contender) float64 {
	if r.predicted {
		return sticky.ttftMs - other.ttftMs
	}
	return r.ms(sticky.tokens - other.tokens)
}

// judgeCost compares what the two cost, beside how long they make the request wait.
func (r rule) judgeCost(report scheduling.GateReport, sticky, other contender) scheduling.GateReport {
	report.GapMs = sticky.ttftMs - other.ttftMs
	report.BarMs = (other.costMs - other.ttftMs) - (sticky.costMs - sticky.ttftMs)
	switch {
	case sticky.costMs > other.costMs:
		report.Verdict = scheduling.GateReleasedBreakEven
	case r.penaltyMs > 0 && report.GapMs > r.penaltyMs:
		report.Verdict, report.BarMs = scheduling.GateReleasedCeiling, r.penaltyMs
	}
	return report
}

// released reports whether a verdict lets all candidates pass.
func released(v scheduling.GateVerdict) bool {
	switch v {
	case scheduling.GateReleasedStatic, scheduling.GateReleasedMatched, scheduling.GateReleasedCeiling,
		scheduling.GateReleasedBreakEven:
		return true
	}
	return false
}
