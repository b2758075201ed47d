package scheduling

import (
	"reflect"
	"strings"
	"unsafe"
)

// The bounds of a copy.
const (
	// keptModel is the length, in bytes, to which the model's name is shortened. Clients choose it, and records hold no more.
	keptModel = 256
	// keptSpare is how many times larger than it has to be, and by how many endpoints, the memory of a copy may be: where
	// many endpoints went, copies of fewer must not go on taking the room of all.
	keptSpare, keptSpareEndpoints = 2, 64
)

// Keep returns a copy of a decided cycle for later: everything that went in and came out, as far as it is plain data. What
// plugins hand one another besides, the request's body and its token ids are left out, and a long name of a model is
// shortened. The copy is the caller's to End; it keeps the snapshot alive until then.
func (s *Scheduler) Keep(c *Cycle) *Cycle {
	k, _ := s.cycles.Get().(*Cycle)
	if k == nil || cap(k.Totals) > keptSpare*len(c.Totals)+keptSpareEndpoints {
		k = s.newCycle()
	}
	r := c.Request
	model := r.Model
	if len(model) > keptModel {
		model = strings.Clone(model[:keptModel])
	}
	k.kept = Request{
		ID: r.ID, Operation: r.Operation, Model: model, PromptBytes: r.PromptBytes, TokenCount: r.TokenCount,
		MaxOutputTokens: r.MaxOutputTokens, Choices: r.Choices, Stream: r.Stream,
	}
	k.MaxPicks = c.MaxPicks
	k.prepare(c.Snapshot, &k.kept, c.Now)
	k.Seed = c.Seed
	k.Considered.CopyFrom(c.Considered)
	k.Candidates.CopyFrom(c.Candidates)
	k.Picks = append(k.Picks, c.Picks...)
	k.Gates = append(k.Gates, c.Gates...)
	k.Faults = append(k.Faults, c.Faults...)
	copy(k.Totals, c.Totals)
	for i := range c.Steps {
		k.Steps[i].Left.CopyFrom(c.Steps[i].Left)
	}
	for i := range c.Scores {
		copy(k.Scores[i].Raw, c.Scores[i].Raw)
	}
	for i, st := range c.storage {
		if keepable, ok := k.storage[i].(keepable); ok && s.slots[i].plain {
			keepable.copyFrom(st)
		}
	}
	return k
}

// Bytes is about how much memory a kept cycle takes, its snapshot left out.
func (c *Cycle) Bytes() int {
	n := int(unsafe.Sizeof(*c)) + 8*cap(c.Totals) + len(c.kept.Model)
	for _, s := range c.Scores {
		n += int(unsafe.Sizeof(s)) + 8*cap(s.Raw)
	}
	sets := 4 + len(c.Steps)
	n += sets * (int(unsafe.Sizeof(Set{})) + 8*cap(c.Candidates.words))
	n += cap(c.Gates) * int(unsafe.Sizeof(GateReport{}))
	for _, st := range c.storage {
		n += st.bytes()
	}
	return n
}

// keepable is storage whose values can be kept.
type keepable interface{ copyFrom(storage) }

func (c *Column[T]) copyFrom(from storage) {
	if f, ok := from.(*Column[T]); ok {
		copy(c.values, f.values)
		c.present.CopyFrom(f.present)
	}
}

func (v *Value[T]) copyFrom(from storage) {
	f, ok := from.(*Value[T])
	if !ok {
		return
	}
	v.value, v.present = f.value, f.present
	if d, ok := any(&v.value).(detachable); ok {
		d.Detach()
	}
}

// detachable is a value that can let go of what it aliases.
type detachable interface{ Detach() }

// plain reports whether values of a type can be kept: they point at nothing, or can let go of it.
func plain[T any]() bool {
	if _, ok := any(new(T)).(detachable); ok {
		return true
	}
	return pointsNowhere(reflect.TypeFor[T]())
}

func pointsNowhere(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if !pointsNowhere(t.Field(i).Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return pointsNowhere(t.Elem())
	default:
		return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128
	}
}
