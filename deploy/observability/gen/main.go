// Command gen writes the files that package observability makes into the repository at the given path.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-epp/sluice/deploy/observability"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: gen ROOT")
	}
	files, err := observability.Files()
	if err != nil {
		return err
	}
	for path, content := range files {
		to := filepath.Join(args[0], filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
