package record

import (
	"fmt"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// Trial decides a recorded decision again and again, each time with something else changed.
type Trial struct {
	scheduler *scheduling.Scheduler
	decision  *decisionv1.Decision
	snapshot  *scheduling.Snapshot
	request   scheduling.Request
}

// NewTrial prepares trials of a decision with a scheduler, as Replay does. The record must not be changed meanwhile.
func NewTrial(s *scheduling.Scheduler, d *decisionv1.Decision) (*Trial, error) {
	snapshot, err := snapshotOf(d)
	if err != nil {
		return nil, fmt.Errorf("decision %d: %w", d.GetId(), err)
	}
	t := &Trial{scheduler: s, decision: d, snapshot: snapshot, request: requestFrom(d)}
	if _, err := t.Pick(func(*scheduling.Cycle) {}); err != nil {
		return nil, err
	}
	return t, nil
}

// Pick is the ordinal that is picked once change has changed the restored inputs; -1 for none.
func (t *Trial) Pick(change func(c *scheduling.Cycle)) (int, error) {
	c := t.scheduler.Begin(t.snapshot, &t.request, 0)
	defer t.scheduler.End(c)
	if err := restoreAll(t.scheduler, c, t.decision); err != nil {
		return -1, err
	}
	change(c)
	t.scheduler.Decide(c)
	if len(c.Picks) == 0 {
		return -1, nil
	}
	return c.Picks[0], nil
}

// Columns are the scheduler's columns of a data type that its decisions rest on.
func (t *Trial) Columns(dataType string) []scheduling.ColumnInfo {
	var all []scheduling.ColumnInfo
	for _, info := range t.scheduler.Columns() {
		if info.DataType == dataType && info.Decisive {
			all = append(all, info)
		}
	}
	return all
}
