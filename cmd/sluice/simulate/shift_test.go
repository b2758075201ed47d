package simulate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseShift(t *testing.T) {
	for spec, want := range map[string]Shift{
		"slower:at=0.25,endpoint=3,factor=2.5":          {At: 0.25, Slower: Slower{3, 2.5}},
		"slower:endpoint=1":                             {At: 0.5, Slower: Slower{1, 3}},
		"prompts:mean=78000":                            {At: 0.5, Prompts: Prompts{78_000, 131_072, 1}},
		"prompts:at=0.1,mean=500,most=1000,rate=0.25":   {At: 0.1, Prompts: Prompts{500, 1000, 0.25}},
		"burst:at=0.5,for=0.2,share=0.75,tokens=100000": {At: 0.5, Burst: Burst{0.2, 0.75, 100_000}},
	} {
		got, err := ParseShift(spec)
		if err == nil {
			err = got.problem(4)
		}
		if err != nil || got != want {
			t.Errorf("%s: %v %+v", spec, err, got)
		}
	}
	for spec, want := range map[string]string{
		"slowr:at=1":             `slowr:at=1: must be one of slower, prompts, burst, got "slowr" (did you mean "slower"?)`,
		"slower":                 `slower: want KEY=VALUE, got ""`,
		"slower:endpiont=1":      `unknown key "endpiont" (did you mean "endpoint"?); valid are at, endpoint, factor`,
		"slower:factor=x":        `factor: must be a number, got "x"`,
		"prompts:at=0.5":         "mean: is missing",
		"slower:endpoint=9":      "slower: endpoint: must be from 0 to 3, got 9",
		"slower:at=2":            "at: must be from 0 to 1, got 2",
		"slower:factor=-1":       "slower: factor: must be > 0, got -1",
		"slower:factor=NaN":      "slower: factor: must be > 0, got NaN",
		"prompts:mean=9,most=9":  "prompts: must be 0 < mean < most",
		"prompts:mean=9,rate=0":  "prompts: rate: must be > 0",
		"burst:share=2":          "burst: share and for: must be above 0 up to 1",
		"burst:tokens=0":         "burst: tokens: must be from 1",
		"slower:factor=0":        "must be one of slower, prompts and burst",
		"burst:for=0":            "burst: share and for: must be above 0 up to 1",
		"prompts:mean=x,rate=1x": "mean: must be a number",
	} {
		s, err := ParseShift(spec)
		if err == nil {
			err = s.problem(4)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

func TestSetEngines(t *testing.T) {
	engines := []Engine{{1, 1}, {1, 1}, {1, 1}, {1, 1}}
	for _, spec := range []string{"3:slower=2.5,kv-tokens=7", "1-2:kv-tokens=9"} {
		if err := SetEngines(engines, spec); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]Engine{{1, 1}, {9, 1}, {9, 1}, {7, 2.5}}, engines); diff != "" {
		t.Error(diff)
	}
	for _, spec := range []string{"4:slower=2", "x:slower=2", "2-1:slower=2", "-1:slower=2", "1-x:slower=2", "0", "0:slower", "0:slow=1", "0:slower=x"} {
		if err := SetEngines(engines, spec); err == nil || !strings.HasPrefix(err.Error(), spec+": ") {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// A slow engine is slow, and one that becomes slow is from then on.
func TestSlowEngines(t *testing.T) {
	p := plan()
	p.Candidates, p.Seeds = p.Candidates[2:], 1 // a random pick
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	s := &p.Scenarios[0]
	// slowness is how much longer engine 2 takes than the others to the first token, in the first and the second half.
	slowness := func() [2]float64 {
		r, _, err := s.run(t.Context(), &p.Candidates[0], 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		var sum, n [2][2]float64
		for _, q := range r.Samples {
			half, slow := 0, 0
			if q.At > r.Samples[len(r.Samples)-1].At/2 {
				half = 1
			}
			if q.Endpoint == 2 {
				slow = 1
			}
			sum[half][slow] += q.TTFT.Seconds()
			n[half][slow]++
		}
		return [2]float64{sum[0][1] / n[0][1] / (sum[0][0] / n[0][0]), sum[1][1] / n[1][1] / (sum[1][0] / n[1][0])}
	}
	even := slowness()
	s.Engines[2].Slower = 3
	slow := slowness()
	s.Engines[2].Slower = 1
	s.Shifts = []Shift{{At: 0.5, Slower: Slower{2, 3}}}
	becomes := slowness()
	if slow[0] < 2*even[0] || slow[1] < 2*even[1] || becomes[0] != even[0] || becomes[1] < 2*even[1] {
		t.Errorf("slower than the others by %v, when slow %v, when it becomes slow %v", even, slow, becomes)
	}
}

// Shifts of the requests move those of engines along: what was to happen in the middle does.
func TestShiftsTogether(t *testing.T) {
	p := plan()
	s := &p.Scenarios[0]
	s.Speed = 2
	s.Shifts = []Shift{{At: 0.5, Prompts: Prompts{20_000, 100_000, 0.25}}, {At: 0.75, Slower: Slower{1, 3}}, {At: 0.9, Burst: Burst{0.05, 1, 5000}}}
	before, err := s.B2B.Trace(rand.New(rand.NewPCG(1, 0xb2b)))
	if err != nil {
		t.Fatal(err)
	}
	got, shifts, err := s.requests(1)
	if err != nil {
		t.Fatal(err)
	}
	span := before.Span()
	want := (span/2 + 4*(span/4)) / 2
	if len(shifts) != 1 || (shifts[0].At-want).Abs() > time.Millisecond {
		t.Errorf("%+v, want %v", shifts, want)
	}
	hot := 0
	for i, r := range got.Requests {
		if r.PromptTokens > 20_000+4000 {
			hot++
			if at := before.Requests[i].At; at < span*89/100 || at > span*96/100 {
				t.Errorf("hot at %v of %v", at, span)
			}
		}
	}
	if hot < 8 || hot > 40 {
		t.Errorf("%d of 400 requests begin with the hot prefix, in a twentieth of the time", hot)
	}
}
