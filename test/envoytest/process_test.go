package envoytest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// orphanEnv makes TestOrphan, in a process of its own, start an Envoy, say where, and wait to be killed.
const orphanEnv = "SLUICE_ENVOYTEST_ORPHAN"

func TestOrphan(t *testing.T) {
	if os.Getenv(orphanEnv) == "" {
		t.Skip("the other half of TestKilledTestLeavesNoEnvoy")
	}
	e := envoytest.Start(t, envoy.Params{Picker: envoy.Picker{Address: "127.0.0.1:1", NoHealthCheck: true}})
	fmt.Println("admin: " + e.AdminAddr)
	time.Sleep(time.Minute)
}

func TestKilledTestLeavesNoEnvoy(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	binary := envoytest.Binary(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestOrphan$")
	cmd.Env = append(os.Environ(), orphanEnv+"=1", "TMPDIR="+t.TempDir(), envoytest.EnvBinary+"="+binary)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var admin string
	for found := false; !found; {
		if !lines.Scan() {
			t.Fatalf("the other process named no admin address: %v", lines.Err())
		}
		admin, found = strings.CutPrefix(lines.Text(), "admin: ")
	}
	if !accepts(admin) {
		t.Fatalf("no Envoy at %s before the kill", admin)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // It was killed.
	deadline := time.Now().Add(clientTimeout)
	for accepts(admin) {
		if time.Now().After(deadline) {
			t.Fatalf("the Envoy at %s outlived its test", admin)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStopEndsTheProcess(t *testing.T) {
	e := envoytest.Start(t, envoy.Params{Picker: envoy.Picker{Address: "127.0.0.1:1", NoHealthCheck: true}})
	if !accepts(e.Addr) || !accepts(e.AdminAddr) {
		t.Fatalf("nothing listens at %s and %s", e.Addr, e.AdminAddr)
	}
	e.Stop()
	e.Stop()
	if accepts(e.Addr) || accepts(e.AdminAddr) {
		t.Errorf("something still listens at %s or %s", e.Addr, e.AdminAddr)
	}
}

func accepts(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestPodIPsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		for _, ip := range envoytest.PodIPs(t, 300) {
			if seen[ip] || !net.ParseIP(ip).IsLoopback() {
				t.Fatalf("%s was given twice or is not loopback", ip)
			}
			seen[ip] = true
		}
	}
	ips := envoytest.PodIPs(t, 3)
	port := envoytest.FreePort(t, ips...)
	for _, ip := range ips {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", ip, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}
