package fleet

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Whatever is asked for, and while alarms ask for more, they come in order; equal times in the order of asking.
func TestClockIsInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c, asked, rang := &clock{}, 0, 0
	lastAt, lastNumber := time.Duration(-1), 0
	var ask func()
	ask = func() {
		asked++
		number, when := asked, c.now+time.Duration(random.IntN(20))
		c.at(when, func() {
			rang++
			if c.now != when || c.now < lastAt || c.now == lastAt && number < lastNumber {
				t.Fatalf("alarm %d for %v rang at %v, after %d at %v", number, when, c.now, lastNumber, lastAt)
			}
			lastAt, lastNumber = c.now, number
			for range random.IntN(3) {
				if asked < 20_000 {
					ask()
				}
			}
		})
	}
	for range 100 {
		ask()
	}
	for c.step() {
	}
	if rang != asked || rang < 10_000 {
		t.Errorf("%d of %d rang", rang, asked)
	}
	c.at(0, func() { rang = -1 })
	if now := c.now; !c.step() || c.now != now || rang != -1 {
		t.Error("what is past does not ring at once")
	}
}
