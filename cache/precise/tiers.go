package precise

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// tierWeights say what a block is worth in each kind of memory, in thousandths of one on the GPU. Media that are not
// named share one tier, the last.
type tierWeights struct {
	names   []string // lower case; all but the last
	weights []int
}

const gpuTier = "gpu"

// defaultTiers are the weights of the tiers that engines name; any other has defaultOtherTier.
var defaultTiers = map[string]float64{gpuTier: 1, "cpu": 0.8, "cpu_pinned": 0.8}

const (
	defaultOtherTier = 0.3
	maxTiers         = 16
)

// newTierWeights checks weights in blocks.
func newTierWeights(named map[string]float64, other float64) (*tierWeights, error) {
	t := &tierWeights{}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		w, err := thousandths(named[name])
		if err != nil {
			return nil, fmt.Errorf("parameters.tiers.%s: %w", name, err)
		}
		t.names, t.weights = append(t.names, name), append(t.weights, w)
	}
	if len(t.names) > maxTiers {
		return nil, fmt.Errorf("parameters.tiers: at most %d tiers, got %d", maxTiers, len(t.names))
	}
	w, err := thousandths(other)
	if err != nil {
		return nil, fmt.Errorf("parameters.otherTier: %w", err)
	}
	t.weights = append(t.weights, w)
	return t, nil
}

func thousandths(weight float64) (int, error) {
	if !(weight >= 0 && weight <= 1) { // false for NaN too
		return 0, fmt.Errorf("must be a weight from 0 to 1, got %v", weight)
	}
	return int(math.Round(weight * 1000)), nil
}

// indexOf is the tier of a medium in lower case; an event that names none is about the GPU.
func (t *tierWeights) indexOf(medium string) int {
	if medium == "" {
		medium = gpuTier
	}
	if i := slices.Index(t.names, medium); i >= 0 {
		return i
	}
	return len(t.names)
}

func (t *tierWeights) isGPU(index int) bool { return index < len(t.names) && t.names[index] == gpuTier }

func (t *tierWeights) equal(o *tierWeights) bool {
	return slices.Equal(t.names, o.names) && slices.Equal(t.weights, o.weights)
}
