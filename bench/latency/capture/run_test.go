package capture

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/sim/trace"
)

// plan is a small run.
func plan(t *testing.T) Plan {
	t.Helper()
	b := trace.DefaultB2B()
	b.Requests, b.Customers, b.SystemTokens, b.QuestionTokens, b.AnswerTokens, b.PerSecond = 200, 6, 1600, 400, 20, 30
	tr, err := b.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	return Plan{Trace: tr, Speed: 1, Engines: 3, KVTokens: 40_000, Noise: 0.05, Seed: 1}
}

func run(t *testing.T, p Plan) ([]sample.Row, float64) {
	t.Helper()
	rows, shift, err := Run(p)
	if err != nil {
		t.Fatal(err)
	}
	return rows, shift
}

// TestRows holds rows against what a trace says, and against each other: what was in flight at a pick follows from when the others
// began and ended.
func TestRows(t *testing.T) {
	p := plan(t)
	rows, shift := run(t, p)
	if len(rows) != len(p.Trace.Requests) || shift != -1 {
		t.Fatalf("%d rows of %d requests, shift %v", len(rows), len(p.Trace.Requests), shift)
	}
	waited, hit, phase := 0, 0, 0
	for i, r := range rows {
		if want := ms(p.Trace.Requests[i].At); r.PickMs != want || r.InputTokenLength != 2000 {
			t.Fatalf("row %d: picked at %v with %v tokens, want %v and 2000", i, r.PickMs, r.InputTokenLength, want)
		}
		if d := r.FirstMs - r.PickMs - r.ActualTTFTMs; math.Abs(d) > 1e-6 || math.Abs((r.EndMs-r.FirstMs)/19-r.ActualTPOTMs) > 1e-6 {
			t.Fatalf("row %d: the times do not belong together: %+v", i, r)
		}
		var inFlight, decoding, tokens float64
		for _, o := range rows[:i] {
			if o.Endpoint != r.Endpoint || o.EndMs <= r.PickMs {
				continue
			}
			inFlight++
			if o.FirstMs <= r.PickMs {
				decoding++
			} else {
				tokens += o.UncachedTokens
			}
		}
		if r.NumRequestRunning != inFlight || r.Decoding != decoding || r.PrefillTokensInFlight != tokens {
			t.Errorf("row %d: %v requests, %v decoding, %v tokens in flight; want %v, %v, %v",
				i, r.NumRequestRunning, r.Decoding, r.PrefillTokensInFlight, inFlight, decoding, tokens)
		}
		if !(r.PredictedTTFTMs > 0 && r.PredictedTTFTP90Ms > r.PredictedTTFTMs && r.PredictedTPOTMs > 0) {
			t.Fatalf("row %d: predicted %+v", i, r)
		}
		if tokens > 0 {
			waited++
		}
		if r.PrefixCacheScore > 0.5 && r.UncachedTokens < 1000 {
			hit++
		}
		if r.SinceChunkMs >= 0 && r.SinceChunkMs < 100 {
			phase++
		}
	}
	if waited == 0 || hit == 0 || phase == 0 {
		t.Errorf("%d requests waited, %d hit, of %d the step's phase is known", waited, hit, phase)
	}
}

func TestSameSeedSameRows(t *testing.T) {
	p := plan(t)
	once, _ := run(t, p)
	again, _ := run(t, p)
	if diff := cmp.Diff(once, again); diff != "" {
		t.Error(diff)
	}
	p.Seed = 2
	if other, _ := run(t, p); cmp.Equal(once, other) {
		t.Error("another seed makes the same rows")
	}
}

// TestOneBecomesSlow: after the shift, and not before, tokens of the slow endpoint take three times as long.
func TestOneBecomesSlow(t *testing.T) {
	p := plan(t)
	p.Slower, p.SlowEngine, p.SlowAt = 3, 1, 0.5
	rows, shift := run(t, p)
	if want := ms(p.Trace.Span()) / 2; math.Abs(shift-want) > 1 {
		t.Errorf("the shift is at %v ms, want %v", shift, want)
	}
	mean := func(slow, after bool) float64 {
		sum, n := 0.0, 0.0
		for _, r := range rows {
			if (r.Endpoint == 1) == slow && (r.PickMs > shift) == after && (after || r.EndMs < shift) {
				sum, n = sum+r.ActualTPOTMs, n+1
			}
		}
		return sum / n
	}
	if before, after := mean(true, false), mean(true, true); !(after > 2*before) {
		t.Errorf("the slow one: %v ms a token before, %v after", before, after)
	}
	if before, after := mean(false, false), mean(false, true); !(after < 2*before) {
		t.Errorf("the others: %v ms a token before, %v after", before, after)
	}
}

func TestRefused(t *testing.T) {
	for name, change := range map[string]func(*Plan){
		"no trace":  func(p *Plan) { p.Trace = nil },
		"no engine": func(p *Plan) { p.Engines = 0 },
		"no cache":  func(p *Plan) { p.KVTokens = 0 },
		"speed":     func(p *Plan) { p.Speed = 0 },
		"noise":     func(p *Plan) { p.Noise = -1 },
		"engine":    func(p *Plan) { p.Slower, p.SlowEngine = 3, 3 },
	} {
		p := plan(t)
		change(&p)
		if _, _, err := Run(p); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

func TestObserved(t *testing.T) {
	text, err := Observed("kind: x\nplugins:\n  - type: a\n", "b")
	if err != nil || !strings.HasSuffix(text, "  - type: b\n  - type: a\n") || !strings.Contains(text, "  - type: predicted-latency-producer\n") {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Observed("plugins: []\n"); err == nil {
		t.Error("something was added to a configuration without a list")
	}
}
