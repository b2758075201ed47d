// Command licences reports under which licences the modules come that the given packages and their tests are built of,
// and fails where one may not be used in a work under Apache-2.0, or is not known.
//
//	licences [-o FILE] [PACKAGE...]
//
// It reads the module cache alone. A licence is what the text says, whatever the file is called: each text must be known
// licences for the most part.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	report := flag.String("o", "", "write the report to this file in place of standard output")
	flag.Parse()
	if err := run(flag.Args(), *report, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(patterns []string, file string, out io.Writer) error {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	linked, err := list(patterns)
	if err != nil {
		return err
	}
	tested, err := list(append([]string{"-test"}, patterns...))
	if err != nil {
		return err
	}
	rows, faults := judge(modulesOf(linked, tested))
	if file == "" {
		if err := write(out, rows); err != nil {
			return err
		}
	} else {
		var text bytes.Buffer
		if err := write(&text, rows); err != nil {
			return err
		}
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	for _, fault := range faults {
		fmt.Fprintln(os.Stderr, "licences:", fault)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d of %d modules may not be used, or nobody knows", len(faults), len(rows))
	}
	if file != "" {
		fmt.Fprintf(out, "licences: %d modules, all compatible with Apache-2.0; the report is %s\n", len(rows), file)
	}
	return nil
}

// list asks the go command for the packages that the arguments name, and for what they import.
func list(arguments []string) ([]goPackage, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,Module,Standard"}, arguments...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	return packagesIn(out)
}
