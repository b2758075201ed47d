package ledger

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Rates are the constants that predict how long an engine works on a request whose answer is not seen.
type Rates struct {
	// PrefillThroughput is how fast prompts are computed, in tokens per second; must be > 0.
	PrefillThroughput float64
	// TimePerOutputToken is the time between two generated tokens.
	TimePerOutputToken time.Duration
	// Max bounds the prediction: an estimate of the output can be far off, and a charge must end.
	Max time.Duration
}

// DefaultRates returns the constants that hold until something better is measured: the peak prefill throughput of
// Qwen3-32B on two H100 (15,928 tokens/s, the gate's default as well), 20 ms per output token, at most 2 minutes.
func DefaultRates() Rates {
	return Rates{PrefillThroughput: 15928, TimePerOutputToken: 20 * time.Millisecond, Max: 2 * time.Minute}
}

// PredictedHold is how long a charge is to be held when the end of its answer will not be seen:
//
//	uncachedTokens / PrefillThroughput + outputTokens × TimePerOutputToken, at most Max
//
// With outputTokens 0 it is the time to the first token. Negative counts mean 0; a throughput that is not positive
// predicts nothing and gives Max.
func PredictedHold(uncachedTokens, outputTokens int64, r Rates) time.Duration {
	seconds := float64(max(0, uncachedTokens))/r.PrefillThroughput +
		float64(max(0, outputTokens))*r.TimePerOutputToken.Seconds()
	limit := max(0, r.Max)
	if !(r.PrefillThroughput > 0) || math.IsNaN(seconds) || seconds >= limit.Seconds() {
		return limit
	}
	return max(0, time.Duration(seconds*float64(time.Second)))
}

// Hold is PredictedHold for a flight: of the prompt tokens that it still holds and the output that is expected of it,
// whether that is charged or not. A caller that ends the flight itself tells FirstToken after firstToken and Done after
// done, both from now.
func (p *Plugin) Hold(f *scheduling.Flight, r Rates) (firstToken, done time.Duration) {
	held := p.charges.Of(f)
	return PredictedHold(held.prompt, 0, r), PredictedHold(held.prompt, held.expected, r)
}

// Charged is what a flight holds at this moment: uncached prompt tokens, which go at the first token, and estimated
// output tokens, which go at its end. Both are 0 once it has ended.
func (p *Plugin) Charged(f *scheduling.Flight) (prompt, output int64) {
	held := p.charges.Of(f)
	return held.prompt, held.output
}
