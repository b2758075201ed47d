package gate_test

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// drawn is one generated endpoint. Absent match or load is nil.
type drawn struct {
	match *scheduling.PrefixCacheMatchInfo
	load  *scheduling.InFlightLoad
}

func drawEndpoint(t *rapid.T, i int) drawn {
	label := func(s string) string { return fmt.Sprintf("%s[%d]", s, i) }
	var d drawn
	if kind := rapid.IntRange(0, 7).Draw(t, label("match")); kind > 0 {
		total := rapid.SampledFrom([]int{10, 20, 7, 0, -1}).Draw(t, label("total"))
		d.match = &scheduling.PrefixCacheMatchInfo{
			MatchBlocks: max(0, total) - rapid.IntRange(-1, 8).Draw(t, label("missed")), TotalBlocks: total,
			BlockSizeTokens: rapid.SampledFrom([]int{16, 16, 16, 1, 0, -16}).Draw(t, label("size")),
		}
		if kind > 4 {
			d.match.MatchBlocks = 0
		}
	}
	if rapid.IntRange(0, 9).Draw(t, label("load")) > 0 {
		d.load = &scheduling.InFlightLoad{Tokens: int64(rapid.Uint32().Draw(t, label("tokens"))%1010) - 10}
	}
	return d
}

// oracle is the gate's definition over exact numbers: which candidates pass and what the verdict is. Rates are whole
// tokens per second, so TTFTs compare as tokens × 1000 against ms × rate.
func oracle(endpoints []drawn, tau *big.Rat, penaltyMs, rate int64, matchedMode bool) (left []int, verdict scheduling.GateVerdict) {
	var all, sticky, rest []int
	for i, e := range endpoints {
		all = append(all, i)
		if m := e.match; m != nil && m.BlockSizeTokens > 0 && m.TotalBlocks > 0 &&
			big.NewRat(int64(max(0, min(m.MatchBlocks, m.TotalBlocks))), int64(m.TotalBlocks)).Cmp(tau) >= 0 {
			sticky = append(sticky, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(sticky) == 0 {
		return all, scheduling.GateNoSticky
	}
	if len(rest) == 0 {
		return all, scheduling.GateHeld
	}
	saves := func(i int) int64 {
		if m := endpoints[i].match; m != nil && m.BlockSizeTokens > 0 {
			return int64(max(0, min(m.MatchBlocks, m.TotalBlocks)) * m.BlockSizeTokens)
		}
		return 0
	}
	best := func(of []int) int {
		known := slices.DeleteFunc(slices.Clone(of), func(i int) bool { return endpoints[i].load == nil || endpoints[i].load.Tokens < 0 })
		if len(known) == 0 {
			return -1
		}
		return slices.MinFunc(known, func(x, y int) int {
			if d := endpoints[x].load.Tokens - endpoints[y].load.Tokens; d != 0 {
				return int(d)
			}
			return int(saves(y) - saves(x))
		})
	}
	s, o := best(sticky), best(rest)
	if s < 0 || o < 0 {
		return sticky, scheduling.GateMissingSignal
	}
	gap := endpoints[s].load.Tokens - endpoints[o].load.Tokens
	tooFar := penaltyMs > 0 && gap*1000 > penaltyMs*rate
	switch {
	case matchedMode && saves(s) > 0 && gap > saves(s):
		return all, scheduling.GateReleasedMatched
	case tooFar && matchedMode:
		return all, scheduling.GateReleasedCeiling
	case tooFar:
		return all, scheduling.GateReleasedStatic
	}
	return sticky, scheduling.GateHeld
}

// TestGateAgreesWithItsDefinition also shows that the gate never leaves nobody: neither does its definition.
func TestGateAgreesWithItsDefinition(t *testing.T) {
	seen := map[scheduling.GateVerdict]int{}
	rapid.Check(t, func(rt *rapid.T) {
		percent := rapid.SampledFrom([]int64{80, 50, 100, 1}).Draw(rt, "threshold")
		penalty := rapid.SampledFrom([]int64{100, 500, 18000, 1, 0}).Draw(rt, "penalty")
		rate := rapid.SampledFrom([]int64{1000, 743, 15928, 1}).Draw(rt, "rate")
		mode := rapid.SampledFrom([]string{gate.ModeStatic, gate.ModeMatchedTokens}).Draw(rt, "mode")
		parameters := fmt.Sprintf("affinityThreshold: %g\nmaxTTFTPenaltyMs: %d\npeakPrefillThroughput: %d\npenaltyMode: %s",
			float64(percent)/100, penalty, rate, mode)
		table := &schedtest.Table{}
		s := table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First}, []scheduling.Spec{spec("gate", parameters)},
			"gate", schedtest.First.Type)
		for range 20 {
			endpoints := make([]drawn, rapid.IntRange(1, 6).Draw(rt, "endpoints"))
			table.Endpoints = table.Endpoints[:0]
			for i := range endpoints {
				endpoints[i] = drawEndpoint(rt, i)
				table.Endpoints = append(table.Endpoints, schedtest.Endpoint{Match: endpoints[i].match, Load: endpoints[i].load})
			}
			c := table.Decide(t, s, &scheduling.Request{ID: 1})
			wantLeft, want := oracle(endpoints, big.NewRat(percent, 100), penalty, rate, mode == gate.ModeMatchedTokens)
			agree(rt, c, wantLeft, want)
			seen[want]++
		}
	})
	for _, v := range []scheduling.GateVerdict{
		scheduling.GateNoSticky, scheduling.GateHeld, scheduling.GateReleasedStatic, scheduling.GateReleasedMatched,
		scheduling.GateReleasedCeiling, scheduling.GateMissingSignal,
	} {
		if seen[v] == 0 {
			t.Errorf("no run came to %v: %v", v, seen)
		}
	}
}

func agree(rt *rapid.T, c *scheduling.Cycle, wantLeft []int, want scheduling.GateVerdict) {
	if c.Candidates.Empty() {
		rt.Fatalf("the gate left nobody")
	}
	report := c.Gates[0]
	if left := slices.Collect(c.Candidates.All()); report.Verdict != want || !slices.Equal(left, wantLeft) {
		rt.Fatalf("%v left %v, want %v and %v", report.Verdict, left, want, wantLeft)
	}
	compared := report.Sticky >= 0 && report.Other >= 0
	if compared == (math.IsNaN(report.GapMs) || math.IsNaN(report.GapTokens)) {
		rt.Fatalf("sides %d and %d, gaps %v ms and %v tokens", report.Sticky, report.Other, report.GapMs, report.GapTokens)
	}
}
