package fleet

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// TimeBins is into how many parts of equal length curves over time divide a run.
const TimeBins = 100

// QuantileShares are the shares of requests of which curves have quantiles.
var QuantileShares = func() []float64 {
	var all []float64
	for i := 1; i < 40; i++ {
		all = append(all, float64(i)/40)
	}
	return append(all, 0.99, 0.995, 0.999, 1)
}()

// Curves are a run in series of bounded lengths, each value rounded to four digits.
type Curves struct {
	// TTFT are the quantiles of the times to the first token at QuantileShares, in seconds, without the warm-up.
	TTFT []float64 `json:"ttft_s,omitempty"`
	// Over is the mean time to the first token, in seconds, of the requests that came in each of TimeBins parts of the run,
	// the warm-up included; -1 where none came.
	Over []float64 `json:"over_s,omitempty"`
	// Hits is the share of those requests' prompt tokens that came out of a cache; -1 where none came.
	Hits []float64 `json:"hits,omitempty"`
	// Span is from the beginning to the last request, in seconds.
	Span float64 `json:"span_s,omitempty"`
	// Prefill is each engine's share of all prefill, 0 to 1.
	Prefill []float64 `json:"prefill,omitempty"`
	// Verdicts counts what the load gates decided, by name; it is nil where there are none.
	Verdicts map[string]int `json:"verdicts,omitempty"`
}

// Curves draws a run. warmUp is the share of the requests that the quantiles leave out.
func (r *Result) Curves(warmUp float64) Curves {
	c := Curves{Over: make([]float64, TimeBins), Hits: make([]float64, TimeBins)}
	var ttft []float64
	for _, q := range r.Samples[min(len(r.Samples), int(warmUp*float64(len(r.Samples)))):] {
		ttft = append(ttft, q.TTFT.Seconds())
	}
	slices.Sort(ttft)
	for _, share := range QuantileShares {
		c.TTFT = append(c.TTFT, rounded(quantile(ttft, share)))
	}
	c.over(r.Samples)
	total := 0
	for _, n := range r.Prefilled {
		total += n
	}
	for _, n := range r.Prefilled {
		c.Prefill = append(c.Prefill, rounded(float64(n)/float64(max(1, total))))
	}
	for verdict, n := range r.Verdicts {
		if c.Verdicts == nil {
			c.Verdicts = map[string]int{}
		}
		c.Verdicts[verdict.String()] += n
	}
	return c
}

func (c *Curves) over(samples []Sample) {
	span := time.Duration(1)
	for _, q := range samples {
		span = max(span, q.At)
	}
	c.Span = rounded(span.Seconds())
	var n, prompt, cached [TimeBins]int
	var sum [TimeBins]float64
	for _, q := range samples {
		i := max(0, int(float64(TimeBins)*min(float64(q.At)/float64(span), 1-0.5/TimeBins)))
		n[i]++
		sum[i] += q.TTFT.Seconds()
		prompt[i] += q.PromptTokens
		cached[i] += q.CachedTokens
	}
	for i := range TimeBins {
		c.Over[i], c.Hits[i] = -1, -1
		if n[i] > 0 {
			c.Over[i] = rounded(sum[i] / float64(n[i]))
			c.Hits[i] = rounded(float64(cached[i]) / float64(prompt[i]))
		}
	}
}

// rounded has four digits.
func rounded(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return short
}
