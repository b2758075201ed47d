package scheduling

import "unsafe"

// Column holds one value of type T per endpoint, indexed by ordinal, each with a presence bit: absent is a state of its
// own, never a zero. A nil *Column is a column that nobody produces: every value is absent.
type Column[T any] struct {
	values  []T
	present Set
}

// Get returns the value of an endpoint; ok is false where it has none.
func (c *Column[T]) Get(ordinal int) (value T, ok bool) {
	if c == nil || !c.present.Has(ordinal) {
		return value, false
	}
	return c.values[ordinal], true
}

// At points at the value of an endpoint, or is nil where it has none: Get without the copy, for the loops of a decision.
// The value is the column's; it must not be changed, nor kept beyond the cycle.
func (c *Column[T]) At(ordinal int) *T {
	if c == nil || !c.present.Has(ordinal) {
		return nil
	}
	return &c.values[ordinal]
}

// Set gives an endpoint a value. The ordinal must be one of the cycle's snapshot.
func (c *Column[T]) Set(ordinal int, value T) {
	c.values[ordinal] = value
	c.present.Add(ordinal)
}

// Put gives an endpoint a value that is written where it stays, without a copy: it returns it, with whatever is left there of
// another cycle. The ordinal must be one of the cycle's snapshot.
func (c *Column[T]) Put(ordinal int) *T {
	c.present.Add(ordinal)
	return &c.values[ordinal]
}

// Unset makes an endpoint's value absent.
func (c *Column[T]) Unset(ordinal int) { c.present.Remove(ordinal) }

// Present is the set of endpoints that have a value. It aliases the column.
func (c *Column[T]) Present() Set {
	if c == nil {
		return Set{}
	}
	return c.present
}

func (c *Column[T]) resize(n int) {
	if cap(c.values) < n {
		c.values = make([]T, n)
	}
	c.values = c.values[:n]
	c.present = c.present.resized(n)
}

func (c *Column[T]) bytes() int {
	var v T
	return cap(c.values)*int(unsafe.Sizeof(v)) + 8*cap(c.present.words)
}

// Value holds one value of type T for the whole request, with a presence bit. A nil *Value is always absent.
type Value[T any] struct {
	value   T
	present bool
}

// Get returns the value; ok is false where there is none.
func (v *Value[T]) Get() (value T, ok bool) {
	if v == nil || !v.present {
		return value, false
	}
	return v.value, true
}

// Set gives the request its value.
func (v *Value[T]) Set(value T) { v.value, v.present = value, true }

func (v *Value[T]) resize(int) {
	var zero T
	v.value, v.present = zero, false
}

func (v *Value[T]) bytes() int { return int(unsafe.Sizeof(*v)) }

// storage is what a cycle keeps per key: a Column or a Value.
type storage interface {
	resize(endpoints int)
	bytes() int
}

// slot is where a key's storage is found in a cycle; the graph fills index in when it is resolved.
type slot struct {
	data     string // name of the data type
	producer string // name of the plugin that produces it
	index    int    // -1: nobody produces it
	plain    bool   // its values can be kept beyond the cycle
	make     func() storage
}

// producerName is empty for the slot of a zero key.
func (s *slot) producerName() string {
	if s == nil {
		return ""
	}
	return s.producer
}

// Key names a column: its value type and its producer. It is declared with ProduceColumn or ConsumeColumn while a
// plugin is built, and good once the graph is resolved.
type Key[T any] struct{ slot *slot }

// In returns the key's column in a cycle; nil, on which Get says absent, for an optional key that nobody produces.
func (k Key[T]) In(c *Cycle) *Column[T] {
	if k.slot == nil || k.slot.index < 0 {
		return nil
	}
	column, _ := c.storage[k.slot.index].(*Column[T])
	return column
}

// Producer is the name of the plugin behind the key; empty where nobody produces it.
func (k Key[T]) Producer() string { return k.slot.producerName() }

// ValueKey names a value of the whole request; otherwise like Key.
type ValueKey[T any] struct{ slot *slot }

// In returns the key's value in a cycle; nil, on which Get says absent, where nobody produces it.
func (k ValueKey[T]) In(c *Cycle) *Value[T] {
	if k.slot == nil || k.slot.index < 0 {
		return nil
	}
	value, _ := c.storage[k.slot.index].(*Value[T])
	return value
}

// Producer is the name of the plugin behind the key; empty where nobody produces it.
func (k ValueKey[T]) Producer() string { return k.slot.producerName() }

// StateKey names the state that one follower keeps per flight.
type StateKey[T any] struct{ slot *slot }

// Of returns the follower's state of a flight; it lives, zeroed at the start, exactly as long as the flight.
func (k StateKey[T]) Of(f *Flight) *T {
	state, _ := f.states[k.slot.index].(*State[T])
	return &state.value
}

// State is the storage behind a StateKey.
type State[T any] struct{ value T }

func (s *State[T]) bytes() int { return int(unsafe.Sizeof(*s)) }

func (s *State[T]) resize(int) {
	var zero T
	s.value = zero
}
