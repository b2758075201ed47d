package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
)

// ConfigCommand groups what is about configuration.
type ConfigCommand struct {
	Check   ConfigCheckCommand   `cmd:"" help:"Check a file: print the effective configuration and the resolved graph, or every fault."`
	Default ConfigDefaultCommand `cmd:"" help:"Print the built-in configuration, a starting point for a file."`
}

// ConfigCheckCommand checks a file.
type ConfigCheckCommand struct {
	File string `arg:"" help:"The file to check, - for standard input; none for the built-in configuration." type:"path" optional:""`
}

// Help is shown below the usage.
func (*ConfigCheckCommand) Help() string {
	return `What it prints is itself a configuration file. Exits with 1 where the file has a fault. Examples:

  sluice config check sluice.yaml
  sluice config default | sluice config check -`
}

// Run prints a report, or fails with every fault.
func (c *ConfigCheckCommand) Run() error {
	report, err := c.check()
	if faults := (config.Faults)(nil); errors.As(err, &faults) { // each on a line of its own that begins with its place
		return fmt.Errorf("the configuration is not valid:\n%w", err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Print(report)
	return err
}

func (c *ConfigCheckCommand) check() (string, error) {
	if c.File != "-" {
		return config.Check(c.File, os.LookupEnv, server.Catalogue())
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, config.MaxFileBytes+1))
	if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	return config.CheckText("standard input", text, os.LookupEnv, server.Catalogue())
}

// ConfigDefaultCommand prints the built-in configuration.
type ConfigDefaultCommand struct{}

// Run prints it.
func (ConfigDefaultCommand) Run() error {
	_, err := fmt.Print(config.DefaultText)
	return err
}

// offline knows the environment for commands that read a configuration and serve nothing. Of secrets that are not here it says so
// on the standard error, and goes on without them.
var offline = config.Offline(os.LookupEnv, func(name string) {
	fmt.Fprintf(os.Stderr, "sluice: environment variable %s is not set: a placeholder stands for the secret, which is not needed here\n", name)
})
