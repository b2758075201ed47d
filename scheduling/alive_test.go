package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestAlive(t *testing.T) {
	var a scheduling.Alive[int]
	is := func(want ...int) {
		t.Helper()
		if diff := cmp.Diff(want, a.Current()); diff != "" {
			t.Errorf("current (-want +got):\n%s", diff)
		}
	}
	is()
	a.Add("x", 1)
	a.Add("y", 2)
	a.Add("x", 3) // a reload builds the next one before the one before is closed
	is(2, 3)
	a.Remove(1)
	is(2, 3)
	a.Add("x", 4) // a build that fails is closed again
	is(2, 4)
	a.Remove(4)
	is(2, 3)
	a.Remove(9)
	is(2, 3)
}
