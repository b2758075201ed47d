package simulate

import (
	"fmt"
	"math"
	"strings"
)

// ran says how much was run.
func ran(group []Row) (text string) {
	if requests := counted(group); requests != "" {
		text = " " + requests + "."
	}
	least, most := math.MaxInt, 0
	for i := range group {
		for _, l := range group[i].Runs {
			least, most = min(least, l.Seed), max(most, l.Seed)
		}
	}
	switch {
	case most == 0:
	case least == most:
		text += fmt.Sprintf(" Seed %d.", most)
	default:
		text += fmt.Sprintf(" Seeds %d to %d.", least, most)
	}
	return text
}

// endpoints says what the engines are.
func (s *Scenario) endpoints() string {
	text := plural(len(s.Engines), "endpoint")
	var kinds []Engine
	of := map[Engine][]string{}
	for i := 0; i < len(s.Engines); {
		e, n := s.Engines[i], 1
		for i+n < len(s.Engines) && s.Engines[i+n] == e {
			n++
		}
		if of[e] == nil {
			kinds = append(kinds, e)
		}
		which := fmt.Sprint(i)
		if n > 1 {
			which += fmt.Sprintf("–%d", i+n-1)
		}
		of[e] = append(of[e], which)
		i += n
	}
	for i, e := range kinds {
		switch {
		case len(kinds) == 1:
			text += " with"
		case i == 0:
			text += " that are not alike: " + strings.Join(of[e], ", ") + " with"
		default:
			text += "; " + strings.Join(of[e], ", ") + " with"
		}
		text += fmt.Sprintf(" a KV cache of %s tokens", short(float64(e.KVTokens)))
		if e.Slower != 1 {
			text += fmt.Sprintf(", %.4g times slower", e.Slower)
		}
	}
	if s.Profile != nil {
		text += "; costs of the profile " + s.ProfileName
	}
	return text
}

// describe says what a scenario is.
func (s *Scenario) describe() string {
	text := s.endpoints()
	switch {
	case s.B2B != nil:
		text += fmt.Sprintf("; b2b at %v requests per second", s.B2B.PerSecond)
	case s.Speed == 1:
		text += "; at the recorded speed"
	default:
		text += fmt.Sprintf("; at %.4g times the recorded speed", s.Speed)
	}
	if s.Jitter > 0 {
		text += fmt.Sprintf(", each request up to %v later at random", s.Jitter)
	}
	if s.From > 0 || s.end() < 1 {
		text += fmt.Sprintf(", from %.4g %% to %.4g %% of the span", 100*s.From, 100*s.end())
	}
	if s.Load > 0 {
		text += fmt.Sprintf(" (%.4g %% of the capacity)", 100*s.Load)
	}
	text += fmt.Sprintf("; KV events %v late", s.Sight.EventDelay)
	text += fmt.Sprintf(", %.4g %% of them lost", 100*s.Sight.EventLoss)
	text += fmt.Sprintf(", metrics read every %v", s.Sight.ScrapeInterval)
	if s.Pickers > 1 {
		text += fmt.Sprintf("; %d replicas of the picker", s.Pickers)
	}
	if s.WarmUp > 0 {
		text += fmt.Sprintf("; the first %.4g %% of the requests do not count", 100*s.WarmUp)
	}
	for _, shift := range s.Shifts {
		at := fmt.Sprintf("; from %.4g %% of the span on ", 100*shift.At)
		switch {
		case shift.Slower.Factor != 0:
			text += at + fmt.Sprintf("endpoint %d is %.4g times slower", shift.Slower.Engine, shift.Slower.Factor)
		case shift.Prompts.Mean != 0:
			text += at + fmt.Sprintf("prompts have %s tokens on average and come %.4g times as often", short(float64(shift.Prompts.Mean)), shift.Prompts.Rate)
		default:
			text += at + fmt.Sprintf("%.4g %% of the requests begin with the same %s tokens, for %.4g %% of the span", 100*shift.Burst.Share,
				short(float64(shift.Burst.Tokens)), 100*shift.Burst.For)
		}
	}
	return text + fmt.Sprintf(". SLO: TTFT %v, TPOT %v.", s.Objective.TTFT, s.Objective.TPOT)
}
