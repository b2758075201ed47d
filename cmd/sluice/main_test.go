//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asCommand makes the test binary run as sluice.
const asCommand = "SLUICE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// commandEnvironment is that of a process that is to run as sluice. With the race detector a process sleeps for a second at its end,
// in case a race is still to be found, which here would be most of what it takes.
func commandEnvironment() []string {
	return append(os.Environ(), asCommand+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
}

// startReading starts sluice with a pipe as its last argument and returns once it is about to read from it: its start
// lasts until something is written. What it logs is piped.
func startReading(t *testing.T, args ...string) (cmd *exec.Cmd, log *bufio.Scanner, pipe *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	cmd = exec.CommandContext(t.Context(), os.Args[0], append(args, path)...)
	cmd.Env = commandEnvironment()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !hasOpen(t, cmd.Process.Pid, path) {
		time.Sleep(time.Millisecond)
	}
	return cmd, bufio.NewScanner(stderr), pipe
}

// hasOpen reports whether a process has the file open.
func hasOpen(t *testing.T, pid int, path string) bool {
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil && target == path {
			return true
		}
	}
	return false
}

func TestReloadSignalDuringTheStart(t *testing.T) {
	cmd, log, pipe := startReading(t, "serve", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--endpoint=127.0.0.1:9", "--config")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.WriteString("telemetry: {logLevel: info}\n"); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	serves := false
	for !serves && log.Scan() {
		serves = strings.Contains(log.Text(), `"msg":"serving"`)
	}
	if !serves {
		t.Fatalf("the process has ended: %v", cmd.Wait())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

func TestOtherCommandsEndWithASignal(t *testing.T) {
	cmd, _, _ := startReading(t, "config", "check")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v, want by the interrupt", cmd.ProcessState)
	}
}
