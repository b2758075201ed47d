package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/fit"
	"github.com/sluice-epp/sluice/server/telemetry"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/sim/profile"
)

// EngineCommand runs a simulated vLLM.
type EngineCommand struct {
	Listen      string   `help:"Address to serve on." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	Name        string   `help:"Name sent in the x-sim-endpoint response header (default: the address)." placeholder:"NAME"`
	Model       []string `help:"Model name; further ones are aliases." default:"sim" placeholder:"NAME"`
	Adapter     []string `help:"Name of a LoRA adapter to serve; may be repeated." placeholder:"NAME"`
	Speed       float64  `help:"How many times faster than modelled everything takes place." default:"1"`
	Profile     string   `help:"Measured costs of its steps, as 'sluice fit' writes them." type:"existingfile" placeholder:"FILE"`
	BlockSize   int      `help:"Tokens per KV block." default:"16"`
	Blocks      int      `help:"Number of KV blocks." default:"19208"`
	MaxModelLen int      `help:"Longest prompt and answer together, in tokens (default: as the model's)." placeholder:"TOKENS"`
	CPUBlocks   int      `name:"cpu-blocks" help:"Number of KV blocks in the CPU's memory, to which full blocks are offloaded; 0 offloads none." default:"0"`
	HashSeed    uint64   `help:"Seed of the block hashes, above 0 (default: another one at each start)." placeholder:"N"`
	Render      bool     `help:"Serve the render routes, as vLLM does with --enable-scale-out." default:"true" negatable:""`

	Events EventFlags `embed:"" group:"KV events:"`
}

// EventFlags say how the KV cache's events are published.
type EventFlags struct {
	On             bool   `name:"kv-events" help:"Publish what happens to the prefix cache, over ZeroMQ." default:"true" negatable:""`
	Port           int    `name:"kv-events-port" help:"Port of the publisher; 0 takes a free one, which GET /kv_event_sources tells." default:"0"`
	ReplayPort     int    `name:"kv-events-replay-port" help:"Port that sends recent events again to who asks; 0 takes a free one, -1 opens none." default:"0"`
	Connect        string `name:"kv-events-connect" help:"Connect the publisher to a bound subscriber instead of binding a port." placeholder:"HOST:PORT"`
	Topic          string `name:"kv-events-topic" help:"Topic of the messages (default: none; when connecting kv@HOST:PORT@MODEL, with this engine's address)." placeholder:"TOPIC"`
	Buffer         int    `name:"kv-events-buffer" help:"Batches of events kept to be sent again." default:"10000"`
	SelfDescribing bool   `name:"self-describing-kv-events" help:"Events of offloaded blocks carry tokens and parent, not the hash alone."`
	Rank           int    `name:"data-parallel-rank" help:"Rank that the events name." default:"0"`
}

const maxPort = 65535

func (f *EventFlags) validate() error {
	switch {
	case f.Port < 0 || f.Port > maxPort:
		return fmt.Errorf("--kv-events-port: must be from 0 to %d, got %d", maxPort, f.Port)
	case f.ReplayPort < -1 || f.ReplayPort > maxPort:
		return fmt.Errorf("--kv-events-replay-port: must be from -1 to %d, got %d", maxPort, f.ReplayPort)
	case f.Connect != "" && f.Port != 0:
		return fmt.Errorf("--kv-events-port: must be absent with --kv-events-connect, got %d", f.Port)
	case f.Buffer < 1:
		return fmt.Errorf("--kv-events-buffer: must be >= 1, got %d", f.Buffer)
	case f.Rank < 0:
		return fmt.Errorf("--data-parallel-rank: must be >= 0, got %d", f.Rank)
	}
	if f.Connect != "" {
		if _, _, err := net.SplitHostPort(f.Connect); err != nil {
			return fmt.Errorf("--kv-events-connect: must be \"host:port\", got %q", f.Connect)
		}
	}
	return nil
}

// config is nil if no events are published. Sockets are on the host that is listened on.
func (f *EventFlags) config(listen string) *engine.KVEvents {
	if !f.On {
		return nil
	}
	host, _, _ := net.SplitHostPort(listen) // Validate has seen it
	k := &engine.KVEvents{
		Connect: f.Connect, Topic: f.Topic, BufferSteps: f.Buffer, Rank: f.Rank,
		SelfDescribing: f.SelfDescribing, NoReplay: f.ReplayPort < 0,
	}
	if f.Connect == "" {
		k.Listen = net.JoinHostPort(host, strconv.Itoa(f.Port))
	}
	if !k.NoReplay {
		k.Replay = net.JoinHostPort(host, strconv.Itoa(f.ReplayPort))
	}
	return k
}

// Help is shown below the usage.
func (*EngineCommand) Help() string {
	return `It answers as vLLM does, with the latencies and the prefix cache of a modelled engine, and text that means nothing. It publishes
the events of that cache as vLLM does with --kv-events-config. Examples:

  sluice engine --listen 127.0.0.1:8000 --name engine-0
  sluice engine --kv-events-port 5557 --kv-events-replay-port 5558 --cpu-blocks 40000
  sluice engine --kv-events-connect 10.0.0.9:5557

With the OTEL_* variables it makes a span of each request, as vLLM does with --otlp-traces-endpoint.
POST /sim/fault, from loopback only, makes it misbehave: see docs/simulated-engine.md.`
}

// Validate checks addresses and numbers.
func (e *EngineCommand) Validate() error {
	if _, _, err := net.SplitHostPort(e.Listen); err != nil {
		return fmt.Errorf("--listen: must be \"host:port\", got %q", e.Listen)
	}
	switch {
	case !(e.Speed > 0) || e.Speed > maxSpeed:
		return fmt.Errorf("--speed: must be > 0 and at most %d, got %g", maxSpeed, e.Speed)
	case e.BlockSize < 1 || e.BlockSize > sim.MaxBlockTokens:
		return fmt.Errorf("--block-size: must be from 1 to %d, got %d", sim.MaxBlockTokens, e.BlockSize)
	case e.Blocks < 1 || e.Blocks > sim.MaxBlocks:
		return fmt.Errorf("--blocks: must be from 1 to %d, got %d", sim.MaxBlocks, e.Blocks)
	case e.MaxModelLen < 0 || e.MaxModelLen > sim.MaxModelTokens:
		return fmt.Errorf("--max-model-len: must be from 1 to %d, got %d", sim.MaxModelTokens, e.MaxModelLen)
	case e.CPUBlocks < 0 || e.CPUBlocks > sim.MaxBlocks:
		return fmt.Errorf("--cpu-blocks: must be from 0 to %d, got %d", sim.MaxBlocks, e.CPUBlocks)
	}
	return e.Events.validate()
}

// openProfile reads a file of measured costs.
func openProfile(path string) (profile.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return profile.Profile{}, fmt.Errorf("--profile: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20)) // profile.Read has a bound of its own, which is lower
	if err != nil {
		return profile.Profile{}, fmt.Errorf("--profile: %w", err)
	}
	p, err := profile.Read(bytes.NewReader(text))
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		if bytes.Contains(text[:min(len(text), 4096)], []byte(fit.Columns[0])) {
			first += " (this looks like a table of samples: give it to sluice fit)"
		}
		return p, fmt.Errorf("--profile: %s: %s", path, first)
	}
	return p, nil
}

// maxSpeed is how many times faster than modelled the engines can run: beyond it timers are too coarse.
const maxSpeed = 10_000

// Run serves until interrupted.
func (e *EngineCommand) Run(i *interrupts) (err error) {
	tracing, err := telemetry.NewTracing(i, "engine", slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(i), 2*time.Second)
		defer cancel()
		err = errors.Join(err, tracing.Close(last))
	}()
	params := sim.DefaultParams()
	if e.Profile != "" {
		p, err := openProfile(e.Profile)
		if err != nil {
			return err
		}
		p.Apply(&params)
	}
	params.BlockSize, params.NumBlocks, params.OffloadBlocks, params.HashSeed = e.BlockSize, e.Blocks, e.CPUBlocks, e.HashSeed
	if e.MaxModelLen > 0 {
		params.MaxModelLen = e.MaxModelLen
	}
	s, err := engine.New(engine.Config{
		Listen: e.Listen, Name: e.Name, Models: e.Model, Adapters: e.Adapter, Speed: e.Speed, Params: params,
		KVEvents: e.Events.config(e.Listen), NoRender: !e.Render,
		Served: engineSpans(tracing.Tracer()),
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
