package scheduling_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

// setModel is a Set beside the map that says what it should hold.
type setModel struct {
	room int
	set  scheduling.Set
	want map[int]bool
}

func (m *setModel) ordinal(rt *rapid.T) int { return rapid.IntRange(0, m.room-1).Draw(rt, "ordinal") }

func (m *setModel) other(rt *rapid.T) (scheduling.Set, map[int]bool) {
	room := rapid.IntRange(0, 200).Draw(rt, "other's room")
	o, want := scheduling.NewSet(room), map[int]bool{}
	if room > 0 {
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, room-1), 0, 50).Draw(rt, "other") {
			o.Add(i)
			want[i] = true
		}
	}
	return o, want
}

// rounded is the room that a set really has: whole words.
func rounded(room int) int { return (room + 63) / 64 * 64 }

func (m *setModel) check(rt *rapid.T) {
	sorted := slices.Sorted(maps.Keys(m.want))
	if got := slices.Collect(m.set.All()); !slices.Equal(got, sorted) {
		rt.Fatalf("All: got %v, want %v", got, sorted)
	}
	if m.set.Len() != len(sorted) || m.set.Empty() != (len(sorted) == 0) {
		rt.Fatalf("Len %d, Empty %t of %v", m.set.Len(), m.set.Empty(), sorted)
	}
	for i := -1; i <= rounded(m.room)+64; i++ {
		if m.set.Has(i) != m.want[i] {
			rt.Fatalf("Has(%d) is %t", i, m.set.Has(i))
		}
		if i < 0 {
			continue
		}
		at, _ := slices.BinarySearch(sorted, i)
		next := -1
		if at < len(sorted) {
			next = sorted[at]
		}
		if got := m.set.Next(i); got != next {
			rt.Fatalf("Next(%d) is %d, want %d of %v", i, got, next, sorted)
		}
	}
}

func TestSetAgainstAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		room := rapid.IntRange(1, 200).Draw(rt, "room")
		m := &setModel{room: room, set: scheduling.NewSet(room), want: map[int]bool{}}
		rt.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"add": func(rt *rapid.T) {
				i := m.ordinal(rt)
				m.set.Add(i)
				m.want[i] = true
			},
			"remove": func(rt *rapid.T) {
				i := rapid.IntRange(0, 400).Draw(rt, "ordinal or beyond")
				m.set.Remove(i)
				delete(m.want, i)
			},
			"clear": func(*rapid.T) {
				m.set.Clear()
				clear(m.want)
			},
			"intersect": func(rt *rapid.T) {
				o, with := m.other(rt)
				m.set.IntersectWith(o)
				maps.DeleteFunc(m.want, func(i int, _ bool) bool { return !with[i] })
			},
			"subtract": func(rt *rapid.T) {
				o, without := m.other(rt)
				m.set.Subtract(o)
				maps.DeleteFunc(m.want, func(i int, _ bool) bool { return without[i] })
			},
			"copy": func(rt *rapid.T) {
				o, from := m.other(rt)
				m.set.CopyFrom(o)
				clear(m.want)
				for i := range from {
					if i < rounded(m.room) {
						m.want[i] = true
					}
				}
			},
		})
	})
}

func TestZeroSetIsEmpty(t *testing.T) {
	var s scheduling.Set
	if s.Has(0) || s.Len() != 0 || !s.Empty() || s.Next(0) != -1 {
		t.Error("the zero Set holds something")
	}
	s.Remove(3)
	s.Clear()
	s.IntersectWith(scheduling.NewSet(10))
	s.Subtract(scheduling.NewSet(10))
	s.CopyFrom(scheduling.NewSet(10))
	for i := range s.All() {
		t.Errorf("the zero Set holds %d", i)
	}
}

// TestWalkAndRemove: filters take out the ordinal that they stand on.
func TestWalkAndRemove(t *testing.T) {
	s := scheduling.NewSet(130)
	for i := range 130 {
		s.Add(i)
	}
	for i := s.Next(0); i >= 0; i = s.Next(i + 1) {
		if i%3 != 0 {
			s.Remove(i)
		}
	}
	if s.Len() != 44 {
		t.Errorf("%d left, want 44", s.Len())
	}
	n := 0
	for range s.All() {
		if n++; n == 5 {
			break // All stops when it is told to
		}
	}
	if n != 5 {
		t.Errorf("walked %d", n)
	}
}

// TestCopiesShareWords is the documented trap, and CopyFrom the way out of it.
func TestCopiesShareWords(t *testing.T) {
	a := scheduling.NewSet(10)
	b, c := a, scheduling.NewSet(10)
	c.CopyFrom(a)
	a.Add(7)
	if !b.Has(7) || c.Has(7) {
		t.Errorf("b has 7: %t, c has 7: %t", b.Has(7), c.Has(7))
	}
}
