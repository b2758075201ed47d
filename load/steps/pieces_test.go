package steps

import (
	"testing"
	"time"
)

// TestPiecesOfOneStep count once.
func TestPiecesOfOneStep(t *testing.T) {
	p := Pieces{Last: time.Second}
	now := time.Second
	for i := range Least {
		if p.Known() {
			t.Errorf("%d pieces are enough", i)
		}
		now += 20 * time.Millisecond
		p.Add(now)
		p.Add(now + Same - 1)
	}
	if p.Count != Least || p.Last != now || !p.Known() {
		t.Errorf("%+v, want %d, the last at %v", p, Least, now)
	}
}
