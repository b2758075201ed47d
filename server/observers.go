package server

import (
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/extproc"
)

// observers are told one after another.
type observers []extproc.Observer

// Picked implements extproc.Observer.
func (o observers) Picked(c *scheduling.Cycle, f *scheduling.Flight, took time.Duration) {
	for _, observer := range o {
		observer.Picked(c, f, took)
	}
}

// Ended implements extproc.Observer.
func (o observers) Ended(f *scheduling.Flight, outcome scheduling.Outcome, firstToken, total time.Duration) {
	for _, observer := range o {
		observer.Ended(f, outcome, firstToken, total)
	}
}

// Noted implements extproc.Observer.
func (o observers) Noted(kind string) {
	for _, observer := range o {
		observer.Noted(kind)
	}
}
