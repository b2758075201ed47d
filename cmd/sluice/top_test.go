//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal and what was written to it.
type terminal struct {
	master, slave *os.File
	mu            sync.Mutex
	text          bytes.Buffer
	read          chan struct{} // closed once nothing is read any more
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	p := &terminal{master: master, read: make(chan struct{})}
	err = p.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		p.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	p.resize(t, width, height)
	go func() {
		defer close(p.read)
		var b [4096]byte
		for {
			n, err := master.Read(b[:])
			p.mu.Lock()
			p.text.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.slave.Close()
		_ = p.master.Close()
		<-p.read
	})
	return p
}

// control runs a call on the master without making it a blocking file, whose Close would not end a Read.
func (p *terminal) control(f func(fd int) error) error {
	raw, err := p.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func (p *terminal) resize(t *testing.T, width, height uint16) {
	t.Helper()
	err := p.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// modes are the terminal's.
func (p *terminal) modes(t *testing.T) unix.Termios {
	t.Helper()
	var modes *unix.Termios
	err := p.control(func(fd int) (err error) {
		modes, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return *modes
}

// shows waits until something has been written since the last call, and returns what was written up to it.
func (p *terminal) shows(t *testing.T, want string) (text string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		text = p.text.String()
		if at := strings.Index(text, want); at >= 0 {
			p.text.Next(at + len(want))
			p.mu.Unlock()
			return text[:at+len(want)]
		}
		p.mu.Unlock()
	}
	t.Fatalf("no %q in %q", want, text)
	return ""
}

func (p *terminal) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// onTerminal runs sluice with a terminal as its standard input and output.
func onTerminal(t *testing.T, p *terminal, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(commandEnvironment(), "TERM=xterm", "LANG=C.UTF-8", "NO_COLOR=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

const leavesScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"

// On a terminal top shows what takes place, obeys its keys and the terminal's size, waits for a server that goes away, and
// leaves the terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	r := launch(t, nil)
	p := newTerminal(t, 80, 24)
	before := p.modes(t)
	cmd := onTerminal(t, p, "top", "--admin", r.admin(), "--interval", "100ms")
	p.shows(t, "\x1b[?1049h")
	p.shows(t, "engine-1")
	if now := p.modes(t); now.Lflag&(unix.ICANON|unix.ECHO) != 0 {
		t.Error("keys are echoed, or come by lines")
	}
	r.request(t, "request-17")
	p.shows(t, "request-17")
	p.press(t, "\x1b[As") // an arrow, which is no key of its own
	p.resize(t, 120, 30)
	p.shows(t, "blocks")
	p.press(t, "s")
	p.shows(t, "sort: kv")
	r.stop()
	p.shows(t, "NO ANSWER")
	p.press(t, "q")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	p.shows(t, leavesScreen)
	if now := p.modes(t); now != before {
		t.Errorf("the terminal's modes are %+v, were %+v", now, before)
	}
}

// Ctrl-C and signals end it as a signal does, and leave the terminal as it was.
func TestTopIsInterrupted(t *testing.T) {
	r := launch(t, nil)
	for name, tc := range map[string]struct {
		end  func(*terminal, *exec.Cmd)
		code int
	}{
		"Ctrl-C":  {func(p *terminal, _ *exec.Cmd) { p.press(t, "\x03") }, 130},
		"SIGTERM": {func(_ *terminal, c *exec.Cmd) { _ = c.Process.Signal(syscall.SIGTERM) }, 143},
		"SIGHUP":  {func(_ *terminal, c *exec.Cmd) { _ = c.Process.Signal(syscall.SIGHUP) }, 129},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTerminal(t, 80, 24)
			before := p.modes(t)
			cmd := onTerminal(t, p, "top", "--admin", r.admin())
			p.shows(t, "engine-1")
			tc.end(p, cmd)
			ended := new(exec.ExitError)
			if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != tc.code {
				t.Errorf("ended with %v, want exit code %d", err, tc.code)
			}
			p.shows(t, leavesScreen)
			if now := p.modes(t); now != before {
				t.Errorf("the terminal's modes are %+v, were %+v", now, before)
			}
		})
	}
}

// A terminal gets as wide a page as it has room for, and styles unless NO_COLOR is set.
func TestExplainOnATerminal(t *testing.T) {
	r := launch(t, nil)
	r.request(t, "one")
	p := newTerminal(t, 100, 24)
	if err := onTerminal(t, p, "explain", "--admin", r.admin()).Wait(); err != nil {
		t.Error(err)
	}
	p.shows(t, "\x1b[1mDecision 1\x1b[0m")
	t.Setenv("NO_COLOR", "1")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "explain", "--admin", r.admin())
	cmd.Env = commandEnvironment()
	plain := newTerminal(t, 100, 24)
	cmd.Stdin, cmd.Stdout = plain.slave, plain.slave
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if text := plain.shows(t, "break-even"); strings.ContainsRune(text, '\x1b') {
		t.Errorf("styled: %q", text)
	}
}

// Where it is no terminal that is written to, top writes plain text.
func TestTopElsewhere(t *testing.T) {
	r := launch(t, nil)
	r.request(t, "request-17")
	stdout, stderr, err := ran(t, "top", "--once", "--admin", r.admin(), "--endpoints", "1")
	if err != nil || stderr != "" || strings.ContainsRune(stdout, '\x1b') {
		t.Errorf("%v: %q, %q", err, stdout, stderr)
	}
	for _, want := range []string{"2 endpoints", "1 more hidden", "request-17", "llama", "no_sticky", "approx-prefix-cache-producer: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

// ran runs sluice in a process of its own, which its interrupts need.
func ran(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = commandEnvironment()
	var faults bytes.Buffer
	cmd.Stderr = &faults
	out, err := cmd.Output()
	return string(out), faults.String(), err
}

// A server that does not answer at the start is an error, and what to try is said.
func TestTopReachesNobody(t *testing.T) {
	r := launch(t, nil)
	for args, want := range map[string]string{
		"--admin " + r.app.Addr().String():   "it is no admin port",
		"--admin " + r.admin() + " --tls":    "it speaks plaintext there",
		"--admin " + r.admin() + " --ca /no": "--ca: open /no",
	} {
		ended := new(exec.ExitError)
		stdout, stderr, err := ran(t, append([]string{"top"}, strings.Fields(args)...)...)
		if !errors.As(err, &ended) || ended.ExitCode() != exitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%q: %v, printed %q, said %q; want %q", args, err, stdout, stderr, want)
		}
	}
}

func TestTopUsage(t *testing.T) {
	for args, want := range map[string]string{
		"top --interval 10ms": "--interval: must be from 100ms to 1h, got 10ms",
		"top --interval 2h":   "--interval: must be from 100ms to 1h, got 2h0m0s",
		"top --endpoints=-1":  "--endpoints: must be >= 0, got -1",
		"top --sort size":     "must be one of",
		"top --admin x":       `--admin: must be "host:port"`,
		"top now":             "unexpected argument now",
	} {
		if code, _, stderr := captured(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr, want)
		}
	}
}
