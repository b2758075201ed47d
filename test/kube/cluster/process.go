package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// tailBytes is how much of a program's output is kept.
const tailBytes = 64 << 10

// process is a running program, whose output is kept for a failing test.
type process struct {
	process *os.Process
	exited  chan struct{} // closed once it is gone
	exit    error         // how it went, set before exited closes

	mu   sync.Mutex // guards kept
	kept []byte
}

// start runs a program from an OS thread that lives as long as the program: where the kernel ends a child with its parent,
// the parent is the thread.
func start(binary string, args ...string) (*process, error) {
	p := &process{exited: make(chan struct{})}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = p, p
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = tied()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.process = cmd.Process
		started <- nil
		p.exit = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return p, nil
}

// ready waits until probe has nothing to say.
func (p *process) ready(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		last := probe(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("it exited: %w\n%s", p.exit, p.log())
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the program, if it runs, and waits for its end.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.process.Kill()
	<-p.exited
}

// Write keeps the end of what is written. It never fails.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = append(p.kept, b...)
	if over := len(p.kept) - tailBytes; over > 0 {
		p.kept = append(p.kept[:0], p.kept[over:]...)
	}
	return len(b), nil
}

func (p *process) log() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.kept)
}
