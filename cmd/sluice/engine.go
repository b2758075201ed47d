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
	<-i.Done()
	return s.Close()
}
