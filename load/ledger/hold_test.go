package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestPredictedHold(t *testing.T) {
	rates := Rates{PrefillThroughput: 1000, TimePerOutputToken: 10 * time.Millisecond, Max: time.Minute}
	with := func(change func(*Rates)) Rates { r := rates; change(&r); return r }
	tests := map[string]struct {
		uncached, output int64
		rates            Rates
		want             time.Duration
	}{
		"prefill and decode":       {500, 200, rates, 500*time.Millisecond + 2*time.Second},
		"prefill only":             {500, 0, rates, 500 * time.Millisecond},
		"all cached":               {0, 1, rates, 10 * time.Millisecond},
		"nothing":                  {0, 0, rates, 0},
		"negative counts are none": {-500, -200, rates, 0},
		"bounded":                  {math.MaxInt64, math.MaxInt64, rates, time.Minute},
		"no throughput":            {500, 0, with(func(r *Rates) { r.PrefillThroughput = 0 }), time.Minute},
		"no throughput, no tokens": {0, 0, with(func(r *Rates) { r.PrefillThroughput = 0 }), time.Minute},
		"not a number":             {500, 0, with(func(r *Rates) { r.PrefillThroughput = math.NaN() }), time.Minute},
		"negative throughput":      {500, 0, with(func(r *Rates) { r.PrefillThroughput = -1 }), time.Minute},
		"negative decode time":     {0, 200, with(func(r *Rates) { r.TimePerOutputToken = -time.Second }), 0},
		"negative bound":           {500, 0, with(func(r *Rates) { r.Max = -1 }), 0},
		"the defaults":             {15928, 100, DefaultRates(), 3 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := PredictedHold(test.uncached, test.output, test.rates); got != test.want {
				t.Errorf("PredictedHold(%d, %d) = %v, want %v", test.uncached, test.output, got, test.want)
			}
		})
	}
}

// TestHold: a flight whose end nobody sees is held for what is expected of it, its output included although that is not
// charged, and its release is counted apart.
func TestHold(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""))
	b.input(1000)
	f := b.request('a', scheduling.Request{MaxOutputTokens: 50})
	firstToken, done := b.ledger.Hold(f, Rates{PrefillThroughput: 1000, TimePerOutputToken: 10 * time.Millisecond, Max: time.Minute})
	if firstToken != time.Second || done != 1500*time.Millisecond {
		t.Errorf("hold to the first token %v and to the end %v, want 1s and 1.5s", firstToken, done)
	}
	f.FirstToken(firstToken)
	b.expect("first token predicted", 0, scheduling.InFlightLoad{Requests: 1, Decoding: 1})
	f.Done(scheduling.Outcome{Reason: scheduling.EndUnseen}, done)
	b.expect("end predicted", 0, scheduling.InFlightLoad{})
	if got := b.ledger.Released(scheduling.EndUnseen); got != 1 {
		t.Errorf("estimated releases %d, want 1", got)
	}
}
