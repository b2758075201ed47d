package picker_test

import (
	"fmt"
	"testing"
)

// The draws below use fixed seeds, so that a run is either always right or always wrong. The bounds are those of a
// chi-square test at 99.9 %, by degrees of freedom.
var chiSquare999 = map[int]float64{1: 10.83, 2: 13.82, 3: 16.27, 5: 20.52, 7: 24.32, 23: 49.73, 127: 181.99}

// checkShares draws and compares how often each outcome came with its expected share.
func checkShares[K comparable](t *testing.T, draws int, want map[K]float64, draw func(seed uint64) K) {
	t.Helper()
	got := map[K]int{}
	for seed := range uint64(draws) {
		got[draw(seed)]++
	}
	sum, impossible := 0.0, 0
	for outcome, n := range got {
		if want[outcome] == 0 {
			t.Errorf("%v came %d times and cannot", outcome, n)
		}
	}
	for outcome, share := range want {
		if share == 0 {
			impossible++
			continue
		}
		expected := share * float64(draws)
		d := float64(got[outcome]) - expected
		sum += d * d / expected
	}
	bound, ok := chiSquare999[len(want)-impossible-1]
	if !ok {
		t.Fatalf("no bound for %d outcomes", len(want)-impossible)
	}
	if sum > bound {
		t.Errorf("chi-square %.1f is above %.1f: %v of %d draws", sum, bound, got, draws)
	}
}

func uniform(n int) map[int]float64 {
	want := map[int]float64{}
	for i := range n {
		want[i] = 1 / float64(n)
	}
	return want
}

func head(b *bench) func(seed uint64) int {
	return func(seed uint64) int { return b.pick(seed, 1)[0] }
}

// TestTiesAreUniform: equal totals share the picks evenly, whatever their place in the list.
func TestTiesAreUniform(t *testing.T) {
	for _, typ := range allTypes {
		for _, n := range []int{2, 3, 8, 128} {
			t.Run(fmt.Sprintf("%s/%d", typ, n), func(t *testing.T) {
				totals := make([]float64, n)
				for i := range totals {
					totals[i] = 0.5
				}
				checkShares(t, 20_000, uniform(n), head(newBench(t, typ, "", totals...)))
			})
		}
	}
}

// TestTiesAmongTheBestOnly: a lower total never wins a tie.
func TestTiesAmongTheBestOnly(t *testing.T) {
	b := newBench(t, "max-score-picker", "", 0.5, 0.9, 0.9, 0.1, 0.9)
	checkShares(t, 20_000, map[int]float64{1: 1. / 3, 2: 1. / 3, 4: 1. / 3}, head(b))
}

// TestOrderOfTies: the whole list is a uniform permutation, not only its head.
func TestOrderOfTies(t *testing.T) {
	for _, typ := range []string{"max-score-picker", "random-picker"} {
		t.Run(typ, func(t *testing.T) {
			b := newBench(t, typ, "", 0.5, 0.5, 0.5, 0.5)
			want := map[[4]int]float64{}
			for _, p := range permutations4() {
				want[p] = 1. / 24
			}
			checkShares(t, 48_000, want, func(seed uint64) [4]int { return [4]int(b.pick(seed, 4)) })
		})
	}
}

func permutations4() [][4]int {
	var all [][4]int
	for i := range 256 {
		p := [4]int{i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6}
		seen := 0
		for _, v := range p {
			seen |= 1 << v
		}
		if seen == 15 {
			all = append(all, p)
		}
	}
	return all
}

func TestRandomPickerIgnoresScores(t *testing.T) {
	checkShares(t, 20_000, uniform(4), head(newBench(t, "random-picker", "", 1, 0, 0.001, 5)))
}

// TestWeightedRandomShares: the head comes in proportion to the totals, the second in proportion to those that remain.
func TestWeightedRandomShares(t *testing.T) {
	b := newBench(t, "weighted-random-picker", "", 1, 2, 5, 0)
	checkShares(t, 40_000, map[int]float64{0: 1. / 8, 1: 2. / 8, 2: 5. / 8, 3: 0}, head(b))

	pairs := map[[2]int]float64{}
	totals := []float64{1, 2, 5}
	for i, x := range totals {
		for j, y := range totals {
			if i != j {
				pairs[[2]int{i, j}] = x / 8 * y / (8 - x)
			}
		}
	}
	checkShares(t, 40_000, pairs, func(seed uint64) [2]int { return [2]int(b.pick(seed, 2)) })
}

// TestWeightedRandomScale: only proportions count, down to totals whose keys would underflow as powers.
func TestWeightedRandomScale(t *testing.T) {
	for _, scale := range []float64{1e-12, 1e-6, 1, 100} {
		t.Run(fmt.Sprint(scale), func(t *testing.T) {
			b := newBench(t, "weighted-random-picker", "", 1*scale, 3*scale)
			checkShares(t, 20_000, map[int]float64{0: 0.25, 1: 0.75}, head(b))
		})
	}
}

// TestWeightedRandomZerosComeLast: a total of 0 is picked only once nothing else is left, and then uniformly.
func TestWeightedRandomZerosComeLast(t *testing.T) {
	b := newBench(t, "weighted-random-picker", "", 0, 1e-9, 0)
	checkShares(t, 20_000, map[[3]int]float64{{1, 0, 2}: 0.5, {1, 2, 0}: 0.5}, func(seed uint64) [3]int {
		return [3]int(b.pick(seed, 3))
	})
	checkShares(t, 20_000, uniform(4), head(newBench(t, "weighted-random-picker", "", 0, 0, 0, 0)))
}
