package table

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab Table
		counts, places := map[uint64]int{}, map[uint64]uint64{}
		name := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64())
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			n := name.Draw(t, "name")
			slot, ok := tab.Find(n)
			if ok != (counts[n] > 0) {
				t.Fatalf("%d found: %v, counted %d", n, ok, counts[n])
			}
			switch rapid.IntRange(0, 6).Draw(t, "action") {
			case 0, 1, 2:
				for range rapid.SampledFrom([]int{1, 1, 1, 2, 300}).Draw(t, "times") {
					if slot, ok = tab.Find(n); ok {
						tab.Again(slot)
					} else {
						places[n] = n % MaxPlace
						tab.Add(n, places[n])
					}
					counts[n]++
				}
			case 3, 4:
				if ok {
					counts[n]--
					if gone := tab.Less(slot); gone != (counts[n] == 0) {
						t.Fatalf("gone %v at %d", gone, counts[n])
					}
				}
			case 5:
				if ok && rapid.Bool().Draw(t, "settle") {
					tab.Settle(slot)
					counts[n] = 1
				} else if ok {
					tab.Drop(slot)
					counts[n] = 0
				}
			case 6:
				if rapid.IntRange(0, 9).Draw(t, "clear") == 0 {
					tab.Clear()
					clear(counts)
				} else if ok {
					places[n] = MaxPlace - 1
					tab.Move(slot, places[n])
				}
			}
			check(t, &tab, counts, places)
		}
	})
}

func check(t *rapid.T, tab *Table, counts map[uint64]int, places map[uint64]uint64) {
	used := 0
	for n, count := range counts {
		at, ok := tab.Get(n)
		if ok != (count > 0) || (ok && at != places[n]) {
			t.Fatalf("%d: %v at %x, counted %d, put at %x", n, ok, at, count, places[n])
		}
		if ok {
			used++
		}
	}
	all := 0
	tab.All(func(n, at uint64) bool {
		if counts[n] == 0 || at != places[n] {
			t.Fatalf("%d at %x is walked over", n, at)
		}
		all++
		return true
	})
	if tab.Len() != used || all != used || (len(tab.entries) > minEntries && tab.used > len(tab.entries)*4/5+1) {
		t.Fatalf("%d used of %d, %d walked over, counted %d", tab.used, len(tab.entries), all, used)
	}
	for n := range tab.more {
		if counts[n] <= maxCount {
			t.Fatalf("%d has a large count left over", n)
		}
	}
	if slot, n, ok := tab.After(7); ok != (used > 0) || (ok && (counts[n] == 0 || tab.entries[slot].name != n)) {
		t.Fatalf("After found %d in slot %d: %v", n, slot, ok)
	}
}

// Names that an engine chooses to fall together do not: those of which the product with a constant is small, those that
// differ in a few bits only, and those in a row.
func TestChosenNames(t *testing.T) {
	inverse := uint64(1) // of spread
	for range 6 {
		inverse *= 2 - spread*inverse
	}
	for what, nameOf := range map[string]func(i uint64) uint64{
		"small products": func(i uint64) uint64 { return i * inverse },
		"high bits":      func(i uint64) uint64 { return i << 48 },
		"middle bits":    func(i uint64) uint64 { return i << 24 },
		"in a row":       func(i uint64) uint64 { return i },
	} {
		t.Run(what, func(t *testing.T) {
			var tab Table
			const n = 10_000
			for i := range uint64(n) {
				tab.Add(nameOf(i), i)
			}
			far := 0
			for i := range uint64(n) {
				slot, ok := tab.Find(nameOf(i))
				if !ok || tab.Place(slot) != i {
					t.Fatalf("%d is not there", i)
				}
				far += tab.distance(tab.home(nameOf(i)), slot)
			}
			if far > 20*n {
				t.Errorf("names lie %d slots off their homes on average", far/n)
			}
		})
	}
}

// Where each new name takes the place of one found anywhere, look-ups stay short. Taken out in the order of slots, names
// would crowd ahead of the place that is reached, and look-ups pass thousands.
func TestReplacingKeepsLookupsShort(t *testing.T) {
	const names = 20_000
	var tab Table
	anywhere := uint64(0)
	for n := range uint64(20 * names) {
		tab.Add(n, n)
		if tab.Len() > names {
			anywhere = anywhere*6364136223846793005 + 1442695040888963407
			slot, _, ok := tab.After(int(anywhere >> 33))
			if !ok {
				t.Fatal("nothing found")
			}
			tab.Drop(slot)
		}
	}
	longest, sum := 0, 0
	for slot, e := range tab.entries {
		if e.value&maxCount != 0 {
			d := tab.distance(tab.home(e.name), slot)
			longest, sum = max(longest, d), sum+d
		}
	}
	if mean := float64(sum) / names; longest > 500 || mean > 10 {
		t.Errorf("names are up to %d slots from their home, %.1f on average, in a table that is %d %% full", longest, mean,
			100*tab.Len()/len(tab.entries))
	}
}
