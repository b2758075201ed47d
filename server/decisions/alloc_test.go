//go:build !race

package decisions

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

// A decision that gives way leaves its memory to the one that comes: the ring makes no garbage.
func TestKeepingAllocatesNothing(t *testing.T) {
	b := newBench(t, 64, 1)
	r := &scheduling.Request{Model: "m", Choices: 1}
	c := b.scheduler.Begin(b.pool.Snapshot(), r, 0)
	b.scheduler.Produce(t.Context(), c)
	b.scheduler.Preview(c)
	keep := func() { r.ID++; b.ring.Picked(c, nil, 0) }
	for range 2 * minDecisions {
		keep()
	}
	if n := testing.AllocsPerRun(1000, keep); n > 0 {
		t.Errorf("%v allocations a decision", n)
	}
}
