package shadow

import (
	"testing"
	"testing/synctest"
)

// TestNothingIsDecidedWithWhatIsClosed: what waits when a second configuration is closed is left out.
func TestNothingIsDecidedWithWhatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := newShadow(t)
		if err := s.Use(b.second(t, usual...)); err != nil {
			t.Fatal(err)
		}
		b.decide(t, s, 3) // no time passes, so all wait
		if err := s.Use(nil); err != nil {
			t.Fatal(err)
		}
		settle()
		if compared, left := s.stats.total(), s.stats.dropped[droppedReload].Load(); compared != 0 || left != 3 {
			t.Errorf("%d compared, %d left out", compared, left)
		}
	})
}
