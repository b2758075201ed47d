package main

import (
	"fmt"
	"os"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

// EngineCommand runs a simulated vLLM.
type EngineCommand struct {
	Listen      string   `help:"Address to serve on." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	Name        string   `help:"Name sent in the x-sim-endpoint response header (default: the address)." placeholder:"NAME"`
	Model       []string `help:"Model name; further ones are aliases." default:"sim" placeholder:"NAME"`
	Adapter     []string `help:"Name of a LoRA adapter to serve; may be repeated." placeholder:"NAME"`
	Speed       float64  `help:"How many times faster than modelled everything takes place." default:"1"`
	BlockSize   int      `help:"Tokens per KV block." default:"16"`
	Blocks      int      `help:"Number of KV blocks." default:"19208"`
	MaxModelLen int      `help:"Longest prompt and answer together, in tokens (default: as the model's)." placeholder:"TOKENS"`
}

// Help is shown below the usage.
func (*EngineCommand) Help() string {
	return `It answers as vLLM does, with the latencies and the prefix cache of a modelled engine, and text that means nothing. Example:

  sluice engine --listen 127.0.0.1:8000 --name engine-0`
}

// Validate checks the numbers.
func (e *EngineCommand) Validate() error {
	switch {
	case !(e.Speed > 0) || e.Speed > maxSpeed:
		return fmt.Errorf("--speed: must be > 0 and at most %d, got %g", maxSpeed, e.Speed)
	case e.BlockSize < 1:
		return fmt.Errorf("--block-size: must be >= 1, got %d", e.BlockSize)
	case e.Blocks < 1:
		return fmt.Errorf("--blocks: must be >= 1, got %d", e.Blocks)
	case e.MaxModelLen < 0:
		return fmt.Errorf("--max-model-len: must be >= 1, got %d", e.MaxModelLen)
	}
	return nil
}

// maxSpeed is how many times faster than modelled the engines can run: beyond it timers are too coarse.
const maxSpeed = 10_000

// Run serves until interrupted.
func (e *EngineCommand) Run(i *interrupts) error {
	params := sim.DefaultParams()
	params.BlockSize, params.NumBlocks = e.BlockSize, e.Blocks
	if e.MaxModelLen > 0 {
		params.MaxModelLen = e.MaxModelLen
	}
	s, err := engine.New(engine.Config{
		Listen: e.Listen, Name: e.Name, Models: e.Model, Adapters: e.Adapter, Speed: e.Speed, Params: params,
	})
	if err != nil {
		return err
	}
	if err := s.Start(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "simulated engine on %s, %g times as fast as modelled\n", s.URL(), e.Speed)
	i.hangUpEnds()
	<-i.Done()
	return s.Close()
}
