package gate

import (
	"math"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestCheaper(t *testing.T) {
	a := contender{ordinal: 1, costMs: 100, tokens: 100, matched: 16}
	tests := map[string]struct {
		next contender
		want int
	}{
		"lower":                 {contender{ordinal: 2, costMs: 99.9}, 2},
		"higher":                {contender{ordinal: 2, costMs: 100.1, matched: 1e6}, 1},
		"equal, longer match":   {contender{ordinal: 2, costMs: 100, matched: 32}, 2},
		"equal, shorter match":  {contender{ordinal: 2, costMs: 100, matched: 8}, 1},
		"equal, equal":          {contender{ordinal: 2, costMs: 100, matched: 16}, 1},
		"zero is known":         {contender{ordinal: 2, costMs: 0}, 2},
		"NaN is unknown":        {contender{ordinal: 2, costMs: math.NaN(), matched: 1e6}, 1},
		"+Inf is unknown":       {contender{ordinal: 2, costMs: math.Inf(1), matched: 1e6}, 1},
		"-Inf is unknown":       {contender{ordinal: 2, costMs: math.Inf(-1), matched: 1e6}, 1},
		"a negative is unknown": {contender{ordinal: 2, costMs: -1, matched: 1e6}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := cheaper(a, test.next); got.ordinal != test.want {
				t.Errorf("best is %d, want %d", got.ordinal, test.want)
			}
			want := noContender.ordinal
			if scheduling.Finite(test.next.costMs) {
				want = test.next.ordinal
			}
			if got := cheaper(noContender, test.next); got.ordinal != want {
				t.Errorf("alone: best is %d, want %d", got.ordinal, want)
			}
		})
	}
}

func TestMatchedTokensOf(t *testing.T) {
	info := scheduling.NewPrefixCacheMatchInfo
	tests := map[string]struct {
		info scheduling.PrefixCacheMatchInfo
		want float64
	}{
		"whole blocks":               {info(90, 100, 16), 1440},
		"none":                       {info(0, 100, 16), 0},
		"never more than the prompt": {info(120, 100, 16), 1600},
		"negative":                   {info(-5, 100, 16), 0},
		"block size 0":               {info(90, 100, 0), 0},
		"block size below 0":         {info(90, 100, -16), 0},
		"absent":                     {scheduling.PrefixCacheMatchInfo{}, 0},
		"beyond an int": {info(math.MaxInt, math.MaxInt, math.MaxInt),
			float64(math.MaxInt) * float64(math.MaxInt)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := matchedTokens(&test.info); got != test.want {
				t.Errorf("matchedTokens = %v, want %v", got, test.want)
			}
		})
	}
}

// With no matched tokens their test is skipped: it neither releases nor holds, and the ceiling still applies.
func TestNoMatchedTokensSkipTheirTest(t *testing.T) {
	r := rule{matchedTokens: true, penaltyMs: 18000, throughput: 15928}
	sticky := func(tokens int64) contender {
		return r.contender(0, &scheduling.InFlightLoad{Tokens: tokens}, nil, &scheduling.PrefixCacheMatchInfo{})
	}
	idle := r.contender(1, &scheduling.InFlightLoad{}, nil, nil)
	report := r.judge(sticky(4000), idle)
	if report.Verdict != scheduling.GateHeld || !math.IsNaN(report.BarTokens) || report.GapTokens != 4000 {
		t.Errorf("verdict %v, bar %v, gap %v tokens, want held, NaN, 4000", report.Verdict, report.BarTokens, report.GapTokens)
	}
	report = r.judge(sticky(19*15928), idle)
	if report.Verdict != scheduling.GateReleasedCeiling || report.GapMs != 19000 {
		t.Errorf("verdict %v, gap %v ms, want released_ceiling, 19000", report.Verdict, report.GapMs)
	}
	r.penaltyMs = 0
	if report = r.judge(sticky(math.MaxInt64), idle); report.Verdict != scheduling.GateHeld {
		t.Errorf("without a ceiling: verdict %v, want held", report.Verdict)
	}
}

// A gap that is exactly at a bound holds, whatever its size: time is computed with one rounding.
func TestExactlyAtTheLimitHolds(t *testing.T) {
	for _, throughput := range []float64{1, 743, 1000, 15928, 27261} {
		for seconds := 1; seconds <= 60; seconds++ {
			r := rule{penaltyMs: float64(seconds) * 1000, throughput: throughput}
			gap := int64(throughput) * int64(seconds)
			for _, base := range []int64{0, 1, 13296, 1 << 30} {
				other := r.contender(1, &scheduling.InFlightLoad{Tokens: base}, nil, nil)
				at := r.contender(0, &scheduling.InFlightLoad{Tokens: base + gap}, nil, nil)
				if v := r.judge(at, other).Verdict; v != scheduling.GateHeld {
					t.Fatalf("%v tok/s, %d s over %d: %v at the limit", throughput, seconds, base, v)
				}
				at.tokens++
				if v := r.judge(at, other).Verdict; v != scheduling.GateReleasedStatic {
					t.Fatalf("%v tok/s, %d s over %d: %v one token above the limit", throughput, seconds, base, v)
				}
			}
		}
	}
}
