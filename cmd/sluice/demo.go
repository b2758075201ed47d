package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/sluice-epp/sluice/cmd/sluice/demo"
)

// DemoCommand runs the whole path on this machine.
type DemoCommand struct {
	Envoy   string  `help:"Path of an Envoy, 1.38 or newer (default: the one on PATH; 'make demo' gets one)." type:"path" placeholder:"FILE"`
	Engines int     `help:"Number of simulated engines, from 1 to 16." default:"3"`
	Speed   float64 `help:"How many times faster than modelled the engines run." default:"1"`
	Jaeger  string  `help:"Path of a Jaeger ('make demo TRACE=1' gets one): everything then traces, and one request's trace is shown." type:"path" placeholder:"FILE"`
	Keep    bool    `help:"Leave everything running afterwards, until Ctrl-C, and print lines to try."`
}

// Help is shown below the usage.
func (*DemoCommand) Help() string {
	return `Plays a multi-turn chat workload twice, with Sluice's picks and round robin, and compares. From the repository, 'make demo' gets an Envoy first. Example:

  sluice demo --envoy /usr/local/bin/envoy --keep`
}

// Validate checks the numbers.
func (d *DemoCommand) Validate() error {
	switch {
	case d.Engines < 1 || d.Engines > 16:
		return fmt.Errorf("--engines: must be from 1 to 16, got %d", d.Engines)
	case !(d.Speed > 0) || d.Speed > maxSpeed:
		return fmt.Errorf("--speed: must be > 0 and at most %d, got %g", maxSpeed, d.Speed)
	}
	return nil
}

// Run runs the demo.
func (d *DemoCommand) Run(i *interrupts) error {
	i.hangUpEnds()
	if d.Envoy == "" {
		found, err := exec.LookPath("envoy")
		if err != nil {
			return errors.New("no envoy on PATH: name one with --envoy, or run 'make demo', which gets one")
		}
		d.Envoy = found
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return demo.Run(i, demo.Options{Sluice: self, Envoy: d.Envoy, Engines: d.Engines, Speed: d.Speed, Jaeger: d.Jaeger, Keep: d.Keep, Out: os.Stdout})
}
