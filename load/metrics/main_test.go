package metrics

import (
	"testing"

	"go.uber.org/goleak"
)

// ServePages is set where this test binary can stand in for engines; it does so and returns true where it is asked to.
var ServePages = func() bool { return false }

func TestMain(m *testing.M) {
	if !ServePages() {
		goleak.VerifyTestMain(m)
	}
}
