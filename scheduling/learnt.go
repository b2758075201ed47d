package scheduling

import "fmt"

// LearntRates are what work costs on one endpoint, as far as it is known: constants at first, measurements as they come.
type LearntRates struct {
	// PrefillMsPerToken is how long an uncached prompt token takes to compute, in ms; positive.
	PrefillMsPerToken float64
	// WaitMsPerToken is how long each token in flight on the endpoint makes a request wait, in ms; positive.
	WaitMsPerToken float64
	// Confidence is how far the rates are measured, 0 to 1.
	Confidence float64
}

// DefaultPrefillThroughput is what an endpoint is taken to prefill where nothing is known, in tokens per second: the
// measured peak of Qwen3-32B on two H100 (tensor parallel).
const DefaultPrefillThroughput = 15928

// MaxPrefillThroughput is a thousand times the fastest engine, in tokens per second: a larger value is a slip.
const MaxPrefillThroughput = 1e9

// CheckPrefillThroughput reports a parameter peakPrefillThroughput, in tokens per second, that cannot be.
func CheckPrefillThroughput(v float64) error {
	if v > 0 && v <= MaxPrefillThroughput { // false for NaN too
		return nil
	}
	return fmt.Errorf("parameters.peakPrefillThroughput: must be > 0 and at most %v tokens per second, got %v", float64(MaxPrefillThroughput), v)
}

// FixedRates are those of an endpoint that prefills so many tokens per second, where nothing else is known.
func FixedRates(throughput float64) LearntRates {
	return LearntRates{PrefillMsPerToken: 1000 / throughput, WaitMsPerToken: 1000 / throughput}
}

// PoolPressure is what of the pool decides how much a request's work costs the other requests.
type PoolPressure struct {
	// Utilisation is the share of the endpoints' time in which they have prompts to compute, 0 to 1.
	Utilisation float64
	// DecodeStall is by how much each ms of prefill holds up each request that is decoding on the endpoint, in ms.
	DecodeStall float64
	// CompanyMs is by how much a request and one that is in flight on the same endpoint make each other decode longer, in ms
	// for both together.
	CompanyMs float64
	// Confidence is how far DecodeStall and CompanyMs are measured, 0 to 1.
	Confidence float64
}

// MaxAlpha bounds PoolPressure.Alpha: where no time is idle the formula knows no bound.
const MaxAlpha = 3.0

// Alpha is what a request's prefill takes from requests still to come, in units of its own time: ρ/(1−ρ) at a utilisation
// of ρ, at most MaxAlpha. In a queue that is served one after the other that is how many requests wait on average behind
// the one that is served.
func (p PoolPressure) Alpha() float64 {
	rho := max(0, p.Utilisation)
	if rho >= MaxAlpha/(1+MaxAlpha) {
		return MaxAlpha
	}
	return rho / (1 - rho)
}

// PickPrice says what a pick costs others than the request itself, in units of what it costs the request.
type PickPrice struct {
	// Alpha prices what the request's prefill takes from requests still to come, in units of its own time.
	Alpha float64
	// Kappa prices what it takes from each request that is decoding on the endpoint, in the same units.
	Kappa float64
	// CompanyMs prices each request in flight on the endpoint, in ms.
	CompanyMs float64
}

// Wait is how long the load makes a request wait, in ms. A token ahead counts like one of the request's own. WaitMsPerToken is
// less, since part of what is in flight is done already when a request comes; but picks by it are worse (docs/decisions).
func (p PickPrice) Wait(r LearntRates, load *InFlightLoad) float64 {
	return r.PrefillMsPerToken * float64(max(0, load.Tokens))
}

// Cost is what a pick of an endpoint costs everyone, in ms: the request's wait, its own uncached tokens, and its company.
//
//	wait(W) + prefill(U) · (1 + α + κ · decoding) + company · requests
//
// Tokens are summed before they are turned into time, so that endpoints which differ only in how the same work is split
// cost exactly the same.
func (p PickPrice) Cost(r LearntRates, load *InFlightLoad, uncached UncachedRequestTokens) float64 {
	tokens := float64(max(0, load.Tokens)) + ownTokens(uncached)*(1+p.others(load))
	return tokens*r.PrefillMsPerToken + p.company(load)
}

// CostBehind is Cost where what the request itself waits and computes, wait(W) + prefill(U), is known as ownMs:
//
//	own + prefill(U) · (α + κ · decoding) + company · requests
func (p PickPrice) CostBehind(ownMs float64, r LearntRates, load *InFlightLoad, uncached UncachedRequestTokens) float64 {
	return ownMs + ownTokens(uncached)*p.others(load)*r.PrefillMsPerToken + p.company(load)
}

// others is what each ms of prefill takes from everyone else.
func (p PickPrice) others(load *InFlightLoad) float64 {
	return p.Alpha + p.Kappa*float64(max(0, load.Decoding))
}

func (p PickPrice) company(load *InFlightLoad) float64 {
	return p.CompanyMs * float64(max(0, load.Requests))
}

func ownTokens(uncached UncachedRequestTokens) float64 { return float64(max(0, uncached)) }
