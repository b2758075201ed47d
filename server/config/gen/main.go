// Command gen writes the reference of the configuration file, docs/config-reference.md, from the configuration's types
// and the doc comments of their fields.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	text, err := reference(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, output), []byte(text), 0o644)
}

// moduleRoot is the folder of go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod at or above the working directory")
		}
		dir = parent
	}
}
