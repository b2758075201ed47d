// Package subject runs a program that is measured, in a process of its own, and reads from outside what it costs: CPU time
// from the kernel and, of an ext_proc server in Go, allocations and profiles from its admin port.
//
// An ext_proc server fits Start when it logs a JSON line {"msg":"serving","grpc":"HOST:PORT","admin":"HOST:PORT"} on standard error, and
// its admin port has /readyz, /metrics with the Go runtime's metrics, and /debug/pprof/.
package subject

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	startTimeout = 30 * time.Second
	callTimeout  = 30 * time.Second // on top of a profile's own time
	pollInterval = 5 * time.Millisecond
)

// Build compiles a main package of this module into a folder the way releases are built, and returns the binary's path.
func Build(ctx context.Context, folder, importPath string) (string, error) {
	binary := filepath.Join(folder, path.Base(importPath))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, importPath)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", importPath, err, out)
	}
	return binary, nil
}

// Process is a running program.
type Process struct {
	// Address is where it serves, host:port.
	Address string

	name    string
	admin   string
	log     *log
	client  *http.Client
	process *os.Process
	exited  chan struct{} // closed once the process is gone
	state   *os.ProcessState
	exit    error // how it went; this and state are set before exited closes
	stop    sync.Once
	peak    int64 // the largest resident set; set by stop
}

// Command is a program that is no ext_proc server in Go, such as a proxy.
type Command struct {
	// Name is what errors call it.
	Name string
	// Path and Args are the command line; Environment is added to this process's own.
	Path              string
	Args, Environment []string
	// Ready returns the address that the program serves on, or why it does not yet. It is asked again and again.
	Ready func(context.Context) (address string, err error)
}

// Launch runs a program and waits until it is ready.
func Launch(ctx context.Context, c Command) (*Process, error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Environment...)
	return launch(ctx, c.Name, cmd, func(ctx context.Context, p *Process) error {
		return p.poll(ctx, func() (err error) {
			p.Address, err = c.Ready(ctx)
			return err
		})
	})
}

// Start runs an ext_proc server and waits until it is ready.
func Start(ctx context.Context, binary string, args ...string) (*Process, error) {
	return launch(ctx, filepath.Base(binary), exec.Command(binary, args...), func(ctx context.Context, p *Process) error {
		return p.ready(ctx)
	})
}

func launch(ctx context.Context, name string, cmd *exec.Cmd, ready func(context.Context, *Process) error) (*Process, error) {
	p := &Process{
		name: name, log: newLog(), exited: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}},
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = time.Second
	if err := p.run(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := ready(ctx, p); err != nil {
		_, _ = p.Stop() // the fault is that it did not come up
		return nil, fmt.Errorf("%s did not come up: %w\n%s", p.name, err, p.log.tail())
	}
	return p, nil
}

// run starts the process from an OS thread that lives as long as the process: where the kernel ends a child with its
// parent, the parent is the thread.
func (p *Process) run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = tied()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.process = cmd.Process
		started <- err
		if err != nil {
			return
		}
		p.exit = cmd.Wait()
		p.state = cmd.ProcessState
		close(p.exited)
	}()
	return <-started
}

func (p *Process) ready(ctx context.Context) error {
	select {
	case <-p.exited:
		return fmt.Errorf("it exited: %w", errors.Join(p.exit, errors.New("without serving")))
	case <-ctx.Done():
		return ctx.Err()
	case a := <-p.log.serving:
		p.Address, p.admin = a.GRPC, a.Admin
	}
	return p.poll(ctx, func() error { return p.get(ctx, "/readyz", io.Discard) })
}

// poll waits until probe has no error; it fails once the process is gone or ctx is over.
func (p *Process) poll(ctx context.Context, probe func() error) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		last := probe()
		if last == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("it exited: %w", errors.Join(p.exit, last))
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-poll.C:
		}
	}
}

// get writes a page of the admin port.
func (p *Process) get(ctx context.Context, page string, to io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+page, http.NoBody)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", p.name, page, response.Status)
	}
	if _, err := io.Copy(to, response.Body); err != nil {
		return fmt.Errorf("%s %s: %w", p.name, page, err)
	}
	return nil
}

// Profile writes a CPU profile of the time from now, in whole seconds of at least one.
func (p *Process) Profile(ctx context.Context, d time.Duration, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, d+callTimeout)
	defer cancel()
	seconds := max(1, int(d.Seconds()))
	return p.get(ctx, "/debug/pprof/profile?seconds="+strconv.Itoa(seconds), to)
}

// CPU is the CPU time that the process has used, user and system, to the nanosecond.
func (p *Process) CPU() (time.Duration, error) {
	d, err := processCPU(p.process.Pid)
	if err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", p.name, err)
	}
	return d, nil
}

// Name is what the program is called in errors.
func (p *Process) Name() string { return p.name }

// Err says how the process ended, if it has.
func (p *Process) Err() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s exited: %w\n%s", p.name, errors.Join(p.exit, errors.New(p.state.String())), p.log.tail())
	default:
		return nil
	}
}

// Stop ends the process at once and returns what it used in its life. It may be called again, to no effect.
func (p *Process) Stop() (Usage, error) {
	p.stop.Do(func() {
		p.peak, _ = peakRSS(p.process.Pid) // it may be gone already
		_ = p.process.Kill()               // as above
		<-p.exited
	})
	cpu, err := cpuOf(p.state)
	return Usage{CPU: cpu, PeakRSS: p.peak}, err
}
