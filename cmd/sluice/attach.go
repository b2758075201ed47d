package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
)

// AttachCommand groups what attaches Sluice to proxies.
type AttachCommand struct {
	Envoy AttachEnvoyCommand `cmd:"" help:"Print an Envoy bootstrap that asks Sluice for every request."`
}

// AttachEnvoyCommand prints an Envoy bootstrap.
type AttachEnvoyCommand struct {
	Listen         string        `help:"Address that Envoy serves clients on." default:"127.0.0.1:8080" placeholder:"IP:PORT"`
	Admin          string        `help:"Address of Envoy's admin port; empty for none." default:"127.0.0.1:9901" placeholder:"IP:PORT"`
	Sluice         []string      `help:"Address of 'sluice serve' as Envoy reaches it; may be repeated, for replicas: Envoy asks those that are healthy in turn." default:"127.0.0.1:9002" placeholder:"HOST:PORT"`
	TLS            bool          `help:"Speak TLS to Sluice, trusting any certificate: what a Sluice that does not listen on loopback wants by default."`
	CA             string        `help:"Path, on Envoy's machine, of the CA that Sluice's certificate must chain to. Implies --tls." placeholder:"FILE"`
	OverrideHost   bool          `help:"Choose among listed endpoints (Envoy 1.38 or newer): a report of who served and, with --retries, ordered fallbacks. Without it Envoy dials whatever Sluice picks (ORIGINAL_DST)."`
	Endpoint       []string      `help:"An engine, ip:port, exactly as Sluice knows it; needed by --override-host; may be repeated." placeholder:"IP:PORT"`
	RequestBody    string        `help:"How Envoy sends request bodies: full-duplex-streamed, buffered, buffered-partial, streamed or none." default:"full-duplex-streamed" placeholder:"MODE"`
	ResponseBody   string        `help:"How Envoy sends response bodies: full-duplex-streamed, streamed or none." default:"full-duplex-streamed" placeholder:"MODE"`
	FailOpen       bool          `help:"Let requests pass, unpicked, where Sluice cannot be reached."`
	Retries        uint32        `help:"How often Envoy sends a failed request again (default 0); with --override-host to the next of the ordered picks, of which Sluice sends one unless serve has --max-endpoints-in-pick (at least N+1)." placeholder:"N"`
	MessageTimeout time.Duration `help:"How long Envoy waits for an answer where it waits for one message." default:"5s"`
	Config         string        `help:"Configuration file of 'sluice serve', only to compare its server.produceTimeout with --message-timeout; without one, the default is compared." type:"path" placeholder:"FILE"`
	AccessLog      bool          `help:"Log a JSON line a request, with the pick."`
	Traces         string        `help:"A collector, which speaks OTLP over gRPC, that Envoy sends its spans to (default: Envoy makes none)." placeholder:"HOST:PORT"`
}

// Help is shown below the usage.
func (*AttachEnvoyCommand) Help() string {
	return `Example, for a Sluice on this machine:

  sluice attach envoy > envoy.yaml && envoy -c envoy.yaml

Two replicas of Sluice (a DNS name that resolves to all of them, as that of a headless service, will do alone):

  sluice attach envoy --sluice 10.0.0.2:9002 --sluice 10.0.0.3:9002 --tls > envoy.yaml

Ordered fallbacks take three parts: --override-host with the engines, --retries N, and a Sluice that sends N+1 endpoints:

  sluice attach envoy --override-host --endpoint 10.0.0.5:8000 --endpoint 10.0.0.6:8000 --retries 1 > envoy.yaml
  sluice serve --endpoint 10.0.0.5:8000 --endpoint 10.0.0.6:8000 --max-endpoints-in-pick 2`
}

// Validate judges what flags say of one another.
func (a *AttachEnvoyCommand) Validate() error {
	if a.OverrideHost && len(a.Endpoint) == 0 {
		return errors.New("--override-host: needs the engines that Envoy may choose among: give --endpoint IP:PORT for each")
	}
	if len(a.Sluice) == 0 {
		return errors.New("--sluice: needs the address of a 'sluice serve', HOST:PORT")
	}
	return nil
}

// Run prints the bootstrap.
func (a *AttachEnvoyCommand) Run() error {
	p := envoy.Params{
		Listen: a.Listen, Admin: a.Admin, Picker: envoy.Picker{Address: a.Sluice[0], Replicas: a.Sluice[1:]}, Endpoints: a.Endpoint,
		FailureModeAllow: a.FailOpen, Retries: a.Retries, MessageTimeout: a.MessageTimeout, AccessLog: a.AccessLog,
	}
	if a.Traces != "" {
		p.Tracing = &envoy.Tracing{Collector: a.Traces}
	}
	if a.TLS || a.CA != "" {
		p.Picker.TLS = &envoy.TLS{CAFile: a.CA}
	}
	if a.OverrideHost {
		p.PoolType = envoy.OverrideHost
	}
	var err error
	if p.RequestBody, err = envoy.ParseBodyMode(a.RequestBody); err != nil {
		return fmt.Errorf("--request-body: %w", err)
	}
	if p.ResponseBody, err = envoy.ParseBodyMode(a.ResponseBody); err != nil {
		return fmt.Errorf("--response-body: %w", err)
	}
	bootstrap, err := envoy.Render(p)
	if err != nil {
		return err
	}
	if err := a.warnBudget(p.RequestBody); err != nil {
		return err
	}
	if len(a.Endpoint) > 0 && !a.OverrideHost {
		fmt.Fprintln(os.Stderr, "sluice: --endpoint does nothing without --override-host: Envoy dials whatever Sluice picks")
	}
	if a.Retries > 0 && !a.OverrideHost {
		fmt.Fprintln(os.Stderr, "sluice: without --override-host and an --endpoint for each engine a retry goes to the same endpoint again")
	}
	if a.OverrideHost && a.Retries > 0 {
		fmt.Fprintf(os.Stderr, "sluice: for %d retries to have somewhere to go, give 'sluice serve' --max-endpoints-in-pick %d\n", a.Retries, a.Retries+1)
	}
	_, err = os.Stdout.Write(bootstrap)
	return err
}

// warnBudget says where Envoy would give up while Sluice may still look things up. In full duplex Envoy waits without a
// limit, and without a time it is given one that is ample.
func (a *AttachEnvoyCommand) warnBudget(mode envoy.BodyMode) error {
	file, err := config.Default()
	if a.Config != "" {
		file, err = config.Load(a.Config, offline)
	}
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if produce := file.Config.Server.ProduceTimeout; mode != envoy.FullDuplexStreamed && a.MessageTimeout > 0 && a.MessageTimeout <= produce {
		fmt.Fprintf(os.Stderr, "sluice: --message-timeout %v is not above server.produceTimeout (%v): Envoy would answer 504 while Sluice "+
			"may still look things up; raise the one or lower the other\n", a.MessageTimeout, produce)
	}
	return nil
}
