package fleet

import (
	"slices"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Sample is what became of one request.
type Sample struct {
	// At is when it came, and TTFT the time from then to its first token.
	At, TTFT time.Duration
	// TPOT is the time per token after the first; 0 for an answer of one.
	TPOT time.Duration
	// E2E is the time to its end.
	E2E time.Duration
	// PromptTokens is its length, and CachedTokens what the engine had of it.
	PromptTokens, CachedTokens, OutputTokens int
	// Endpoint is where it went.
	Endpoint int
}

// Result is a run.
type Result struct {
	// Samples are the requests that were served, in the order in which they came.
	Samples []Sample
	// Refused is how many the engines took none of, and NoPick how many had no pick.
	Refused, NoPick int
	// Prefilled are the prompt tokens that each engine computed.
	Prefilled []int
	// Verdicts counts what the pickers' load gates decided.
	Verdicts map[scheduling.GateVerdict]int
	// End is when the last request ended.
	End time.Duration
}

func (f *fleet) result() *Result {
	r := &Result{Refused: f.refused, NoPick: f.nowhere, End: f.now, Verdicts: map[scheduling.GateVerdict]int{}}
	for _, e := range f.engines {
		r.Prefilled = append(r.Prefilled, e.prefill)
	}
	for _, q := range f.all {
		if q.first == 0 {
			continue
		}
		s := Sample{
			At: q.At, TTFT: q.first - q.At, E2E: q.end - q.At, PromptTokens: q.PromptTokens, CachedTokens: q.Cached, OutputTokens: q.OutputTokens, Endpoint: q.Endpoint,
		}
		if q.OutputTokens > 1 {
			s.TPOT = (q.end - q.first) / time.Duration(q.OutputTokens-1)
		}
		r.Samples = append(r.Samples, s)
	}
	for _, p := range f.pickers {
		if s, ok := p.(interface {
			Verdicts() map[scheduling.GateVerdict]int
		}); ok {
			for verdict, n := range s.Verdicts() {
				r.Verdicts[verdict] += n
			}
		}
	}
	return r
}

// Objective is what a request is to be served within.
type Objective struct {
	// TTFT and TPOT are the longest times.
	TTFT, TPOT time.Duration
}

// DefaultObjective is 5 s to the first token and 100 ms for each further one.
var DefaultObjective = Objective{5 * time.Second, 100 * time.Millisecond}

// Summary is a run in figures.
type Summary struct {
	// Requests are those that count.
	Requests int
	// TTFT, TPOT and E2E, the time to a request's end, in seconds.
	TTFTMean, TTFTP50, TTFTP90, TTFTP99 float64
	TPOTMean, TPOTP50, TPOTP90, TPOTP99 float64
	E2EMean, E2EP50, E2EP90, E2EP99     float64
	// Goodput is the share of requests within the objective; what was not served is not.
	Goodput float64
	// HitRate is the share of prompt tokens that came out of a cache.
	HitRate float64
	// Imbalance is the prefill of the engine that computed most, over the mean of all.
	Imbalance float64
	// Released and Gated are the gate's releases, and its decisions of which somebody was sticky.
	Released, Gated int
}

// Summarise computes a run's figures without its first share of requests, in which caches fill.
func (r *Result) Summarise(warmUp float64, o Objective) Summary {
	counted := r.Samples[min(len(r.Samples), int(warmUp*float64(len(r.Samples)))):]
	s := Summary{Requests: len(counted)}
	var ttft, tpot, e2e []float64
	prompt, cached, good := 0, 0, 0
	for _, q := range counted {
		ttft, e2e = append(ttft, q.TTFT.Seconds()), append(e2e, q.E2E.Seconds())
		if q.OutputTokens > 1 {
			tpot = append(tpot, q.TPOT.Seconds())
		}
		prompt, cached = prompt+q.PromptTokens, cached+q.CachedTokens
		if q.TTFT <= o.TTFT && q.TPOT <= o.TPOT {
			good++
		}
	}
	s.TTFTMean, s.TTFTP50, s.TTFTP90, s.TTFTP99 = spread(ttft)
	s.TPOTMean, s.TPOTP50, s.TPOTP90, s.TPOTP99 = spread(tpot)
	s.E2EMean, s.E2EP50, s.E2EP90, s.E2EP99 = spread(e2e)
	if all := len(counted) + r.Refused + r.NoPick; all > 0 {
		s.Goodput = float64(good) / float64(all)
	}
	if prompt > 0 {
		s.HitRate = float64(cached) / float64(prompt)
	}
	total, most := 0, 0
	for _, n := range r.Prefilled {
		total, most = total+n, max(most, n)
	}
	if total > 0 {
		s.Imbalance = float64(most) * float64(len(r.Prefilled)) / float64(total)
	}
	for verdict, n := range r.Verdicts {
		switch verdict {
		case scheduling.GateReleasedStatic, scheduling.GateReleasedMatched, scheduling.GateReleasedCeiling, scheduling.GateReleasedBreakEven:
			s.Released += n
			s.Gated += n
		case scheduling.GateHeld:
			s.Gated += n
		}
	}
	return s
}

// spread sorts values.
func spread(all []float64) (average, p50, p90, p99 float64) {
	slices.Sort(all)
	return mean(all), quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99)
}

func mean(sorted []float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	return sum / float64(len(sorted))
}

// quantile is the smallest value that at least a share q of all do not exceed.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
