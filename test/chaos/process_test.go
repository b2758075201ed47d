//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// launcher starts processes from one OS thread, which lives as long as the test: the kernel ends them with it, so that
// nothing outlives a test that is killed.
type launcher struct{ ask chan func() }

func newLauncher(t *testing.T) *launcher {
	t.Helper()
	l := &launcher{ask: make(chan func())}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for start := range l.ask {
			start()
		}
	}()
	t.Cleanup(func() {
		close(l.ask)
		<-done
	})
	return l
}

// process is one that the test started.
type process struct {
	name   string
	log    string // path of what it wrote
	pid    int
	exited chan struct{} // closed once it is gone
	exit   error         // how it went, set before exited closes

	mu     sync.Mutex
	killed bool // by kill
}

// start runs the test binary, or another one, in a role.
func (l *launcher) start(folder, name, role string, args any, binary string, flags []string) (*process, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if binary != "" {
		cmd = exec.Command(binary, flags...)
	}
	cmd.Env = append(os.Environ(), envRole+"="+role, envArgs+"="+string(text))
	// Another group than the test's: an interrupt at the terminal is for the test, whose end ends all others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{name: name, log: filepath.Join(folder, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error)
	l.ask <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	go func() {
		p.exit = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(p.pid, s) } // it may have gone

// kill ends the process at once.
func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// finish tells the process to go and waits until it has.
func (p *process) finish(patience time.Duration) error {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.exited:
		return p.exit
	case <-late.C:
		p.kill()
		return errors.New("it does not end when told to")
	}
}

// dead reports whether the process has ended without having been killed.
func (p *process) dead() bool {
	select {
	case <-p.exited:
	default:
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.killed
}

// usage is what a process has open, and its memory.
type usage struct {
	files int // sockets among them
	rss   int // bytes
}

func (u usage) String() string { return fmt.Sprintf("%d files, %d MiB", u.files, u.rss>>20) }

// usageOf reads what the kernel says of a process.
func usageOf(pid int) (usage, error) {
	folder := "/proc/" + strconv.Itoa(pid)
	open, err := os.ReadDir(filepath.Join(folder, "fd"))
	if err != nil {
		return usage{}, err
	}
	memory, err := os.ReadFile(filepath.Join(folder, "statm"))
	if err != nil {
		return usage{}, err
	}
	fields := strings.Fields(string(memory))
	if len(fields) < 2 {
		return usage{}, fmt.Errorf("statm: %q", memory)
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return usage{}, err
	}
	return usage{files: len(open), rss: pages * os.Getpagesize()}, nil
}

// complaints are what of a log must not be there.
func complaints(path string) (found []string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	for _, word := range []string{"DATA RACE", "panic", "fatal error", "cutting what is left", "goroutine 1 ["} {
		if at := bytes.Index(b, []byte(word)); at >= 0 {
			found = append(found, fmt.Sprintf("%q: …%s", word, b[max(0, at-500):min(len(b), at+6000)]))
		}
	}
	return found
}

// tail is the end of a log.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-n):]))
}
