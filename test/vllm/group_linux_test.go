package vllm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/lab"
)

// ownGroup makes a child the first of a process group, and has the kernel end it when its parent dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// A group that is gone already is no error here.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
func terminate(pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) }

// guard ends a process group when this process dies, however that happens: the kernel would end the group's first process
// only, and what vLLM starts outlives it. Until then it waits for a line that never comes. The returned function ends the
// guard.
func guard(t *testing.T, pid int) (end func()) {
	t.Helper()
	g := exec.Command("sh", "-c", `read -r _; kill -s KILL -- "-$0"`, strconv.Itoa(pid))
	g.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	alive, err := g.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = g.Process.Kill()
		_ = alive.Close()
		_ = g.Wait() // killed
	}
}

// orphanEnv makes TestOrphan, in a process of its own, start a program that leaves a child behind, say its number, and
// wait to be killed.
const orphanEnv = "SLUICE_VLLM_ORPHAN"

func TestOrphan(t *testing.T) {
	if os.Getenv(orphanEnv) == "" {
		t.Skip("the other half of TestKilledTestLeavesNoEngine")
	}
	p := launch(t, t, t.TempDir(), "shell", exec.Command("sh", "-c", "sleep 600 & sleep 600"))
	fmt.Println(p.pid)
	time.Sleep(time.Minute)
}

func TestKilledTestLeavesNoEngine(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), self, "-test.run=^TestOrphan$")
	other.Env = append(os.Environ(), orphanEnv+"=1")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait() // killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if err := syscall.Kill(-pid, 0); err != nil {
		t.Fatalf("the group %d before: %v", pid, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lab.Wait(t, "the group to be gone", func() bool { return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) })
}
