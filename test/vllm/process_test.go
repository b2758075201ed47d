package vllm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// process is a program in a process group of its own: it ends with all that it has started.
type process struct {
	name   string
	log    string // path of what it wrote
	pid    int
	exited chan struct{} // closed once the program is gone
	exit   error         // how it went, set before exited closes

	unguard func()
}

// launch starts a program for t, which ends with the owner: a test, or one that t is a part of. Its output is appended to
// name.log in folder, and the end of that is shown where the owner fails.
func launch(t, owner *testing.T, folder, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, log: filepath.Join(folder, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, ownGroup()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel ends a child with the thread that started it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.exit = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.pid = cmd.Process.Pid
	p.unguard = sync.OnceFunc(guard(t, p.pid))
	owner.Cleanup(func() {
		p.stop()
		if owner.Failed() {
			owner.Logf("the end of what %s wrote:\n%s", name, p.tail(2000))
		}
	})
	return p
}

// kill ends the group at once, without a word to it, and waits for the program's end.
func (p *process) kill() {
	killGroup(p.pid)
	<-p.exited
	p.unguard()
}

// stop lets the program end by itself for a while, then ends the group.
func (p *process) stop() {
	terminate(p.pid)
	late := time.NewTimer(15 * time.Second)
	defer late.Stop()
	select {
	case <-p.exited:
	case <-late.C:
	}
	p.kill()
}

// alive reports whether the program still runs.
func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// tail is the end of what the program wrote, at most n bytes.
func (p *process) tail(n int) []byte {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(b[max(0, len(b)-n):])
}
