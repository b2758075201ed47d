// Command sluice is an endpoint picker for LLM inference: an Envoy ext_proc server that sends each request to the engine
// that holds its prefix, or to the one that has time for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the build.
var version string

// CLI is the command line.
type CLI struct {
	Serve   ServeCommand   `cmd:"" help:"Serve Envoy: pick an endpoint for every request."`
	Attach  AttachCommand  `cmd:"" help:"Print what attaches Sluice to a proxy."`
	Config  ConfigCommand  `cmd:"" help:"Check, show or explain configuration."`
	Engine  EngineCommand  `cmd:"" help:"Run a simulated vLLM, for trying things out."`
	Demo    DemoCommand    `cmd:"" help:"Run the whole path on this machine: engines, Sluice, a real Envoy, a chat workload."`
	Version VersionCommand `cmd:"" help:"Print the version."`
}

// VersionCommand prints the version.
type VersionCommand struct{}

// Run prints the version.
func (VersionCommand) Run() error {
	_, err := fmt.Println("sluice", versionString())
	return err
}

// versionString is the build's version, or what the Go toolchain recorded.
func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// interrupts ends with the first SIGINT or SIGTERM; force closes with the second.
type interrupts struct {
	context.Context
	force chan struct{}
}

// newInterrupts takes the signals over. Only commands that ask for interrupts do: any other ends with the first signal.
func newInterrupts() *interrupts {
	ctx, cancel := context.WithCancel(context.Background())
	i := &interrupts{Context: ctx, force: make(chan struct{})}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		close(i.force)
	}()
	return i
}

func main() {
	var cli CLI
	parser := kong.Must(&cli,
		kong.Name("sluice"),
		kong.Description("Endpoint picker for LLM inference: an Envoy ext_proc server that knows the engines' prefix caches and load."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, Summary: true}),
		kong.BindSingletonProvider(newInterrupts),
	)
	parsed, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if err = parsed.Run(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "sluice: %v\n", err)
		os.Exit(1)
	}
}
