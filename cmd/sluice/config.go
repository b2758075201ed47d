package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/filewatch"
)

// ConfigCommand groups what is about configuration.
type ConfigCommand struct {
	Check   ConfigCheckCommand   `cmd:"" help:"Check a file: print the effective configuration and the resolved graph, or every fault."`
	Default ConfigDefaultCommand `cmd:"" help:"Print the built-in configuration, a starting point for a file."`
	Import  ConfigImportCommand  `cmd:"" help:"Say what becomes of an EndpointPickerConfig of llm-d-router, plugin by plugin, and make a file of Sluice's of it."`
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

// ConfigImportCommand says what becomes of another router's file.
type ConfigImportCommand struct {
	File   string `arg:"" help:"The file, - for standard input." type:"path"`
	Output string `short:"o" help:"Write Sluice's configuration there, - for standard output, where the report then does not go." placeholder:"FILE" type:"path"`
}

// Help is shown below the usage.
func (*ConfigImportCommand) Help() string {
	return `Each plugin maps (it means the same here), differs, is missing, or is not needed. What is written is what is left; it passes
sluice config check. Examples:

  sluice config import epp-config.yaml
  sluice config import epp-config.yaml -o sluice.yaml
`
}

// Run prints the report, and writes the configuration where it is asked for.
func (c *ConfigImportCommand) Run() error {
	name, text, err := c.read()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	made, err := config.Import(name, text, offline, server.Catalogue())
	if err != nil {
		return err
	}
	report := made.Report(name)
	if c.Output == "" {
		fmt.Print(report)
		fmt.Println("\nWith -o FILE it writes the configuration that is left.")
		return nil
	}
	if err := writeTo(c.Output, func(w io.Writer) error {
		_, err := io.WriteString(w, made.File(filepath.Base(name)))
		return err
	}); err != nil {
		return err
	}
	if c.Output == "-" || isStdout(c.Output) {
		fmt.Fprint(os.Stderr, report)
		return nil
	}
	fmt.Print(report)
	fmt.Printf("\n%s is written; sluice config check %s shows what it means.\n", c.Output, c.Output)
	return nil
}

func (c *ConfigImportCommand) read() (name string, text []byte, err error) {
	if c.File == "-" {
		text, err = io.ReadAll(io.LimitReader(os.Stdin, config.MaxFileBytes+1))
		return "standard input", text, err
	}
	text, err = filewatch.Read(c.File, config.MaxFileBytes)
	return c.File, text, err
}

// offline knows the environment for commands that read a configuration and serve nothing. Of secrets that are not here it says so
// on the standard error, and goes on without them.
var offline = config.Offline(os.LookupEnv, func(name string) {
	fmt.Fprintf(os.Stderr, "sluice: environment variable %s is not set: a placeholder stands for the secret, which is not needed here\n", name)
})
