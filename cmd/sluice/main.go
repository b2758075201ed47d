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
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the build.
var version string

// CLI is the command line.
type CLI struct {
	Serve      ServeCommand      `cmd:"" help:"Serve Envoy: pick an endpoint for every request."`
	Attach     AttachCommand     `cmd:"" help:"Print what attaches Sluice to a proxy."`
	Config     ConfigCommand     `cmd:"" help:"Check a configuration file, or show the built-in one."`
	Engine     EngineCommand     `cmd:"" help:"Run a simulated vLLM, for trying things out."`
	Simulate   SimulateCommand   `cmd:"" help:"Compare configurations on a trace of requests, in virtual time."`
	Replay     ReplayCommand     `cmd:"" help:"Make recorded decisions again, under the configuration that made them or another one."`
	Fit        FitCommand        `cmd:"" help:"Find the costs of an engine's steps from measured times, for engine and simulate."`
	Demo       DemoCommand       `cmd:"" help:"Run the whole path on this machine: engines, Sluice, a real Envoy, a chat workload."`
	Explain    ExplainCommand    `cmd:"" help:"Say why a request went where it went, or where one would go."`
	Calibrate  CalibrateCommand  `cmd:"" help:"Measure prefill throughput and break-even, from a decision log or a live engine, and print the configuration for them."`
	GateReport GateReportCommand `cmd:"" help:"Say from a decision log what the affinity gate saw and did, and what other bars would have done."`
	Top        TopCommand        `cmd:"" help:"Watch endpoints and decisions."`
	Version    VersionCommand    `cmd:"" help:"Print the version."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
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
	force   chan struct{}
	signals chan os.Signal
	first   atomic.Int32 // the number of the first signal; 0: none came
	over    chan struct{}
}

// hangUpEnds lets SIGHUP end the command too, as where its terminal is closed.
func (i *interrupts) hangUpEnds() { signal.Notify(i.signals, syscall.SIGHUP) }

// newInterrupts takes the signals over. Only commands that ask for interrupts do: any other ends with the first signal.
func newInterrupts() *interrupts {
	ctx, cancel := context.WithCancel(context.Background())
	i := &interrupts{Context: ctx, force: make(chan struct{}), signals: make(chan os.Signal, 2), over: make(chan struct{})}
	signal.Notify(i.signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer cancel()
		select {
		case s := <-i.signals:
			if s, ok := s.(syscall.Signal); ok {
				i.first.Store(int32(s)) //nolint:gosec // signals have small numbers
			}
		case <-i.over:
			return
		}
		cancel()
		select {
		case <-i.signals:
			close(i.force)
		case <-i.over:
		}
	}()
	return i
}

// end gives the signals back, once the command has ended.
func (i *interrupts) end() {
	signal.Stop(i.signals)
	close(i.over)
}

// Exit codes. A command that a signal cut short exits with 128 and the signal's number, as shells report it.
const (
	exitFailure   = 1
	exitUsage     = 2
	exitInterrupt = 128
)

func main() { os.Exit(run(os.Args[1:])) }

// run parses the arguments and runs the command; it returns the exit code.
func run(args []string) int {
	var taken *interrupts // nil where the command does not ask for them
	parser := newParser(&CLI{}, kong.BindSingletonProvider(func() *interrupts { taken = newInterrupts(); return taken }))
	if len(args) == 0 {
		if help, err := kong.Trace(parser, nil); err == nil {
			parser.Stdout = os.Stderr
			_ = help.PrintUsage(false)
			return exitUsage
		}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		complain(err)
		command := ""
		if usage := new(kong.ParseError); errors.As(err, &usage) && usage.Context.Selected() != nil {
			command = usage.Context.Selected().Path() + " "
		}
		fmt.Fprintf(os.Stderr, "Run 'sluice %s--help' for what there is.\n", command)
		return exitUsage
	}
	err = parsed.Run()
	if taken != nil {
		defer taken.end()
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && taken != nil && taken.first.Load() > 0:
		return exitInterrupt + int(taken.first.Load())
	}
	complain(err)
	return exitFailure
}

func newParser(cli *CLI, more ...kong.Option) *kong.Kong {
	return kong.Must(cli, append([]kong.Option{
		kong.Name("sluice"),
		kong.Description("Endpoint picker for LLM inference: an Envoy ext_proc server that knows the engines' prefix caches and load."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(withDefault),
		kong.Vars{"version": "sluice " + versionString()},
	}, more...)...)
}

func complain(err error) { fmt.Fprintf(os.Stderr, "sluice: %v\n", err) }

// withDefault is a flag's help with its default, which a placeholder would hide.
func withDefault(v *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(v)
	if v.Flag == nil || v.Flag.PlaceHolder == "" || !v.HasDefault || v.Default == "" {
		return help
	}
	return strings.TrimSuffix(help, ".") + " (default " + v.Default + ")."
}
