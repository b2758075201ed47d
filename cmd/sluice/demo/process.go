package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// process is a child that ends with the demo.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when it has ended
}

// start runs a child, with these variables besides the environment's. Its output is kept, for when it fails.
func start(name string, variables []string, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), log: &tail{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = tied()
	p.cmd.Env = append(os.Environ(), variables...)
	started := make(chan error)
	go func() {
		// The kernel ends a tied child when the thread that started it ends, so this thread stays until the child goes.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = p.cmd.Wait() // how it ended shows in its log
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// stop asks the child to end, and makes it where it does not.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended already
	patience := time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer patience.Stop()
	<-p.done
}

// await polls until ready says so; it fails when the child ends, or too much time passes.
func (p *process) await(ctx context.Context, ready func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for !ready(ctx) {
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("%s ended:\n%s", p.name, p.log)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s does not become ready:\n%s", p.name, p.log)
			}
			return ctx.Err()
		}
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 16 << 10

// Write keeps b.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(b), nil
}

// String is what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
