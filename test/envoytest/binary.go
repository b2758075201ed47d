// Package envoytest runs a real Envoy in tests: on loopback, on ports that Envoy chooses, with its log kept for a failing
// test and its process ended with the test, however that ends.
package envoytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Environment variables that steer the harness.
const (
	// EnvBinary names the Envoy to run.
	EnvBinary = "SLUICE_ENVOY"
	// EnvRequired, when not empty, makes a missing Envoy a failure and not a skip.
	EnvRequired = "SLUICE_ENVOY_REQUIRED"
	// EnvLogLevel is the level Envoy logs at; warning unless set.
	EnvLogLevel = "SLUICE_ENVOY_LOG"
)

// The oldest Envoy that takes the bootstraps of deploy/envoy.
const oldestMajor, oldestMinor = 1, 38

var versionLine = regexp.MustCompile(`version: [0-9a-f]*/([0-9]+)\.([0-9]+)`)

// Binary returns the path of the Envoy to run: that of SLUICE_ENVOY, else one on PATH that is recent enough, else the one
// that `make envoy` keeps in .tools. Where there is none the test is skipped, or fails if SLUICE_ENVOY_REQUIRED is set.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := locate()
	if err == nil {
		return path
	}
	if os.Getenv(EnvRequired) != "" || os.Getenv(EnvBinary) != "" {
		t.Fatalf("no Envoy to test with: %v", err)
	}
	t.Skipf("no Envoy to test with: %v; run `make envoy`", err)
	return ""
}

// locate looks once in a process.
var locate = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(EnvBinary); path != "" {
		return path, recent(path)
	}
	var faults []error
	if path, err := exec.LookPath("envoy"); err == nil {
		if err := recent(path); err == nil {
			return path, nil
		} else {
			faults = append(faults, err)
		}
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", errors.Join(append(faults, err)...)
	}
	path := filepath.Join(root, ".tools", "envoy", "envoy", "_bin", "envoy")
	if err := recent(path); err != nil {
		return "", errors.Join(append(faults, err)...)
	}
	return path, nil
})

// recent reports why the binary is no Envoy to test with.
func recent(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", path, err)
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("%s --version printed no version: %q", path, bytes.TrimSpace(out))
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("%s is Envoy %d.%d, need %d.%d or newer", path, major, minor, oldestMajor, oldestMinor)
	}
	return nil
}

// repositoryRoot is the nearest folder above the working directory that holds the Makefile's fetch script.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for folder := start; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "scripts", "envoy.sh")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("no repository above %s", start)
		}
	}
}

// Validate has Envoy check a bootstrap, and returns what it finds wrong.
func Validate(t testing.TB, bootstrap []byte) error {
	t.Helper()
	binary := Binary(t)
	file := write(t, bootstrap)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--mode", "validate", "--disable-hot-restart", "--concurrency", "1",
		"--log-level", "error", "-c", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("envoy --mode validate: %w\n%s", err, out)
	}
	return nil
}

func write(t testing.TB, bootstrap []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
