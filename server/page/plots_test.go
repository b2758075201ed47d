package page

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

func TestGates(t *testing.T) {
	var g gates
	none := math.NaN()
	g.add([]scheduling.GateReport{
		{Verdict: scheduling.GateHeld, GapMs: 10, BarMs: 100, GapTokens: 50, BarTokens: 60},
		{Verdict: scheduling.GateReleasedMatched, GapMs: 20, BarMs: 0, GapTokens: 70, BarTokens: 60},
		{Verdict: scheduling.GateNoSticky, GapMs: none, BarMs: none, GapTokens: none, BarTokens: none},
		{Verdict: 200, GapMs: none, GapTokens: none},
	})
	p := plots(g, nil)
	verdicts, _ := p[0].data.(plot)
	if len(verdicts.Chips) != 3 {
		t.Errorf("%v", verdicts.Chips)
	}
	ms, _ := p[1].data.(plot)
	if !strings.Contains(ms.Summary, "1 of 2 released. The bar is 100 ms.") {
		t.Error(ms.Summary)
	}
	tokens, _ := p[2].data.(plot)
	if tokens.Bar == nil || tokens.Bar.Text != "bar 60 tokens" || tokens.Top != "1 decision" || tokens.Unit != "tokens" || len(tokens.Bars) != 2 ||
		tokens.Bars[0].Title != "above 20 to 50: 1 held, 0 released" || tokens.Bars[1].Title != "above 50 to 100: 0 held, 1 released" {
		t.Errorf("%+v", tokens)
	}
	if tokens.Bars[0].Low != plotBottom-plotTop || tokens.Bars[0].High != 0 || tokens.Bars[1].High != plotBottom-plotTop {
		t.Errorf("%+v", tokens.Bars)
	}
}

// Whatever the gaps are, each is in one column, and all of a plot is inside of it.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		gap := rapid.OneOf(rapid.Float64Range(-1e12, 1e12), rapid.Float64Range(-50, 50), rapid.SampledFrom([]float64{0, 1, -1, 1000, math.Inf(1), math.Inf(-1), 5e-324}))
		all := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) sample {
			s := sample{gap: gap.Draw(r, "gap"), bar: math.NaN(), released: rapid.Bool().Draw(r, "released")}
			if rapid.Bool().Draw(r, "bounded") {
				s.bar = math.Abs(gap.Draw(r, "bar"))
			}
			return s
		}), 1, 40).Draw(r, "all")
		p := histogram("t", "a", "e", "ms", all)
		sum, unit := 0.0, 0.0
		for _, c := range p.Bars {
			if c.X < plotLeft || c.X+c.Width > plotWidth-plotLeft+0.1 || c.HighY < plotTop-0.1 || c.LowY > plotBottom || c.Width <= 0 {
				r.Fatalf("%+v is outside", c)
			}
			sum += c.Low + c.High
			unit = max(unit, c.Low+c.High)
		}
		if unit < plotBottom-plotTop-0.1 {
			r.Fatalf("the highest is %v", unit)
		}
		last := math.Inf(-1)
		for _, m := range p.Labels {
			if m.X < last || m.X > plotWidth {
				r.Fatalf("label %+v after %v", m, last)
			}
			last = m.X
		}
		if p.Bar != nil && (p.Bar.X < plotLeft || p.Bar.X > plotWidth) {
			r.Fatalf("the bound is at %v", p.Bar.X)
		}
		if len(p.Bars) > 60 || sum == 0 {
			r.Fatalf("%d columns of %v", len(p.Bars), sum)
		}
	})
}

// Labels do not run into each other, and where gaps go either way the zero between them has one.
func TestLabels(t *testing.T) {
	const perDigit = 7.0 // at most, of 11 pixels' height
	for _, high := range []float64{0.5, 3, 80, 400, 12_000, 5e5, 2e8, 1e12} {
		for _, low := range []float64{-1e12, -3e6, -9000, -700, -3, 0, 1, 40} {
			p := histogram("t", "a", "e", "ms", []sample{{gap: min(low, high), bar: math.NaN()}, {gap: high, bar: math.NaN()}})
			end, zero := math.Inf(-1), false
			for _, m := range p.Labels {
				width := perDigit * float64(utf8.RuneCountInString(m.Text))
				from := map[string]float64{"start": m.X, "middle": m.X - width/2, "end": m.X - width}[m.Anchor]
				if from < end+3 || from < 0 || from+width > plotWidth {
					t.Errorf("%v to %v: %q begins at %v, the one before ends at %v", low, high, m.Text, from, end)
				}
				end, zero = from+width, zero || m.Text == "0"
			}
			if len(p.Labels) < 2 || low < -1 && !zero {
				t.Errorf("%v to %v: labels %v", low, high, p.Labels)
			}
		}
	}
}

func TestBreakEven(t *testing.T) {
	known := func(v float64) *schedulerv1.Endpoint {
		return &schedulerv1.Endpoint{Rates: &schedulerv1.LearntRates{BreakEven: &v}}
	}
	p := breakEven([]*schedulerv1.Endpoint{known(0.3), known(1.5), known(0.31), {}, known(0)})
	if p.Empty != "" || len(p.Bars) != 2 || !strings.Contains(p.Bars[0].Title, "above 0.2 to 0.5: 2 endpoints") ||
		p.Top != "2 endpoints" || p.Unit != "tokens in flight for each prompt token" || p.Summary != "Known of 3 of 5 endpoints: from 0.3 to 1.5, in the middle 0.31." {
		t.Errorf("%+v", p)
	}
}

func TestNumbers(t *testing.T) {
	for want, got := range map[string]string{
		"0": number(0), "0.333": number(1.0 / 3), "999": number(999), "15,928": number(15928.4), "−1,234": number(-1234), "−0.5": number(-0.5),
		unknown: number(math.NaN()), "+Inf": number(math.Inf(1)), "−12": count(-12), "1,000,000": count(1_000_000),
		"0 %": percent(0), "< 1 %": percent(0.004), "100 %": percent(1), "3 KiB": size(3 << 10), "1.5 GiB": size(3 << 29), "12 B": size(12),
		"0 ms": duration(0), "0.25 ms": duration(0.25), "12 ms": duration(12), "1.5 s": duration(1500), "2 min": duration(120_000),
		"59 s": uptime(59 * time.Second), "1 h 1 min": uptime(61 * time.Minute), "3 days": uptime(73 * time.Hour), "1 token": plural(1, "token"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.1: 2, 3: 5, 5: 5, 7: 10, 1001: 2000, 50_000: 50_000} {
		if got := ceiling(v); got != want {
			t.Errorf("above %v is %v", v, got)
		}
	}
	if share(0, 5) != 0 || share(1e-9, 5) != 1 || share(9, 5) != 100 || share(1, 0) != 0 {
		t.Error("shares")
	}
}
