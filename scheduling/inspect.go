package scheduling

import "slices"

// ColumnInfo names a column, or a value of the whole request, that a plugin of a scheduler produces.
type ColumnInfo struct {
	// DataType is the name of the values' type (see DataTypeOf).
	DataType string
	// Producer is the name of the plugin that fills it.
	Producer string
	// Decisive says that a filter, scorer or picker reads it: without it the decision cannot be made again.
	Decisive bool

	index int
}

// Columns lists what the scheduler's plugins produce, in an order that depends on the configuration alone.
func (s *Scheduler) Columns() []ColumnInfo {
	columns := make([]ColumnInfo, len(s.slots))
	for i, sl := range s.slots {
		columns[i] = ColumnInfo{DataType: sl.data, Producer: sl.producer, index: i}
	}
	for _, in := range s.plugins {
		switch in.plugin.(type) {
		case Filter, Scorer, Picker:
			for _, c := range in.builder.consumes {
				if c.slot.index >= 0 {
					columns[c.slot.index].Decisive = true
				}
			}
			for _, own := range in.builder.produces { // what it fills itself, it reads
				columns[own.index].Decisive = true
			}
		}
	}
	return columns
}

// ColumnAt returns a column of a cycle of the same scheduler; nil, on which Get says absent, where its values are not
// of type T.
func ColumnAt[T any](c *Cycle, info ColumnInfo) *Column[T] {
	column, _ := c.storage[info.index].(*Column[T])
	return column
}

// ValueAt is ColumnAt for a value of the whole request.
func ValueAt[T any](c *Cycle, info ColumnInfo) *Value[T] {
	value, _ := c.storage[info.index].(*Value[T])
	return value
}

// Answerers are the plugins that add a header to answers.
func (s *Scheduler) Answerers() []Answerer { return s.answerers }

// Drawer marks a Picker that draws: the highest total is not what it picks, as a rule.
type Drawer interface{ Draws() }

// Draws reports whether the scheduler's picker is a Drawer.
func (s *Scheduler) Draws() bool {
	_, ok := s.profile.picker.(Drawer)
	return ok
}

// LabelReader is a filter or scorer that looks at endpoints' labels. A decision record keeps the labels that it names.
type LabelReader interface {
	LabelKeys() []string
}

// LabelKeys are the labels that the scheduler's plugins look at, sorted.
func (s *Scheduler) LabelKeys() []string {
	var keys []string
	for _, in := range s.plugins {
		if r, ok := in.plugin.(LabelReader); ok {
			keys = append(keys, r.LabelKeys()...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ProfileName is the name of the scheduling profile.
func (s *Scheduler) ProfileName() string { return s.profile.name }

// SetConfigHash names the configuration that the scheduler was built from, before anybody uses the scheduler.
func (s *Scheduler) SetConfigHash(hash string) { s.hash = hash }

// ConfigHash names the configuration that the scheduler was built from; empty where nobody did.
func (s *Scheduler) ConfigHash() string { return s.hash }

// RestoreSnapshot makes a snapshot of endpoints that were recorded earlier; it belongs to no pool. Their ordinals must
// be distinct and not negative. The snapshot keeps the endpoints.
func RestoreSnapshot(version uint64, endpoints []*Endpoint) *Snapshot {
	n := 0
	for _, e := range endpoints {
		n = max(n, e.Ordinal+1)
	}
	s := &Snapshot{Version: version, Endpoints: make([]*Endpoint, n), byAddress: make(map[string]*Endpoint, len(endpoints))}
	for _, e := range endpoints {
		s.Endpoints[e.Ordinal] = e
		s.byAddress[e.Address] = e
	}
	s.finish()
	return s
}
