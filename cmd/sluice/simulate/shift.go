package simulate

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Shift is something that changes in the middle of a run: one of Slower, Prompts and Burst.
type Shift struct {
	// At is when, as a share of the trace's span before anything shifts.
	At float64
	// Slower is an engine that becomes slower.
	Slower Slower
	// Prompts are prompts that become longer, or shorter.
	Prompts Prompts
	// Burst is a prefix that is hot for a while.
	Burst Burst
}

// Slower is an engine that becomes slower.
type Slower struct {
	// Engine is its number.
	Engine int
	// Factor is by what its steps take longer than the model says from then on; 0: none does.
	Factor float64
}

// Prompts are prompts that become longer, or shorter; see trace.Prompts.
type Prompts struct {
	// Mean is their new mean, and Most the longest that one becomes, in tokens; a Mean of 0: nothing changes.
	Mean, Most int
	// Rate is by what the rate of requests changes.
	Rate float64
}

// Burst is a prefix that is hot for a while; see trace.Burst.
type Burst struct {
	// For is how long, as a share of the span.
	For float64
	// Share is how many of the requests begin with it then, 0 to 1; 0: there is none.
	Share float64
	// Tokens is its length.
	Tokens int
}

// The defaults of shifts.
const (
	defaultMost  = 131_072
	defaultFor   = 0.1
	defaultShare = 0.5
	defaultHot   = 20_000
)

// problem says what cannot be of a shift of so many engines.
func (s *Shift) problem(engines int) error {
	kinds := 0
	for _, present := range []bool{s.Slower.Factor != 0, s.Prompts.Mean != 0, s.Burst.Share != 0} {
		if present {
			kinds++
		}
	}
	p, b := s.Prompts, s.Burst
	switch {
	case !(s.At >= 0 && s.At <= 1):
		return fmt.Errorf("at: must be from 0 to 1, got %v", s.At)
	case kinds != 1:
		return errors.New("must be one of slower, prompts and burst")
	case s.Slower.Engine < 0 || s.Slower.Engine >= engines:
		return fmt.Errorf("slower: endpoint: must be from 0 to %d, got %d", engines-1, s.Slower.Engine)
	case s.Slower.Factor != 0 && !(s.Slower.Factor > 0 && s.Slower.Factor <= 1e6):
		return fmt.Errorf("slower: factor: must be > 0, got %v", s.Slower.Factor)
	case p.Mean != 0 && (p.Mean < 1 || p.Most <= p.Mean || p.Most > trace.MaxPromptTokens):
		return fmt.Errorf("prompts: must be 0 < mean < most <= %d, got %d and %d", trace.MaxPromptTokens, p.Mean, p.Most)
	case p.Mean != 0 && !(p.Rate > 0 && p.Rate <= 1e6):
		return fmt.Errorf("prompts: rate: must be > 0, got %v", p.Rate)
	case b.Share != 0 && !(b.Share > 0 && b.Share <= 1 && b.For > 0 && b.For <= 1):
		return fmt.Errorf("burst: share and for: must be above 0 up to 1, got %v and %v", b.Share, b.For)
	case b.Share != 0 && (b.Tokens < 1 || b.Tokens > trace.MaxPromptTokens/2):
		return fmt.Errorf("burst: tokens: must be from 1 to %d, got %d", trace.MaxPromptTokens/2, b.Tokens)
	}
	return nil
}

// shifted is the trace as the shifts change it, and when each of them happens.
func (s *Scenario) shifted(t *trace.Trace, random *rand.Rand) (*trace.Trace, []time.Duration, error) {
	when := make([]time.Duration, 2*len(s.Shifts)) // beginnings, then ends
	for i, shift := range s.Shifts {
		when[i] = time.Duration(shift.At * float64(t.Span()))
		when[len(s.Shifts)+i] = time.Duration((shift.At + shift.Burst.For) * float64(t.Span()))
	}
	for i, shift := range s.Shifts {
		var err error
		switch {
		case shift.Prompts.Mean != 0:
			var moved func(time.Duration) time.Duration
			p := shift.Prompts
			if t, moved, err = t.Resized(trace.Prompts{At: when[i], Mean: p.Mean, Most: p.Most, Rate: p.Rate}); err != nil {
				return nil, nil, err
			}
			for j := range when {
				when[j] = moved(when[j])
			}
		case shift.Burst.Share != 0:
			b := trace.Burst{From: when[i], To: when[len(s.Shifts)+i], Share: shift.Burst.Share, Tokens: shift.Burst.Tokens}
			if t, err = t.Bursting(b, random); err != nil {
				return nil, nil, err
			}
		}
	}
	return t, when[:len(s.Shifts)], nil
}

// ParseShift reads a shift as a flag says it: slower:at=0.5,endpoint=3,factor=3 or prompts:at=0.5,mean=78000,most=131072,rate=1 or
// burst:at=0.5,for=0.1,share=0.5,tokens=20000.
func ParseShift(spec string) (Shift, error) {
	kind, settings, _ := strings.Cut(spec, ":")
	s := Shift{At: 0.5}
	var err error
	switch kind {
	case "slower":
		s.Slower.Factor = 3
		err = set(settings, map[string]any{"at": &s.At, "endpoint": &s.Slower.Engine, "factor": &s.Slower.Factor})
	case "prompts":
		s.Prompts = Prompts{Most: defaultMost, Rate: 1}
		if err = set(settings, map[string]any{"at": &s.At, "mean": &s.Prompts.Mean, "most": &s.Prompts.Most, "rate": &s.Prompts.Rate}); err == nil && s.Prompts.Mean == 0 {
			err = errors.New("mean: is missing")
		}
	case "burst":
		s.Burst = Burst{For: defaultFor, Share: defaultShare, Tokens: defaultHot}
		err = set(settings, map[string]any{"at": &s.At, "for": &s.Burst.For, "share": &s.Burst.Share, "tokens": &s.Burst.Tokens})
	default:
		kinds := []string{"slower", "prompts", "burst"}
		err = fmt.Errorf("must be one of %s, got %q%s", strings.Join(kinds, ", "), kind, scheduling.Hint(kind, kinds))
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", spec, err)
	}
	return s, nil
}

// SetEngines changes some engines as a flag says it: 7:slower=3,kv-tokens=100000 or 4-7:slower=2.
func SetEngines(engines []Engine, spec string) error {
	which, settings, _ := strings.Cut(spec, ":")
	first, last, several := strings.Cut(which, "-")
	from, err := strconv.Atoi(first)
	to := from
	if err == nil && several {
		to, err = strconv.Atoi(last)
	}
	if err != nil || from < 0 || to < from || to >= len(engines) {
		return fmt.Errorf("%s: must begin with an endpoint, or a first and a last one, from 0 to %d", spec, len(engines)-1)
	}
	for i := from; i <= to; i++ {
		if err := set(settings, map[string]any{"slower": &engines[i].Slower, "kv-tokens": &engines[i].KVTokens}); err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
	}
	return nil
}

// set reads KEY=VALUE,… into numbers.
func set(settings string, into map[string]any) error {
	for setting := range strings.SplitSeq(settings, ",") {
		key, value, ok := strings.Cut(setting, "=")
		if !ok {
			return fmt.Errorf("want KEY=VALUE, got %q", setting)
		}
		var err error
		switch to := into[key].(type) {
		case *int:
			*to, err = strconv.Atoi(value)
		case *float64:
			*to, err = strconv.ParseFloat(value, 64)
		default:
			valid := slices.Sorted(maps.Keys(into))
			return fmt.Errorf("unknown key %q%s; valid are %s", key, scheduling.Hint(key, valid), strings.Join(valid, ", "))
		}
		if err != nil {
			return fmt.Errorf("%s: must be a number, got %q", key, value)
		}
	}
	return nil
}
