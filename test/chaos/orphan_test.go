//go:build linux

package chaos

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// envOrphan makes TestOrphan, in a process of its own, start an engine, stop it as a fault does, say its number, and wait to
// be killed.
const envOrphan = "SLUICE_CHAOS_ORPHAN"

func TestOrphan(t *testing.T) {
	if os.Getenv(envOrphan) == "" {
		t.Skip("the other half of TestKilledTestLeavesNoProcess")
	}
	folder, ip := t.TempDir(), envoytest.PodIPs(t, 1)[0]
	p, err := newLauncher(t).start(folder, "engine", roleEngine, engineArgs{
		Name: "engine", Listen: ip + ":0", Events: ip + ":0", Replay: ip + ":0", Speed: 1, Blocks: 100, Record: folder + "/record",
	}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGSTOP)
	fmt.Println(p.pid)
	time.Sleep(time.Minute)
}

// A test that is killed leaves no process behind, not even one that is stopped.
func TestKilledTestLeavesNoProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), self, "-test.run=^TestOrphan$")
	other.Env = append(os.Environ(), envOrphan+"=1")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the engine %d before: %v", pid, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed
	lab.Wait(t, "the engine to be gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}
