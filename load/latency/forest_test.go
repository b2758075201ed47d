package latency

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTreeAsks: what exceeds goes right; what equals goes left, as do all at a node that asks nothing.
func TestTreeAsks(t *testing.T) {
	var tr tree
	for i := range tr.leaf {
		tr.leaf[i] = float32(i)
	}
	for i := range tr.above {
		tr.feature[i], tr.above[i] = uint8(levelOf(i)), 10
	}
	for want := range leaves {
		z := sight{}
		for level := range depth {
			if want>>(depth-1-level)&1 == 1 {
				z[level] = 11
			} else {
				z[level] = 10
			}
		}
		if got := tr.at(&z); got != float32(want) {
			t.Errorf("%v leads to leaf %v, want %d", z[:depth], got, want)
		}
	}
	for i := range tr.above {
		tr.above[i] = float32(math.Inf(1))
	}
	if got := tr.at(&sight{1e30, 1e30, 1e30}); got != 0 {
		t.Errorf("a tree that asks nothing leads to leaf %v, want 0", got)
	}
}

// levelOf is on which level of a tree a question is.
func levelOf(question int) (level int) {
	for ; question > 0; question = (question - 1) / 2 {
		level++
	}
	return level
}

func TestForestIsTheSumOfItsTrees(t *testing.T) {
	var f forest
	for i := range f {
		f[i].leaf[0] = float32(i)
	}
	if got := f.at(&sight{}); got != trees*(trees-1)/2 {
		t.Errorf("%v, want %d", got, trees*(trees-1)/2)
	}
}

// TestCuts: between values that are told apart, and none beyond the greatest.
func TestCuts(t *testing.T) {
	z := make([]sight, 64)
	for i := range z {
		z[i][0], z[i][1], z[i][2] = 5, float32(i%4), float32(63-i)
	}
	var g grower
	for f := range 3 {
		g.cut(f, z)
	}
	if len(g.cuts[0]) != 0 {
		t.Errorf("%v cut values that are all alike", g.cuts[0])
	}
	if !slices.Equal(g.cuts[1], []float32{0, 1, 2}) {
		t.Errorf("%v cut 0, 1, 2 and 3", g.cuts[1])
	}
	if n := len(g.cuts[2]); n != bins-1 || !slices.IsSorted(g.cuts[2]) {
		t.Errorf("%d cuts of many values: %v, want %d", n, g.cuts[2], bins-1)
	}
	in := map[uint8]int{}
	for s := range z {
		for f := range 3 {
			exceeds := 0
			for _, cut := range g.cuts[f] {
				if z[s][f] > cut {
					exceeds++
				}
			}
			if got := g.binned[f][s]; int(got) != exceeds {
				t.Errorf("%v is in bin %d of feature %d, want %d", z[s][f], got, f, exceeds)
			}
		}
		in[g.binned[2][s]]++
	}
	for b, n := range in {
		if n < 1 || n > 4 {
			t.Errorf("bin %d has %d of 64 values, want about as many as others", b, n)
		}
	}
}

func TestBestCut(t *testing.T) {
	const enough = leastLeaf
	for _, test := range []struct {
		name  string
		cells []cell
		cut   int
		ok    bool
	}{
		{"one above", []cell{{0, enough}, {0, enough}, {90, enough}}, 1, true},
		{"one below", []cell{{90, enough}, {0, enough}, {0, enough}}, 0, true},
		{"the last has too few", []cell{{0, enough}, {50, enough}, {90, enough - 1}}, 0, true},
		{"the first has too few", []cell{{90, enough - 1}, {50, enough}, {0, enough}}, 1, true},
		{"both have too few", []cell{{0, enough - 1}, {90, enough - 1}}, 0, false},
		{"enough between them", []cell{{-90, enough - 1}, {-90, 1}, {90, enough}}, 1, true},
		{"nothing to tell apart", []cell{{0, 100}, {0, 100}}, 0, false},
		{"the mean of both, which a cut makes no better", []cell{{0, enough}, {0, enough}, {0, 0}}, 0, false},
		{"a large sum of many is less than that of few", []cell{{60, 200}, {0, 20}, {60, 20}}, 1, true},
	} {
		var cells [bins]cell
		copy(cells[:], test.cells)
		gain, cut, ok := bestCut(&cells, len(test.cells)-1)
		if ok != test.ok || cut != test.cut || (gain > 0) != test.ok {
			t.Errorf("%s: cut %d, %v, gain %v; want %d, %v", test.name, cut, ok, gain, test.cut, test.ok)
		}
	}
	cells := [bins]cell{{-30, 12}, {60, 22}}
	gain, _, _ := bestCut(&cells, 1)
	near(t, "gain", float64(gain), 30*30/20.+60*60/30.-30*30/42., 1e-5)
}

// TestForestSaysTheMean of samples that no question tells apart nor any sample says otherwise, but for what its ridge and its rate hold
// back.
func TestForestSaysTheMean(t *testing.T) {
	for n, want := range map[int][2]float64{4000: {0.993, 0.996}, 16: {0.85, 0.96}} {
		z, y := make([]sight, n), make([]float32, n)
		for i := range y {
			y[i] = 1
		}
		if got := grow(z, y, 1).at(&z[0]); got < want[0] || got > want[1] {
			t.Errorf("%d samples of 1 say %v, want %v", n, got, want)
		}
	}
}

// TestForestFindsAStep where it is, and leaves what is not told apart by it alone.
func TestForestFindsAStep(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	z, y := make([]sight, 2000), make([]float32, 2000)
	for i := range z {
		z[i][seesAhead], z[i][seesTokens] = float32(random.IntN(20)), random.Float32()
		y[i] = -1
		if z[i][seesAhead] > 13 {
			y[i] = 1
		}
	}
	f := grow(z, y, 1)
	for ahead := range 20 {
		want := -1.0
		if ahead > 13 {
			want = 1
		}
		for _, tokens := range []float32{0, 0.3, 0.9} {
			near(t, "forest", f.at(&sight{seesAhead: float32(ahead), seesTokens: tokens}), want, 0.03)
		}
	}
}

// TestForestFindsThreeThingsAtOnce: a tree asks as many questions, each of its nodes another.
func TestForestFindsThreeThingsAtOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	z, y := make([]sight, 4000), make([]float32, 4000)
	of := func(z *sight) float32 {
		switch a, b, c := z[0] > 4, z[1] > 4, z[2] > 4; {
		case a && b && c:
			return 2
		case a && !b && !c:
			return -1
		}
		return 0
	}
	for i := range z {
		z[i][0], z[i][1], z[i][2] = float32(random.IntN(10)), float32(random.IntN(10)), float32(random.IntN(10))
		y[i] = of(&z[i])
	}
	f, off := grow(z, y, 1), 0.0
	for i := range z {
		off += math.Abs(f.at(&z[i]) - float64(of(&z[i])))
	}
	if off /= 4000; off > 0.04 {
		t.Errorf("off by %v on average, want at most 0.04", off)
	}
}

// TestTreeSeesHalfOfTheSamples, each another half.
func TestTreeSeesHalfOfTheSamples(t *testing.T) {
	g := &grower{left: make([]float32, 2000), node: make([]uint8, 2000), random: rand.New(rand.NewPCG(1, 2))}
	for f := range sights {
		g.cut(f, make([]sight, 2000))
	}
	var tr tree
	g.tree(&tr)
	first := slices.Clone(g.taken)
	g.tree(&tr)
	if n := len(first); n < 900 || n > 1100 || slices.Equal(first, g.taken) {
		t.Errorf("%d of 2,000 samples, want about half, and others each time", n)
	}
}

// TestLeafIsTheMeanOfItsSamples: those that its tree's questions lead there, with so many that say 0.
func TestLeafIsTheMeanOfItsSamples(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	z := make([]sight, 1000)
	g := &grower{node: make([]uint8, len(z)), random: random}
	for i := range z {
		z[i][0], z[i][1], z[i][2] = random.Float32(), random.Float32(), float32(random.IntN(5))
		g.left = append(g.left, z[i][0]*z[i][1]+z[i][2]*z[i][0])
	}
	for f := range sights {
		g.cut(f, z)
	}
	for range 20 {
		var tr tree
		g.tree(&tr)
		var sum, n [leaves]float64
		leaf := tr
		for l := range leaf.leaf {
			leaf.leaf[l] = float32(l)
		}
		for _, s := range g.taken {
			l := int(leaf.at(&z[s]))
			sum[l] += float64(g.left[s])
			n[l]++
		}
		for l, got := range tr.leaf {
			near(t, "leaf", float64(got), learnRate*sum[l]/(n[l]+leafRidge), 1e-5)
			if n[l] > 0 && n[l] < leastLeaf {
				t.Errorf("leaf %d has %v samples, want at least %d or, where a node asks nothing, none", l, n[l], leastLeaf)
			}
		}
	}
}
