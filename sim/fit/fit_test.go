package fit_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fit"
)

const budget = 8192

func options() fit.Options {
	return fit.Options{Budget: budget, Default: sim.DefaultParams().Cost, Resamples: 60, Seed: 1}
}

// quick is a small model on one big card: every cost is another than the default.
var quick = sim.StepCost{Base: 6e-3, PrefillToken: 17e-6, Attention: 0.9e-9, DecodeSeq: 31e-6, DecodeContext: 20e-9}

// measured has the engine model itself serve requests, each alone with some sequences that decode, and takes their times.
func measured(t *testing.T, cost sim.StepCost, n int, noise float64, decoding bool) []fit.Sample {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	p := sim.DefaultParams()
	p.Cost, p.NumBlocks, p.MaxModelLen = cost, 1<<14, 1<<17
	var all []fit.Sample
	words := text(0, 1<<15)
	for i := range n {
		e, err := sim.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := fit.Sample{PromptTokens: int(100 * math.Exp(random.Float64()*5)), OutputTokens: 2 + random.IntN(60)} // 100 to 14,800
		prompt := slices.Clone(words[:s.PromptTokens])
		prompt[0] = 1<<30 + uint32(i)
		now := time.Duration(0)
		step := func() sim.StepResult {
			if _, ok := e.Begin(now); !ok {
				t.Fatal("nothing to do")
			}
			r := e.Complete()
			now = r.End
			return r
		}
		if random.IntN(2) == 0 { // some of it is cached
			have := &sim.Job{Prompt: prompt[:random.IntN(s.PromptTokens)+1]}
			must(t, e.Submit(0, have))
			for have.Progress().FirstToken == 0 {
				step()
			}
		}
		others, longest := 0, []int{30, 2000}[random.IntN(2)]
		if decoding {
			others = random.IntN(40)
		}
		var busy []*sim.Job
		for k := range others {
			j := &sim.Job{Prompt: words[k : k+1+random.IntN(longest)], Output: make([]uint32, 400)}
			must(t, e.Submit(now, j))
			busy = append(busy, j)
		}
		for others > 0 && busy[others-1].Progress().Generated == 0 {
			step()
		}
		for _, j := range busy {
			s.ContextTokens += len(j.Prompt) + j.Progress().Generated
		}
		s.Decoding = others
		sent := now
		if others > 0 { // in the middle of a step
			end, _ := e.Begin(now)
			sent = now + time.Duration(random.Float64()*float64(end-now))
			e.Complete()
			now = end
		}
		j := &sim.Job{Prompt: prompt, Output: make([]uint32, s.OutputTokens)}
		must(t, e.Submit(sent, j))
		for j.Progress().Finished == 0 {
			step()
		}
		pr := j.Progress()
		s.CachedTokens = pr.Cached
		s.TTFT = (pr.FirstToken - sent).Seconds() * (1 + noise*random.NormFloat64())
		s.TPOT = (pr.Finished - pr.FirstToken).Seconds() / float64(s.OutputTokens-1) * (1 + noise*random.NormFloat64())
		all = append(all, s)
	}
	return all
}

func text(first uint32, n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = first + uint32(i)
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func values(c sim.StepCost) []float64 {
	return []float64{c.Base, c.PrefillToken, c.Attention, c.DecodeSeq, c.DecodeContext}
}

func fitted(t *testing.T, samples []fit.Sample) *fit.Result {
	t.Helper()
	r, err := fit.Fit(samples, options())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// recovered fails for costs that are further from the true ones than the given shares, in the order of fit.Params.
func recovered(t *testing.T, r *fit.Result, truth sim.StepCost, within ...float64) {
	t.Helper()
	for i, want := range values(truth) {
		e := r.Estimates[i]
		if i >= len(within) {
			continue
		}
		if !e.Identified || math.Abs(e.Value/want-1) > within[i] {
			t.Errorf("%s: %+v, want %v within %.0f %%", e.Name, e, want, 100*within[i])
		}
		if e.Low > e.Value || e.High < e.Value || e.High-e.Low > 6*within[i]*want {
			t.Errorf("%s: %v is no interval around %v", e.Name, []float64{e.Low, e.High}, e.Value)
		}
	}
}

// The costs of engines come back from 300 requests whose times have noise of 5 %: within 5, 3, 12, 20 and 12 %.
func TestCostsAreRecovered(t *testing.T) {
	for name, cost := range map[string]sim.StepCost{"default": sim.DefaultParams().Cost, "quick": quick} {
		t.Run(name, func(t *testing.T) {
			cost.LoadToken = sim.DefaultParams().Cost.LoadToken
			r := fitted(t, measured(t, cost, 300, 0.05, true))
			recovered(t, r, cost, 0.05, 0.03, 0.12, 0.20, 0.12)
			if r.R2 < 0.97 || r.MAPE > 0.08 || r.TTFTs != 300 || r.TPOTs != 300 || r.Outliers > 40 {
				t.Errorf("R² %.3f, MAPE %.3f, %d and %d times, %d outliers", r.R2, r.MAPE, r.TTFTs, r.TPOTs, r.Outliers)
			}
			if want := fit.Peak(cost, budget); math.Abs(r.Peak/want-1) > 0.03 {
				t.Errorf("peak %.0f tokens a second, want %.0f", r.Peak, want)
			}
		})
	}
}

// Without noise nothing is left to chance but where in a step a request comes, which matters little where nobody decodes.
func TestWithoutNoiseItIsExact(t *testing.T) {
	r := fitted(t, measured(t, quick, 100, 0, false))
	recovered(t, r, quick, 1e-3, 1e-3, 1e-3)
	if r.MAPE > 1e-3 || r.R2 < 0.99999 {
		t.Errorf("MAPE %v, R² %v", r.MAPE, r.R2)
	}
}

// A third of the requests waited for others, up to ten times as long as they took: they have no say.
func TestRequestsThatWaitedHaveNoSay(t *testing.T) {
	samples := measured(t, quick, 400, 0.03, false)
	random := rand.New(rand.NewPCG(5, 5))
	waited := 0
	for i := range samples {
		if samples[i].TPOT = 0; random.IntN(3) == 0 {
			samples[i].TTFT *= 1.5 + 9*random.Float64()
			waited++
		}
	}
	r := fitted(t, samples)
	recovered(t, r, quick, 0.05, 0.03, 0.12)
	if r.Outliers < waited*9/10 || r.Outliers > waited+20 {
		t.Errorf("%d outliers, %d requests waited", r.Outliers, waited)
	}
}

// What the samples cannot tell keeps its default, and the reason is said; the rest is found all the same.
func TestWhatCannotBeTold(t *testing.T) {
	all := measured(t, quick, 300, 0.03, false)
	for name, tc := range map[string]struct {
		change func(*fit.Sample) bool // whether to keep it
		lost   map[string]string      // cost: reason
	}{
		"no TPOT": {func(s *fit.Sample) bool { s.TPOT = 0; return true }, map[string]string{
			"decodeSeq": "no sample has any", "decodeContext": "no sample has any",
		}},
		"one at a time": {func(s *fit.Sample) bool { return true }, map[string]string{"decodeSeq": ""}},
		"short prompts": {func(s *fit.Sample) bool { s.TPOT = 0; return s.PromptTokens < 600 }, map[string]string{
			"attention": "", "decodeSeq": "no sample has any", "decodeContext": "no sample has any",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var kept []fit.Sample
			for _, s := range all {
				if tc.change(&s) {
					kept = append(kept, s)
				}
			}
			r := fitted(t, kept)
			for _, e := range r.Estimates {
				why, lost := tc.lost[e.Name]
				if e.Identified == lost || !strings.Contains(e.Why, why) || lost && e.Why == "" {
					t.Errorf("%+v; want it lost: %v, %q", e, lost, why)
				}
			}
			if d := sim.DefaultParams().Cost; r.Cost.DecodeSeq != d.DecodeSeq || r.Cost.LoadToken != d.LoadToken {
				t.Errorf("%+v does not keep the defaults", r.Cost)
			}
			if e := r.Estimates[1]; math.Abs(e.Value/quick.PrefillToken-1) > 0.15 {
				t.Errorf("%+v, want %v", e, quick.PrefillToken)
			}
		})
	}
}

func TestPromptsOfOneLengthTellOneCost(t *testing.T) {
	var same []fit.Sample
	for i := range 50 {
		same = append(same, fit.Sample{PromptTokens: 1000, TTFT: 0.1 + 0.001*float64(i%3)})
	}
	r := fitted(t, same)
	identified := 0
	for _, e := range r.Estimates {
		if e.Identified {
			identified++
		}
	}
	if identified != 1 || r.MAPE > 0.02 {
		t.Errorf("%d costs out of one: %+v", identified, r.Estimates)
	}
}

func TestSameSamplesSameFit(t *testing.T) {
	samples := measured(t, quick, 60, 0.05, true)
	if diff := cmp.Diff(fitted(t, samples), fitted(t, samples)); diff != "" {
		t.Error(diff)
	}
}

func TestFaultsOfSamples(t *testing.T) {
	if _, err := fit.Fit(make([]fit.Sample, 3), options()); err == nil || !strings.Contains(err.Error(), "too few") {
		t.Error(err)
	}
	o := options()
	o.Budget = 0
	if _, err := fit.Fit(nil, o); err == nil || !strings.Contains(err.Error(), "budget") {
		t.Error(err)
	}
	good := fit.Sample{PromptTokens: 10, TTFT: 1}
	for want, change := range map[string]func(*fit.Sample){
		"prompt_tokens": func(s *fit.Sample) { s.PromptTokens = 0 }, "cached_tokens": func(s *fit.Sample) { s.CachedTokens = 10 },
		"output_tokens": func(s *fit.Sample) { s.OutputTokens = -1 }, "decoding": func(s *fit.Sample) { s.Decoding = -1 },
		"context_tokens": func(s *fit.Sample) { s.ContextTokens = -1 }, "ttft_ms": func(s *fit.Sample) { s.TTFT = math.NaN() },
		"times above 0": func(s *fit.Sample) { s.TTFT = 0 },
	} {
		s := good
		if change(&s); s.Validate() == nil || !strings.Contains(s.Validate().Error(), want) {
			t.Errorf("%v, want %q", s.Validate(), want)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
