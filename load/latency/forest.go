package latency

import (
	"math"
	"math/rand/v2"
	"slices"
)

// The size of a forest. A tree is complete: depth questions lead to one of its leaves.
const (
	trees  = 32
	depth  = 3
	asks   = 1<<depth - 1
	leaves = 1 << depth
	// bins is how many parts a feature's values are cut into, of about as many samples each.
	bins = 32
	// learnRate is what part of what a tree finds is believed.
	learnRate = 0.15
	// leafRidge is how many samples that say 0 each leaf has.
	leafRidge = 8
	// leastLeaf is how many samples a leaf has at least.
	leastLeaf = 12
	// sampled is the share of the samples that a tree sees.
	sampled = 0.5
)

// tree is a complete binary tree: question i is followed by 2i+1 (no) and 2i+2 (yes).
type tree struct {
	feature [asks]uint8
	above   [asks]float32
	leaf    [leaves]float32
}

// forest is a sum of trees, made by gradient boosting of squared errors. It is not changed once grown.
type forest [trees]tree

// at is the forest's value.
func (f *forest) at(z *sight) float64 {
	sum := float32(0)
	for i := range f {
		sum += f[i].at(z)
	}
	return float64(sum)
}

func (t *tree) at(z *sight) float32 {
	n := 0
	for range depth {
		next := 2*n + 1
		if z[t.feature[n]] > t.above[n] {
			next++
		}
		n = next
	}
	return t.leaf[n-asks]
}

// grower grows a forest over samples.
type grower struct {
	cuts   [sights][]float32 // ascending; a value's bin is how many of them it exceeds
	binned [sights][]uint8
	left   []float32 // what is still to explain
	node   []uint8
	taken  []int32 // the samples that a tree sees
	random *rand.Rand
}

// grow makes a forest that explains values from sights. It is the same for the same arguments.
func grow(z []sight, y []float32, seed uint64) *forest {
	g := &grower{
		left: slices.Clone(y), node: make([]uint8, len(y)), random: rand.New(rand.NewPCG(seed, 0x0f0e)),
	}
	for f := range g.cuts {
		g.cut(f, z)
	}
	grown := &forest{}
	for i := range grown {
		g.tree(&grown[i])
		for s := range g.left {
			g.left[s] -= grown[i].at(&z[s])
		}
	}
	return grown
}

// cut finds the bins of a feature.
func (g *grower) cut(f int, z []sight) {
	values := make([]float32, len(z))
	for s := range z {
		values[s] = z[s][f]
	}
	slices.Sort(values)
	for b := 1; b < bins; b++ {
		v := values[b*(len(values)-1)/bins]
		if n := len(g.cuts[f]); v < values[len(values)-1] && (n == 0 || v > g.cuts[f][n-1]) {
			g.cuts[f] = append(g.cuts[f], v)
		}
	}
	g.binned[f] = make([]uint8, len(z))
	for s := range z {
		b, _ := slices.BinarySearch(g.cuts[f], z[s][f])
		g.binned[f][s] = uint8(b)
	}
}

// tree grows one tree, a level at a time.
func (g *grower) tree(t *tree) {
	g.taken = g.taken[:0]
	for s := range g.left {
		if g.random.Float32() < sampled {
			g.taken = append(g.taken, int32(s))
			g.node[s] = 0
		}
	}
	for i := range t.above {
		t.above[i] = float32(math.Inf(1)) // asks nothing: all go left
	}
	for level := range depth {
		g.split(t, level)
	}
	var sum, n [leaves]float64
	for _, s := range g.taken {
		sum[g.node[s]-asks] += float64(g.left[s])
		n[g.node[s]-asks]++
	}
	for l := range t.leaf {
		t.leaf[l] = float32(learnRate * sum[l] / (n[l] + leafRidge))
	}
}

// cell is what the samples of one bin come to.
type cell struct{ sum, n float32 }

// split asks the best question at each node of a level, and moves the samples on.
func (g *grower) split(t *tree, level int) {
	first := 1<<level - 1
	width := 1 << level
	var best [1 << (depth - 1)]float32
	var cells [1 << (depth - 1)][bins]cell
	for f := range g.cuts {
		if len(g.cuts[f]) == 0 {
			continue
		}
		clear(cells[:width])
		binned := g.binned[f]
		for _, s := range g.taken {
			c := &cells[int(g.node[s])-first][binned[s]]
			c.sum += g.left[s]
			c.n++
		}
		for n := range width {
			if gain, cut, ok := bestCut(&cells[n], len(g.cuts[f])); ok && gain > best[n] {
				best[n], t.feature[first+n], t.above[first+n] = gain, uint8(f), g.cuts[f][cut]
			}
		}
	}
	var cut [1 << (depth - 1)]uint8
	for n := range width {
		at, _ := slices.BinarySearch(g.cuts[t.feature[first+n]], t.above[first+n])
		cut[n] = uint8(at)
	}
	for _, s := range g.taken {
		n := g.node[s]
		next := 2*n + 1
		if g.binned[t.feature[n]][s] > cut[int(n)-first] {
			next++
		}
		g.node[s] = next
	}
}

// bestCut finds the cut that leaves the least squared error.
func bestCut(cells *[bins]cell, cuts int) (gain float32, cut int, ok bool) {
	var all, low cell
	for b := range cuts + 1 {
		all.sum += cells[b].sum
		all.n += cells[b].n
	}
	whole := all.sum * all.sum / (all.n + leafRidge)
	for b := range cuts {
		low.sum += cells[b].sum
		low.n += cells[b].n
		high := cell{all.sum - low.sum, all.n - low.n}
		if low.n < leastLeaf || high.n < leastLeaf {
			continue
		}
		g := low.sum*low.sum/(low.n+leafRidge) + high.sum*high.sum/(high.n+leafRidge) - whole
		if g > gain {
			gain, cut, ok = g, b, true
		}
	}
	return gain, cut, ok
}
