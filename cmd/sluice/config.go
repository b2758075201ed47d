package main

import (
	"fmt"
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
	File string `arg:"" help:"The file to check; none for the built-in configuration." type:"path" optional:""`
}

// Run prints a report, or fails with every fault.
func (c *ConfigCheckCommand) Run() error {
	report, err := config.Check(c.File, os.LookupEnv, server.Catalogue())
	if err != nil {
		return err
	}
	_, err = fmt.Print(report)
	return err
}

// ConfigDefaultCommand prints the built-in configuration.
type ConfigDefaultCommand struct{}

// Run prints it.
func (ConfigDefaultCommand) Run() error {
	_, err := fmt.Print(config.DefaultText)
	return err
}
