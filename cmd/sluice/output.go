package main

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-epp/sluice/server/decisionlog"
)

// writeTo writes what a flag names: a regular file whole or not at all, its permissions kept; a pipe, a device or what else is not a
// regular file as it is. Links are followed. - is standard output.
func writeTo(path string, write func(io.Writer) error) error {
	if path == decisionlog.Stdin || isStdout(path) {
		return write(os.Stdout)
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil { // it is not there yet, or a link to what is not
		target = path
	}
	mode := fs.FileMode(0o644)
	switch info, err := os.Lstat(target); {
	case err == nil && !info.Mode().IsRegular():
		return writeInto(path, write)
	case err == nil:
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+"-*")
	if err != nil { // the file may be writable where its folder is not
		return writeInto(path, write)
	}
	defer func() { _ = os.Remove(f.Name()) }() // where it has its last name, there is nothing to remove
	if err := finish(f, write, f.Chmod(mode)); err != nil {
		return err
	}
	if os.Rename(f.Name(), target) != nil { // a file that is mounted stays where it is
		return writeInto(path, write)
	}
	return nil
}

// isStdout reports whether a path leads to where standard output goes. What is printed there would overwrite it.
func isStdout(path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	stdout, err := os.Stdout.Stat()
	return err == nil && os.SameFile(there, stdout)
}

// writeInto writes into what is there, or makes a file.
func writeInto(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	return finish(f, write, nil)
}

func finish(f *os.File, write func(io.Writer) error, before error) error {
	b := bufio.NewWriter(f)
	return errors.Join(before, write(b), b.Flush(), f.Close())
}
