package scheduling

import (
	"errors"
	"fmt"
)

// Bridge has a scheduler decide again what another one has decided, on the columns that the other's producers filled. Neither
// scheduler's producers run, and nothing is charged or learnt.
type Bridge struct {
	from, to *Scheduler
	columns  []crossing
}

// crossing is a column of one scheduler that takes the values of one of another's; both are indices.
type crossing struct{ from, to int }

// NewBridge returns a bridge over which to decides from's decisions. A column that to's filters, scorers and picker read takes
// the values of from's producer of the same name, or of from's only producer of its data type. The error lists what from does
// not produce.
func NewBridge(from, to *Scheduler) (*Bridge, error) {
	b := &Bridge{from: from, to: to}
	var errs []error
	for _, info := range to.Columns() {
		if !info.Decisive {
			continue
		}
		i, err := from.standIn(info)
		switch {
		case err == nil:
			b.columns = append(b.columns, crossing{from: i, to: info.index})
		case !assumedAbsent[info.DataType]:
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return b, nil
}

// StandIn is a column whose values come from a producer of another name.
type StandIn struct {
	// DataType and Producer are the column's that is stood in for, By is the producer whose values are taken.
	DataType, Producer, By string
}

// StandIns are the columns that take the values of a producer of another name, as there is no producer of theirs.
func (b *Bridge) StandIns() (all []StandIn) {
	for _, c := range b.columns {
		from, to := b.from.slots[c.from], b.to.slots[c.to]
		if from.producer != to.producer {
			all = append(all, StandIn{DataType: to.data, Producer: to.producer, By: from.producer})
		}
	}
	return all
}

// standIn is the index of the column that takes the place of another scheduler's.
func (s *Scheduler) standIn(info ColumnInfo) (int, error) {
	found, same := -1, 0
	for i, sl := range s.slots {
		if sl.data != info.DataType {
			continue
		}
		if same++; sl.producer == info.Producer {
			found, same = i, 1
			break
		}
		found = i
	}
	switch {
	case same == 0:
		return 0, fmt.Errorf("%s of %q: nothing produces it here; declare %s among the plugins", info.DataType, info.Producer, info.Producer)
	case same > 1:
		return 0, fmt.Errorf("%s of %q: several plugins produce it here, and none has that name", info.DataType, info.Producer)
	case !s.slots[found].plain:
		return 0, fmt.Errorf("%s of %q: its values cannot be kept", info.DataType, info.Producer)
	}
	return found, nil
}

// From is the scheduler whose decisions are decided again.
func (b *Bridge) From() *Scheduler { return b.from }

// Decide decides again what from has decided in c, which may be a copy (see Keep), with the same seed and the same endpoints. The
// cycle that it returns is the other scheduler's to End, before c ends.
func (b *Bridge) Decide(c *Cycle) *Cycle {
	again := b.to.Begin(c.Snapshot, c.Request, c.Now)
	again.Seed, again.MaxPicks = c.Seed, c.MaxPicks
	again.Candidates.CopyFrom(c.Considered)
	again.Faults = append(again.Faults, c.Faults...)
	for _, column := range b.columns {
		if to, ok := again.storage[column.to].(keepable); ok {
			to.copyFrom(c.storage[column.from])
		}
	}
	b.to.Decide(again)
	return again
}
