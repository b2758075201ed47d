package latency

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestOldestSampleIsReplaced: forests are grown from the newest ones.
func TestOldestSampleIsReplaced(t *testing.T) {
	var r residual
	const all = 2*kept + 3
	theta := terms{ttftBase: 1}
	for i := range all {
		r.add(&sample{x: terms{ttftBase: 1}, slow: 1, ttftMs: float64(i)}, &theta, 1, atOnce)
		r.growing = nil
	}
	if len(r.ring) != kept {
		t.Fatalf("%d samples, want %d", len(r.ring), kept)
	}
	seen := map[float64]bool{}
	for i := range r.ring {
		if v := r.ring[i].ttftMs; v < all-kept || seen[v] {
			t.Fatalf("sample %v is kept, want each of the newest %d once", v, kept)
		}
		seen[r.ring[i].ttftMs] = true
	}
	if oldest := r.ring[r.next].ttftMs; oldest != all-kept {
		t.Errorf("the next one to be replaced is %v, want %d", oldest, all-kept)
	}
}

func TestWorth(t *testing.T) {
	for _, test := range []struct {
		name string
		r    residual
		want bool
	}{
		{"no forest", residual{judged: 1000, alone: 1, helped: 0.1}, false},
		{"helps", residual{grown: &forest{}, judged: triedOn, alone: 1, helped: 0.1}, true},
		{"hardly tried", residual{grown: &forest{}, judged: triedOn - 1, alone: 1, helped: 0.1}, false},
		{"helps just enough", residual{grown: &forest{}, judged: 1000, alone: 1, helped: 0.98}, true},
		{"hardly helps", residual{grown: &forest{}, judged: 1000, alone: 1, helped: 0.99}, false},
		{"harms", residual{grown: &forest{}, judged: 1000, alone: 1, helped: 1.5}, false},
	} {
		if got := test.r.worth(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestJudge: errors are counted by their size, the latest 256 most, and one that is far off as no more than what a forest may say.
func TestJudge(t *testing.T) {
	var r residual
	r.judge(-0.4, 0.2)
	r.judge(0.2, -0.4)
	near(t, "alone", r.alone, 0.3, 1e-12)
	near(t, "helped", r.helped, 0.3, 1e-12)
	for range 1000 {
		r.judge(1, 1)
	}
	r.judge(-100, 100)
	near(t, "alone", r.alone, 1+1./256, 0.001)
	near(t, "helped", r.helped, 1+1./256, 0.001)
	if r.alone < 1.002 || r.helped < 1.002 {
		t.Errorf("%v and %v: the latest one counts too little", r.alone, r.helped)
	}
}

// TestForestLearnsWhatTheModelLeaves: neither what the linear model says nor what is the endpoint's own.
func TestForestLearnsWhatTheModelLeaves(t *testing.T) {
	theta := terms{ttftBase: 10, ttftOwn: 2}
	for _, test := range []struct {
		name   string
		factor float64
		want   float64
	}{
		{"nothing", 1, 0}, {"as much again", 2, math.Log(2)}, {"beyond the bound", math.Exp(5), mostResidual}, {"below it", math.Exp(-5), -mostResidual},
	} {
		var r residual
		for i := range firstGrowth {
			slow := float64(1 + i%4)
			s := sample{x: terms{ttftBase: 1, ttftOwn: float64(i % 7)}, slow: slow}
			s.z[seesLinear], s.z[seesTokens] = float32(slow), float32(i%7)
			s.ttftMs = slow * (10 + 2*float64(i%7)) * test.factor
			r.add(&s, &theta, ttftTerms, atOnce)
		}
		near(t, test.name, (<-r.growing).at(&sight{seesLinear: 2, seesTokens: 3}), test.want, 0.05)
	}
}

// TestGrowthIsSeldom: a forest for a quarter of the samples that came before, but not for less than 1,024 nor for more than 8,192.
func TestGrowthIsSeldom(t *testing.T) {
	for _, test := range []struct{ seen, next uint64 }{
		{firstGrowth - 1, firstGrowth + growEvery}, {3999, 4000 + growEvery}, {7999, 10_000}, {99_999, 100_000 + growSeldom},
	} {
		r := residual{seen: test.seen}
		begun := 0
		r.add(&sample{ttftMs: 1, slow: 1, x: terms{1}}, &terms{1}, 1, func(func()) { begun++ })
		if begun != 1 || r.growAt != test.next || r.ripeAt != test.seen+1+ripeAfter {
			t.Errorf("at sample %d: %d forests begun, ripe at %d, the next at %d; want 1, %d and %d", test.seen+1, begun, r.ripeAt, r.growAt,
				test.seen+1+ripeAfter, test.next)
		}
	}
	r := residual{seen: firstGrowth - 2}
	r.add(&sample{ttftMs: 1, slow: 1, x: terms{1}}, &terms{1}, 1, func(func()) { t.Error("a forest is begun early") })
}

// TestForestIsTakenInOnce it is ripe, and no other is begun until it has been.
func TestForestIsTakenInOnce(t *testing.T) {
	r := residual{seen: firstGrowth - 1}
	begun := 0
	add := func() bool {
		return r.add(&sample{ttftMs: 1, slow: 1, x: terms{1}}, &terms{1}, 1, func(grow func()) { begun++; grow() }) != nil
	}
	add()
	for i := 1; i < ripeAfter; i++ {
		if add() {
			t.Fatalf("ripe after %d samples", i)
		}
	}
	if !add() {
		t.Errorf("not ripe after %d samples", ripeAfter)
	}
	for range 2 * growEvery {
		if add() {
			t.Fatal("ripe twice")
		}
	}
	if begun != 1 {
		t.Errorf("%d forests are begun while one is waited for", begun-1)
	}
	if r.take(&forest{}); r.grown == nil {
		t.Error("not taken in")
	}
	if add(); begun != 2 {
		t.Errorf("%d forests are begun after one was taken in, want 1", begun-1)
	}
}

// TestForestIsTheSameFromTheSameSamples, and another from others: what chance a tree has comes from how many there were.
func TestForestIsTheSameFromTheSameSamples(t *testing.T) {
	grown := func(seen uint64) float64 {
		random := rand.New(rand.NewPCG(1, 1))
		r := residual{seen: seen - firstGrowth}
		for range firstGrowth {
			s := sample{x: terms{1}, slow: 1, ttftMs: math.Exp(random.NormFloat64())}
			s.z[seesTokens] = random.Float32()
			r.growing = nil
			r.growAt = seen
			r.add(&s, &terms{1}, 1, atOnce)
		}
		return (<-r.growing).at(&sight{seesTokens: 0.5})
	}
	if a, b := grown(5000), grown(5000); a != b {
		t.Errorf("%v and %v from the same samples", a, b)
	}
	if a, b := grown(5000), grown(6000); a == b {
		t.Errorf("%v twice, of the 5,000th and the 6,000th sample", a)
	}
}
