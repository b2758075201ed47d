package simulate

import (
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// stopwatch measures decisions, in real time.
type stopwatch struct {
	total time.Duration
	n     int
}

func (w *stopwatch) mean() time.Duration { return w.total / time.Duration(max(1, w.n)) }

// timed is a picker whose decisions are measured.
type timed struct {
	fleet.Picker
	watch *stopwatch
}

// Pick implements fleet.Picker.
func (t timed) Pick(now time.Duration, r *fleet.Request) int {
	began := time.Now()
	picked := t.Picker.Pick(now, r)
	t.watch.total += time.Since(began)
	t.watch.n++
	return picked
}

// Verdicts are those of the picker, if it has a gate.
func (t timed) Verdicts() map[scheduling.GateVerdict]int {
	if p, ok := t.Picker.(interface {
		Verdicts() map[scheduling.GateVerdict]int
	}); ok {
		return p.Verdicts()
	}
	return nil
}

// Close closes the picker.
func (t timed) Close() error {
	if p, ok := t.Picker.(interface{ Close() error }); ok {
		return p.Close()
	}
	return nil
}
