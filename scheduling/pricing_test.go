package scheduling_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestCostBehind: where what a request waits and computes is what the rates say, it costs what the rates say.
func TestCostBehind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		price := scheduling.PickPrice{
			Alpha: rapid.Float64Range(0, 3).Draw(rt, "alpha"), Kappa: rapid.Float64Range(0, 1).Draw(rt, "kappa"),
			CompanyMs: rapid.Float64Range(0, 100).Draw(rt, "company"),
		}
		r := scheduling.FixedRates(rapid.Float64Range(100, 1e5).Draw(rt, "throughput"))
		load := &scheduling.InFlightLoad{
			Requests: rapid.Int64Range(-1, 100).Draw(rt, "requests"), Tokens: rapid.Int64Range(-1, 1e6).Draw(rt, "tokens"),
			Decoding: rapid.Int64Range(-1, 100).Draw(rt, "decoding"),
		}
		own := scheduling.UncachedRequestTokens(rapid.Int64Range(-1, 1e5).Draw(rt, "own"))
		want := price.Cost(r, load, own)
		got := price.CostBehind(price.Wait(r, load)+float64(max(0, own))*r.PrefillMsPerToken, r, load, own)
		if math.Abs(got-want) > 1e-9*(1+want) {
			rt.Fatalf("%v, want %v", got, want)
		}
		if more := price.CostBehind(1000, r, load, own) - price.CostBehind(0, r, load, own); math.Abs(more-1000) > 1e-6*(1+want) {
			rt.Fatalf("1000 ms more cost %v", more)
		}
	})
}
